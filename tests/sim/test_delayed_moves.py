"""Planned moves that are issued some cycles after a kernel has started."""

import pytest
from machines import iteration_times, machine, planned, simulate, trace_of
from memories import GPU, HOST, NONE

from g10sim.errors import PlanError
from g10sim.policies.interface.moves import Await, Drop, Evict, Free
from g10sim.policies.interface.plan import MigrationPlan, Planned
from g10sim.policies.interface.plan_format import load_plan, save_plan
from g10sim.policies.interface.policy import Policy
from g10sim.records import StallReason

# a is made by the first kernel and read by the last; the others compute for themselves.
TRACE = trace_of({"a": 2, "b": 1}, [(10_000, "", "a"), *[(10_000, "", "b")] * 3, (10_000, "a", "")])


class Delays(Policy):
    """Moves given as (kernel, tensor, target, delay)."""

    name = "delays"

    def __init__(self, *, moves=()):
        self.moves = moves

    def plan_job(self, job, system, behaviour):
        return MigrationPlan.ordered(
            planned(kernel, tensor, target, delay=delay) for kernel, tensor, target, delay in self.moves
        )


def transfers(records, iteration=0):
    start, end = next((i.start, i.end) for i in records.iterations if i.iteration == iteration)
    return [
        (m.source.name, m.target.name, m.start - start, m.end - start)
        for m in records.migrations
        if m.tensor == 0 and start <= m.start < end and NONE not in (m.source, m.target)
    ]


def test_moves_happen_at_their_time():
    moves = [(1, 0, HOST, 2500), (3, 0, GPU, 6000)]
    records = simulate(TRACE, machine(), Delays(moves=moves), record=("kernels", "migrations"))
    # First touches take 2000 cycles a page: kernels start at 0, 14000, 26000, 38000 and 50000.
    assert transfers(records) == [("GPU", "HOST", 16_500, 18_500), ("HOST", "GPU", 44_000, 46_000)]
    kept = simulate(TRACE, machine(), Delays(), record=())
    assert iteration_times(records) == iteration_times(kept)


@pytest.mark.parametrize("move", [(0, 0, HOST, 70_000), (3, 0, GPU, 40_000), (1, 0, HOST, 10**9)])
def test_a_move_is_given_up_once_the_tensor_has_been_used_again(move):
    records = simulate(TRACE, machine(), Delays(moves=[move]), record=("migrations",), iterations=2)
    assert transfers(records) == transfers(records, 1) == []
    assert records.iterations[1].page_faults == simulate(TRACE, machine(), Delays()).iterations[1].page_faults


def test_a_move_is_given_up_once_the_next_iteration_has_used_the_tensor():
    trace = trace_of({"w*": 2}, [(10_000, "w", ""), (10_000, "", ""), (10_000, "", "")])
    given = simulate(trace, machine(), Delays(moves=[(2, 0, HOST, 5000)]), record=("migrations",))
    assert [move[1] for move in transfers(given)] == ["GPU", "HOST"]
    policy = Delays(moves=[(2, 0, HOST, 25_000)])
    late = simulate(trace, machine(), policy, record=("migrations",), iterations=3)
    assert [move[1] for i in range(3) for move in transfers(late, i)] == ["GPU"]


def test_a_delayed_prefetch_wakes_nobody_and_spoils_nothing_when_the_kernel_waits():
    moves = [(1, 0, HOST, 0), (4, 0, GPU, 500)]
    records = simulate(TRACE, machine(fault="3 us"), Delays(moves=moves), iterations=3)
    assert records.iterations[2].traffic["host_to_gpu_bytes"] == 2000


def test_delays_are_kept_in_files(tmp_path):
    plan = Delays(moves=[(1, 0, HOST, 2500), (3, 0, GPU, 0)]).plan_job(type("J", (), {"trace": TRACE}), 0, 0)
    save_plan(plan, tmp_path / "plan.g10p", TRACE)
    assert load_plan(tmp_path / "plan.g10p", TRACE).moves == plan.moves


class Plans(Policy):
    """Follows a plan."""

    name = "plans"

    def __init__(self, *moves):
        self.moves = moves

    def plan_job(self, job, system, behaviour):
        return MigrationPlan(self.moves)


def test_every_move_can_be_delayed():
    dropped = simulate(TRACE, machine(), Plans(Planned(1, Drop(0), 2500)))
    assert dict(dropped.kernels[-1].stalls)[StallReason.RECOMPUTATION] == 10_000
    # Two pages take 20,000 cycles; kernel 2 starts at 26,000 (see above) and ends with the copy, at 46,500.
    slow = machine(pcie="0.1 GB/s")
    moves = Planned(2, Evict(0), 500), Planned(2, Await(), 1000)
    awaited = simulate(TRACE, slow, Plans(*moves), iterations=1)
    assert dict(awaited.kernels[2].stalls)[StallReason.SYNCHRONIZATION] == 8500


def test_a_delay_is_not_negative(tmp_path):
    plan = MigrationPlan((Planned(4, Free(0), -5),))
    with pytest.raises(PlanError, match=r"^plan, move 0: found delay_cycles -5; allowed: 0 or more"):
        simulate(TRACE, machine(), Plans(*plan.moves))
    with pytest.raises(PlanError, match="found delay_cycles -5; allowed: 0 or more"):
        save_plan(plan, tmp_path / "plan.g10p", TRACE)
