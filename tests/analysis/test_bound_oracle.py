"""On random instances: bound <= the best that whole blocks can do <= every policy that moves pages.

The last holds up to parts of pages that are on their way.

``G10SIM_FUZZ_CASES`` sets the number of instances; the nightly run takes 1,000.
"""

import os
import random
from contextlib import suppress

import pytest
from bounding import Blocks, draw_case

from g10sim.analysis.bound.bound import iteration_bound
from g10sim.analysis.recomputation import Recomputability
from g10sim.config.behaviour import BehaviourSpec
from g10sim.errors import UnsupportedError
from g10sim.policies.interface.moves import Drop, Evict, Fetch
from g10sim.policies.interface.policy import Policy, Requirements
from g10sim.policies.interface.registry import available, create
from g10sim.records import StallReason
from g10sim.results.bounds import Premises
from g10sim.sim.engine import run
from g10sim.trace.workload import Job, Workload

CASES = min(1000, int(os.environ.get("G10SIM_FUZZ_CASES", "24")))
ALL = 99
ITERATIONS = 4


class Erratic(Policy):
    """Evicts, fetches and, if told so, drops tensors at random."""

    name = "erratic"
    requirements = Requirements(addresses="own")

    def __init__(self, *, seed=0, drops=False):
        self.seed, self.drops = seed, drops
        self._draw = random.Random(seed)
        self._eagerness = self._draw.random()

    def on_kernel_start(self, view):
        rules = Recomputability(view.trace)
        for tensor in range(len(view.trace.tensors)):
            if self._draw.random() > self._eagerness or view.is_dropped(tensor) or view.is_needed(tensor):
                continue
            if self.drops and not rules.problem(tensor, view.kernel):
                yield Drop(tensor)
            elif view.resident_bytes(tensor):
                yield Evict(tensor, self._draw.choice(view.tiers))
            elif view.away_bytes(tensor):
                yield Fetch(tensor)


FLEXGEN = {"name": "flexgen", "percent": [0, 0, 0, 0, 0, 0], "births": 0, "overlap": "none"}
"""FlexGen with everything on the SSD but what a layer uses; it keeps all on the GPU unless told otherwise."""


def policies(case, seed):
    """All policies that move pages on demand or ahead, and two that move them at random."""
    workload = Workload((Job(case.trace),))
    made = [create(name) for name in available() if name != "replay"]
    paged = [one for one in made if not Premises(one.requirements, BehaviourSpec()).obstacle(workload)]
    paged += [create({"name": "pressure", "recompute": True}), create(FLEXGEN)]
    return [*paged, Erratic(seed=seed), Erratic(seed=seed, drops=True)]


def times_of(case, policy):
    """Cycles of every iteration, and whether any tensor was computed again."""
    records = run(
        Workload((Job(case.trace, iterations=ITERATIONS),)), case.system, policy, record=("kernels",)
    )
    reasons = {reason for kernel in records.kernels for reason, _ in kernel.stalls}
    times = [iteration.end - iteration.start for iteration in records.iterations]
    assert len(times) == ITERATIONS
    return times, StallReason.RECOMPUTATION in reasons


def carried_cycles(case):
    """Cycles that parts of pages save which have crossed, and lie nowhere yet: for bytes out and back."""
    machine = case.machine
    return 2 * max(
        machine.carried_bytes(number) * machine.clock_hz // limit.rate
        for number, limit in enumerate(machine.limits)
    )


def rearranging_cycles(case):
    """Cycles in which all that lasts can leave and return: what four iterations may owe to the next."""
    trace, machine = case.trace, case.machine
    size = sum(tensor.size_bytes for tensor in trace.tensors if tensor.persistent)
    return 2 * size * machine.clock_hz // min(limit.rate for limit in machine.limits)


@pytest.mark.parametrize("seed", range(CASES))
def test_the_bound_the_optimum_and_every_policy_are_in_order(seed):
    case = draw_case(seed)
    blocks = Blocks(case.trace, case.machine)
    best, best_steady = blocks.iteration(), blocks.steady()

    def least(**options):
        return iteration_bound(case.trace, case.machine, **options).cycles

    once, steady = least(checkpoints=ALL), least(checkpoints=ALL, steady=True)
    again, again_steady = (least(recompute=True, checkpoints=ALL, steady=way) for way in (False, True))
    assert least() <= once <= best
    assert least(steady=True) <= steady <= best_steady
    supported = 0
    for policy in policies(case, seed):
        with suppress(UnsupportedError):  # without a CPU, or with less memory than the design keeps in use
            times, drops = times_of(case, policy)
            supported += 1
            assert (again if drops else max(once, best - carried_cycles(case))) <= min(times), policy.name
            mean = (sum(times) + rearranging_cycles(case)) / ITERATIONS
            assert (again_steady if drops else steady) <= mean, policy.name
    assert supported >= 7


def test_flexgen_is_among_them():
    cases = map(draw_case, range(CASES))
    assert sum(runs(case, create(FLEXGEN)) for case in cases) >= CASES / 4


def runs(case, policy):
    with suppress(UnsupportedError):
        return bool(times_of(case, policy))
    return False


@pytest.mark.slow
def test_the_bound_is_mostly_the_optimum_itself():
    exact = stalling = 0
    for seed in range(CASES):
        case = draw_case(seed)
        best = Blocks(case.trace, case.machine).iteration()
        found = iteration_bound(case.trace, case.machine, checkpoints=ALL)
        exact += found.cycles >= 0.98 * best
        stalling += found.stall_cycles > 0
    assert exact >= 0.8 * CASES
    assert stalling >= 0.2 * CASES
