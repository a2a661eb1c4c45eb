"""Moves: the same classes in plans, reactions and plan files, also those that a plug-in defines."""

import gzip
import json
from dataclasses import dataclass

import pytest
from machines import kernel_times, machine, simulate, trace_of

from g10sim.errors import PlanError, PolicyError
from g10sim.policies.designs.replay import Replay
from g10sim.policies.interface.contract import Move, TensorMove, register_move, registered_moves
from g10sim.policies.interface.moves import (
    Access,
    Await,
    Drop,
    Evict,
    Fetch,
    Free,
    KeepUncompressed,
    Protect,
    Store,
)
from g10sim.policies.interface.plan import MigrationPlan, Planned
from g10sim.policies.interface.plan_format import load_plan, save_plan
from g10sim.policies.interface.policy import Policy, Requirements

# a is made from x and read at the end, b is made and dead at once.
TRACE = trace_of(
    {"x*": 2, "a": 2, "b": 2},
    [(9000, "x", "a"), (9000, "x", "b"), (9000, "b", ""), (9000, "", ""), (9000, "a x", "")],
)


@register_move
@dataclass(frozen=True, slots=True)
class Exchange(Move):
    """Evict one tensor and fetch another in its place."""

    name = "exchange"
    memories = ("paged",)
    out: int
    back: int
    target: str = "host"

    def subjects(self):
        return self.out, self.back

    def tiers(self):
        return (self.target,)

    def check(self, state):
        if state.view.is_needed(self.out):
            return f"exchanges tensor {self.out}, which is in use; allowed: others"
        return None

    def apply(self, state):
        state.evict(Evict(self.out, self.target))
        state.fetch(self.back)


class ExchangeInParts(Exchange):
    """Says what is evicted in parts."""

    name = "exchange_in_parts"

    def apply(self, state):
        state.evict(self.out, self.target, until=None, density=None, is_clean=False)
        state.fetch(self.back)


class Does(Policy):
    """Carries out planned moves: by a plan, or as reactions."""

    name = "does"

    def __init__(self, *moves, reacts=False, memory="paged"):
        self.moves, self.reacts = moves, reacts
        self.requirements = Requirements(placement=memory)

    requirements = Requirements()

    def plan_job(self, job, system, behaviour):
        return None if self.reacts else MigrationPlan(self.moves)

    def on_kernel_start(self, view):
        if not self.reacts:
            return ()
        last = len(view.trace.kernels)
        now = {view.kernel} | ({last} if view.iteration and not view.kernel else set())
        return [planned.move for planned in self.moves if planned.kernel in now]


EXCHANGES = (Planned(2, Exchange(1, 2, "ssd")), Planned(3, Exchange(0, 1)))


def run(policy, trace=TRACE, **options):
    return simulate(trace, machine(), policy, record=("kernels", "migrations"), **options)


@pytest.mark.parametrize("memory", ["paged", "contiguous"])
def test_what_a_kernel_has_just_made_is_not_freed(memory):
    class FreesAtEnd(Policy):
        name = "frees"
        requirements = Requirements(placement=memory)

        def on_kernel_start(self, view):
            return Free(1) if view.kernel == 0 else None  # of the iteration before

        def on_kernel_end(self, view):
            return Free(1) if view.kernel == 0 else None

    with pytest.raises(PolicyError, match="frees tensor 'a', which will be read again; allowed: dead"):
        run(FreesAtEnd())


def test_an_eviction_is_a_move_or_its_parts():
    parts = (Planned(2, ExchangeInParts(1, 2, "ssd")), Planned(3, ExchangeInParts(0, 1)))
    assert run(Does(*parts)).migrations == run(Does(*EXCHANGES)).migrations


def test_a_move_of_a_plug_in_works_in_a_plan_a_reaction_and_a_plan_file(tmp_path):
    planned = run(Does(*EXCHANGES))
    moved = {(m.tensor, m.source.name, m.target.name) for m in planned.migrations}
    assert moved >= {(1, "GPU", "FLASH"), (0, "GPU", "HOST"), (1, "FLASH", "GPU")}
    assert run(Does(*EXCHANGES, reacts=True)) == planned
    path = tmp_path / "plan.g10p"
    save_plan(MigrationPlan(EXCHANGES), path, TRACE)
    lines = gzip.decompress(path.read_bytes()).decode().splitlines()
    assert json.loads(lines[1]) == {"kernel": 2, "move": "exchange", "out": 1, "back": 2, "target": "ssd"}
    assert json.loads(lines[2]) == {"kernel": 3, "move": "exchange", "out": 0, "back": 1}
    assert load_plan(path, TRACE).moves == EXCHANGES
    assert run(Replay(plan_file=str(path))) == planned


def hook():
    """Return the line at which the code of the hook begins, as messages say it."""
    return f" ({__file__}, line {Does.on_kernel_start.__code__.co_firstlineno})"


@pytest.mark.parametrize("reacts", [False, True])
def test_a_move_that_memory_cannot_do_is_refused(reacts):
    with pytest.raises(PolicyError) as error:
        run(Does(*EXCHANGES, reacts=reacts, memory="contiguous"))
    assert str(error.value) == (
        "policy 'does', kernel 2 (Kernel2): found move 'exchange' with contiguous memory; allowed: with "
        f"paged memory{hook() if reacts else ''}"
    )


@pytest.mark.parametrize("reacts", [False, True])
def test_the_check_of_a_plug_in_counts(reacts):
    with pytest.raises(PolicyError) as error:
        run(Does(Planned(4, Exchange(0, 1)), reacts=reacts))
    assert str(error.value) == (
        "policy 'does', kernel 4 (Kernel4): exchanges tensor 0, which is in use; allowed: others"
        f"{hook() if reacts else ''}"
    )


def test_moves_of_plug_ins_name_tensors_and_tiers_that_exist(tmp_path):
    with pytest.raises(PlanError, match=r"^plan, move 0: found unknown tensor 3; allowed: 0 to 2 \(the"):
        run(Does(Planned(2, Exchange(3, 0))))
    with pytest.raises(PlanError, match=r"^plan, move 0: found unknown tier 'tape'; allowed: host, ssd$"):
        run(Does(Planned(2, Exchange(0, 1, "tape"))))
    path = tmp_path / "plan.g10p"
    with pytest.raises(PlanError, match="not written: move 0: found unknown tensor -1; allowed: 0 to 2"):
        save_plan(MigrationPlan((Planned(2, Exchange(0, -1)),)), path, TRACE)


def test_a_tier_of_a_plan_file_is_checked_when_the_run_starts(tmp_path):
    path = tmp_path / "plan.g10p"
    save_plan(MigrationPlan((Planned(2, Evict(0, "cxl")),)), path, TRACE)
    assert load_plan(path, TRACE).moves == (Planned(2, Evict(0, "cxl")),)
    with pytest.raises(PlanError, match=r"^plan, move 0: found unknown tier 'cxl'; allowed: host, ssd$"):
        run(Replay(plan_file=str(path)))


def written(path, text):
    path.write_text('{"format": "g10sim-plan", "version": 2, "moves": 1}\n' + text + "\n")
    return path


BAD_LINES = {
    '{"kernel": 0, "move": "exchang", "out": 1}': (
        r"move: found 'exchang' \(did you mean 'exchange'\?\); allowed: access, await, drop, evict, "
    ),
    '{"kernel": 0, "move": "exchange", "out": 1}': "found no back; allowed: exchange with back",
    '{"kernel": 0, "move": "exchange", "out": 1, "back": true}': "back: found True; allowed: a valid integer",
    '{"kernel": 0, "move": "await", "tensors": [0, "a"]}': "tensors.1: found 'a'; allowed: a valid integer",
    '{"kernel": 0, "move": "evict", "tensor": 0, "density": NaN}': (
        "density: found nan; allowed: a finite number"
    ),
    '{"kernel": 0, "tensor": 0}': "found no move; allowed: move with a text",
    '{"kernel": 0, "move": "fetch", "tensor": 0, "delay_cycles": -1}': (
        "found delay_cycles -1; allowed: 0 or more"
    ),
}


@pytest.mark.parametrize(("text", "message"), BAD_LINES.items())
def test_bad_lines_of_plan_files(tmp_path, text, message):
    with pytest.raises(PlanError, match=f"plan.g10p: line 2: {message}"):
        load_plan(written(tmp_path / "plan.g10p", text))


def test_a_move_that_is_not_registered_works_but_in_files(tmp_path):
    @dataclass(frozen=True)
    class Quiet(TensorMove):
        name = "quiet"

        def apply(self, state):
            state.fetch(self.tensor)

    plan = MigrationPlan((Planned(1, Quiet(0)),))
    assert run(Does(*plan.moves)) == run(Does(Planned(1, Fetch(0))))
    with pytest.raises(PlanError, match="move 0: found unregistered move 'quiet'; allowed: access, await, "):
        save_plan(plan, tmp_path / "plan.g10p")


def test_names_of_moves_are_taken_once():
    @dataclass(frozen=True)
    class Fetch(TensorMove):
        name = "fetch"

    @dataclass(frozen=True)
    class Nameless(TensorMove):
        pass

    class Fieldless(TensorMove):
        name = "fieldless"

    with pytest.raises(
        PolicyError, match=r"two moves are called 'fetch': g10sim.policies.interface.moves:Fetch and "
    ):
        register_move(Fetch)
    with pytest.raises(PolicyError, match="move class test_moves:Nameless has no name"):
        register_move(Nameless)
    with pytest.raises(PolicyError, match="move class test_moves:Fieldless is no dataclass"):
        register_move(Fieldless)


EXAMPLES = [
    Fetch(1),
    Evict(1),
    Evict(1, "ssd"),
    Evict(1, until=3),
    Evict(1, density=0.5),
    Evict(1, is_clean=True),
    Evict(1, size_bytes=1000),
    Free(2),
    Drop(1),
    Protect(frozenset({1})),
    Await(),
    Await(frozenset({1}), evictions=False, prefetches=True),
    KeepUncompressed(),
    Exchange(1, 2),
    Access(1),
    Store(1),
]
COPIED = "evicts tensor 'a', which is read or compressed; allowed: with contiguous memory"
WHOLE = "evicts tensor 'a', which leaves in part; allowed: with paged memory"
REFUSED = {
    (
        Evict(1, until=3),
        "paged",
    ): COPIED,
    (Evict(1, density=0.5), "paged"): COPIED,
    (
        Evict(1, is_clean=True),
        "paged",
    ): "evicts as clean tensor 'a', which kernels on the GPU write; allowed: tensors that they only read",
    (Evict(1, size_bytes=1000), "contiguous"): WHOLE,
    (Store(1), "paged"): "stores tensor 'a', which no kernel on the CPU uses; allowed: where some do",
    (Store(1), "contiguous"): "found move 'store' with contiguous memory; allowed: with paged",
    (
        KeepUncompressed(),
        "paged",
    ): "found move 'keep_uncompressed' with paged memory; allowed: with contig",
    (
        Exchange(1, 2),
        "contiguous",
    ): "found move 'exchange' with contiguous memory; allowed: with paged",
    (Access(1), "contiguous"): "found move 'access' with contiguous memory; allowed: with paged",
    (Access(1), "paged"): "uses tensor 'a', which lies in 'host'; allowed in place: no tier here",
}


@pytest.mark.parametrize("memory", ["paged", "contiguous"])
@pytest.mark.parametrize("move", EXAMPLES, ids=repr)
@pytest.mark.parametrize("delay", [0, 1000])
def test_every_memory_does_every_move_or_refuses_it(move, memory, delay):
    policy = Does(Planned(3, move, delay), memory=memory)
    if delay and not move.may_be_delayed:
        with pytest.raises(PlanError, match=f"delay_cycles 1000 of move '{move.name}'; allowed: 0"):
            run(policy)
        return
    message = REFUSED.get((move, memory))
    if message is None:
        records = run(policy)
        assert len(records.iterations) == 2
        return
    with pytest.raises(PolicyError) as error:
        run(policy)
    assert str(error.value).startswith(f"policy 'does', kernel 3 (Kernel3): {message}")


def test_the_examples_are_all_moves():
    assert {type(move) for move in EXAMPLES} == set(registered_moves().values())


def test_a_plan_can_say_all_that_a_reaction_can():
    moves = (
        Planned(1, Evict(0, until=1)),
        Planned(2, Await()),
        Planned(2, KeepUncompressed()),
        Planned(3, Protect(frozenset({0}))),
        Planned(3, Fetch(0)),
        Planned(3, Await(evictions=False, prefetches=True)),
    )
    planned = run(Does(*moves, memory="contiguous"))
    assert run(Does(*moves, reacts=True, memory="contiguous")) == planned
    assert kernel_times(planned) != kernel_times(run(Does(memory="contiguous")))


FIRST_VERSION = [
    {"kernel": 0, "tensor": 1, "target": "gpu"},
    {"kernel": 1, "tensor": 0, "target": "host", "delay_cycles": 7},
    {"kernel": 2, "tensor": 0, "target": "flash"},
    {"kernel": 3, "tensor": 2, "target": "none"},
    {"kernel": 3, "tensor": 1, "target": "none", "recompute": True},
]


@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": ")])
def test_files_of_the_first_version_are_read(tmp_path, separators):
    header = {"format": "g10sim-plan", "version": 1, "planner": "old", "trace": "", "moves": 5}
    # The hash that the first version wrote for these lines.
    header["sha256"] = "2a70f67d3c215b4a5405b7c0c734ffd82335dda1d2aff22133fe85d30fb9417d"
    path = tmp_path / "plan.g10p"
    lines = (json.dumps(record, separators=separators) for record in [header, *FIRST_VERSION])
    path.write_text("".join(line + "\n" for line in lines))
    moves = Fetch(1), Evict(0), Evict(0, "ssd"), Free(2), Drop(1)
    kernels, delays = (0, 1, 2, 3, 3), (0, 7, 0, 0, 0)
    assert load_plan(path, TRACE) == MigrationPlan(tuple(map(Planned, kernels, moves, delays)), "old")
    path.write_text(path.read_text().replace("old", "new"))
    with pytest.raises(PlanError, match="the file was changed after it was written"):
        load_plan(path)


@pytest.mark.parametrize(("wrong", "found"), [(12, "12"), (-1, "-1"), (3.5, "3.5"), ("w", "'w'")])
def test_one_wrong_tensor_among_many_is_named(wrong, found):
    trace = trace_of({f"w{number}*": 1 for number in range(12)}, [(1000, "w0", "")])
    assert Protect(frozenset(range(12))).flaw(trace, ()) is None
    problem = Protect(frozenset(range(11)) | {wrong}).flaw(trace, ())
    assert problem is not None
    assert problem.startswith(f"found unknown tensor {found}; allowed: 0 to 11")
