"""The moves that a policy may ask for, those that it is refused, and its view."""

import re

import pytest
from machines import GPG10, FollowPlan, iteration_times, kernel_times, machine, simulate, trace_of
from memories import FLASH, GPU, NONE

from g10sim.errors import PlanError, PolicyError
from g10sim.policies import base, moves
from g10sim.policies.designs.base_uvm import BaseUvm
from g10sim.policies.interface.moves import Evict, Fetch, Free, Protect
from g10sim.policies.interface.policy import Policy, Requirements
from g10sim.policies.interface.registry import check_class, create


def steps():
    """w is used at both ends; a makes b makes c."""
    return trace_of(
        {"w*": 2, "a": 2, "b": 2, "c": 2},
        [(10_000, "w", "a"), (10_000, "a", "b"), (10_000, "b", "c"), (10_000, "w c", "")],
    )


class Acts(Policy):
    """Does the given things at the given kernels of the first iteration."""

    name = "acts"

    def __init__(self, *, actions=None):
        self.actions = actions or {}

    def on_kernel_start(self, view):
        return self.actions.get(view.kernel, ()) if view.iteration == 0 else ()


class Nominates(Policy):
    """Always names the same victims."""

    name = "nominates"

    def __init__(self, *, victims=()):
        self.victims = victims

    def choose_victims(self, view):
        return self.victims


BEGINNING_OF_HOOK = re.compile(r" \(\S+, line \d+\)$")


def refusal(policy, *, system=None, behaviour=None, trace=None):
    with pytest.raises(PolicyError) as error:
        simulate(trace or steps(), system or machine(), policy, behaviour)
    return BEGINNING_OF_HOOK.sub("", str(error.value))


def test_policy_of_twenty_lines_runs_by_its_path_and_beats_faulting():
    policy = create("lookahead:LookAhead")
    assert policy.parameters() == {"depth": 2}
    system = machine(6)
    ahead, faults = simulate(steps(), system, policy), simulate(steps(), system, BaseUvm())
    assert iteration_times(ahead)[1] < iteration_times(faults)[1]
    assert create({"name": "lookahead:LookAhead", "depth": 1}).parameters() == {"depth": 1}


def test_action_may_prefetch_evict_and_free():
    actions = {1: [Evict(0, "ssd")], 2: [Fetch(0), Free(1)]}
    records = simulate(steps(), machine(), Acts(actions=actions), GPG10, record=("kernels", "migrations"))
    moves = {
        (m.tensor, m.source, m.target)
        for m in records.migrations
        if m.cause.value in ("planned_eviction", "prefetch")
    }
    assert moves == {(0, GPU, FLASH), (0, FLASH, GPU)}
    # The freed tensor is touched first again.
    assert [kernel.first_touch_pages for kernel in records.kernels if kernel.iteration == 1] == [2, 0, 0, 0]


def test_plan_comes_before_the_actions_of_the_same_kernel():
    class Both(FollowPlan):
        """Plans a prefetch and frees what the plan has queued."""

        def on_kernel_start(self, view):
            seen.append(view.in_transfer_bytes(3))
            return ()

    seen = []
    simulate(steps(), machine(), Both(moves=[(0, 3, GPU)]), iterations=1)
    assert seen[0] == 2000


def test_evicting_what_the_kernel_needs_is_refused():
    assert refusal(Acts(actions={1: [Evict(1)]})) == (
        "policy 'acts', kernel 1 (Kernel1): evicts tensor 'a', which the running kernel needs; "
        "allowed: tensors that it does not need"
    )
    assert refusal(FollowPlan(moves=[(3, 0, FLASH)])) == (
        "policy 'follow_plan', kernel 3 (Kernel3): evicts tensor 'w', which the running kernel needs; "
        "allowed: tensors that it does not need"
    )


def test_evicting_what_the_kernel_needs_is_allowed_where_its_pages_may_leave():
    records = simulate(steps(), machine(), Acts(actions={1: [Evict(1)]}), GPG10)
    assert records.iterations[0].traffic["gpu_to_host_bytes"] == 2000


@pytest.mark.parametrize("action", [Fetch(4), Evict(-1), Free(99), Fetch("a"), Free(None)])
def test_unknown_tensors_are_refused(action):
    assert refusal(Acts(actions={2: [action]})) == (
        f"policy 'acts', kernel 2 (Kernel2): found unknown tensor {action.tensor!r}; allowed: 0 to 3 "
        "(the trace has 4 tensors)" + ("" if type(action.tensor) is int else ", as int")
    )


@pytest.mark.parametrize("target", [GPU, NONE, "disk", "flash"])
def test_eviction_to_nowhere_is_refused(target):
    assert refusal(Acts(actions={1: [Evict(0, target)]})) == (
        f"policy 'acts', kernel 1 (Kernel1): found unknown tier {target!r}; allowed: host, ssd"
    )


@pytest.mark.parametrize(("kernel", "tensor", "name"), [(1, 0, "w"), (2, 2, "b"), (3, 3, "c")])
def test_freeing_what_will_be_read_is_refused(kernel, tensor, name):
    assert refusal(Acts(actions={kernel: [Free(tensor)]})) == (
        f"policy 'acts', kernel {kernel} (Kernel{kernel}): frees tensor '{name}', which will be read again; "
        "allowed: dead tensors"
    )


@pytest.mark.parametrize("action", [None, 3, "prefetch", PlanError("no action")])
def test_other_actions_are_refused(action):
    assert refusal(Acts(actions={0: [action]})) == (
        f"policy 'acts', kernel 0 (Kernel0): found {action!r}; allowed: moves, such as Fetch(tensor) and "
        "Evict(tensor)"
    )


def test_hook_that_raises_is_named():
    class Raises(Policy):
        """Raises when the second kernel starts."""

        name = "raises"

        def on_kernel_start(self, view):
            return [] if view.kernel == 0 else [][1]

    line = Raises.on_kernel_start.__code__.co_firstlineno + 1
    assert refusal(Raises()) == (
        "policy 'raises', kernel 1: on_kernel_start raised IndexError: list index out of range "
        f"({__file__}, line {line}, in on_kernel_start)"
    )


def test_place_of_an_error_is_said_from_the_inside_out():
    def inner():
        return 1 // 0

    class Raises(Policy):
        """Raises in a function that it calls."""

        name = "raises"

        def on_kernel_end(self, view):
            return inner()

    first, outer = inner.__code__.co_firstlineno + 1, Raises.on_kernel_end.__code__.co_firstlineno + 1
    assert refusal(Raises()).endswith(
        f" ({__file__}, line {first}, in inner; from {__file__}, line {outer}, in on_kernel_end)"
    )


@pytest.mark.parametrize(
    ("answer", "same"), [(None, ()), (Evict(0), (Evict(0),)), (iter([Evict(0)]), (Evict(0),))]
)
def test_nothing_and_a_single_move_are_answers_too(answer, same):
    one, other = (simulate(steps(), machine(), Acts(actions={1: each})) for each in (answer, same))
    assert one.iterations[0].traffic == other.iterations[0].traffic
    assert kernel_times(one) == kernel_times(other)


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("on_kernel_begin", "on_kernel_end"),
        ("on_iteration_begin", "on_iteration_start"),
        ("choose_victim", "choose_victims"),
        ("requirement", "requirements"),
    ],
)
def test_misspelt_hooks_and_attributes_are_refused(name, near):
    policy = type("Misspelt", (Policy,), {"__doc__": "Is never asked.", "name": "misspelt", name: None})()
    assert refusal(policy).startswith(
        f"policy 'misspelt': found '{name}', which nobody asks (did you mean '{near}'?); allowed: "
    )


@pytest.mark.parametrize("given", [{}, {"name": ""}, {"name": 7}])
def test_a_class_without_a_name_is_called_by_that_of_the_class(given):
    policy = type("Misspelt", (Policy,), {"choose_victim": None, **given})
    with pytest.raises(PolicyError, match=r"^policy 'Misspelt': (found 'choose_victim'|name: found)"):
        check_class(policy)


def test_hooks_that_a_class_leaves_alone_answer_nothing():
    """A class may add to what the one it is derived from answers."""
    for hook in ("on_kernel_start", "on_kernel_end", "on_out_of_memory", "state"):
        assert tuple(getattr(Policy(), hook)(None)) == ()


def test_other_names_are_free():
    policy = type(
        "Own", (Policy,), {"__doc__": "Has names of its own.", "name": "own", "order": 3, "rank": 4}
    )()
    assert simulate(steps(), machine(), policy).iterations


@pytest.mark.parametrize("lazily", [False, True])
def test_victim_hook_that_raises_is_named(lazily):
    class Raises(Policy):
        """Raises when asked for victims, at once or when they are read."""

        name = "raises"

        def choose_victims(self, view):
            return (missing[tensor] for tensor in (0,)) if lazily else missing[0]

    missing = {}
    line = Raises.choose_victims.__code__.co_firstlineno + 1
    assert refusal(Raises(), system=machine(4)) == (
        "policy 'raises', kernel 1: choose_victims raised KeyError: 0 "
        f"({__file__}, line {line}, in {'<genexpr>' if lazily else 'choose_victims'})"
    )


def test_planner_that_raises_is_named():
    class Raises(Policy):
        """Cannot plan."""

        name = "raises"

        def plan_job(self, job, system, behaviour):
            return 1 // 0

    assert refusal(Raises()).startswith("policy 'raises': plan raised ZeroDivisionError: ")


def test_moves_of_bundled_designs_are_looked_at_where_a_run_is_checked(monkeypatch):
    monkeypatch.setattr(Acts, "__module__", "g10sim.policies.designs.acts")
    assert "found unknown tensor 4; allowed: 0 to 3" in refusal(Acts(actions={2: [Fetch(4)]}))


def test_errors_of_the_package_pass_through_hooks_unchanged():
    class Refuses(Policy):
        """Says itself what is wrong."""

        name = "refuses"

        def on_kernel_start(self, view):
            raise PlanError("plan.g10p: line 3: found no such thing")

    with pytest.raises(PlanError, match=r"^plan\.g10p: line 3: found no such thing$"):
        simulate(steps(), machine(), Refuses())


def test_plan_with_unknown_kernel_or_tensor_is_refused():
    with pytest.raises(PlanError, match=r"^plan, move 0: found kernel 5; allowed: 0 to 4 \(the"):
        simulate(steps(), machine(), FollowPlan(moves=[(5, 0, GPU)]))
    with pytest.raises(PlanError, match=r"^plan, move 1: found unknown tensor 4; allowed: 0 to 3 \(the"):
        simulate(steps(), machine(), FollowPlan(moves=[(0, 0, GPU), (4, 4, GPU)]))


def victims_of(policy, trace, system, **options):
    records = simulate(trace, system, policy, record=("kernels", "migrations"), **options)
    return [(m.tensor, m.size_bytes // 1000) for m in records.migrations if m.cause.value == "making_room"]


def three_weights():
    """Three weights in turn, then room for two pages is needed."""
    return trace_of(
        {"u*": 2, "v*": 2, "w*": 2, "x": 2},
        [(1000, "u", ""), (1000, "v", ""), (1000, "w", ""), (1000, "", "x")],
    )


@pytest.mark.parametrize(
    ("victims", "expected"),
    [(None, [(0, 2)]), ((), [(0, 2)]), ((2,), [(2, 2)]), ((1, 2), [(1, 2)]), ((3,), None)],
)
def test_named_victims_go_first_and_recency_decides_without_names(victims, expected):
    policy = Nominates(victims=victims)
    if expected is None:
        assert refusal(policy, system=machine(6), trace=three_weights()) == (
            "policy 'nominates', kernel 3: victim 'x' is in the running kernel's working set; "
            "allowed: tensors that it does not need"
        )
    else:
        assert victims_of(policy, three_weights(), machine(6), iterations=1) == expected


def test_victims_beyond_the_named_ones_go_by_recency():
    trace = trace_of(
        {"u*": 2, "v*": 2, "w*": 2, "x": 4},
        [(1000, "u", ""), (1000, "v", ""), (1000, "w", ""), (1000, "", "x")],
    )
    assert victims_of(Nominates(victims=(2,)), trace, machine(6), iterations=1) == [(2, 2), (0, 2)]


def test_victim_that_is_no_tensor_is_refused():
    assert refusal(Nominates(victims=(7,)), system=machine(4)) == (
        "policy 'nominates', kernel 1: victim 7 is no tensor of the trace; allowed: 0 to 3"
    )


def test_victim_that_is_no_number_is_refused():
    assert refusal(Nominates(victims=("w",)), system=machine(4)) == (
        "policy 'nominates', kernel 1: victim 'w' is no tensor of the trace; allowed: 0 to 3, as int"
    )


def test_protected_tensors_are_not_pushed_out_by_prefetches():
    # u is older, but protected from the prefetch of w.
    trace = trace_of(
        {"u*": 2, "v*": 2, "w*": 2}, [(1000, "u", ""), (10_000, "v", ""), (50_000, "", ""), (1000, "u w", "")]
    )
    actions = {2: [Protect(frozenset({0, 2})), Fetch(2)]}
    records = simulate(trace, machine(4), Acts(actions=actions), iterations=1)
    assert kernel_times(records)[3] == 1000
    careless = simulate(trace, machine(4), Acts(actions={2: [Fetch(2)]}), iterations=1)
    assert careless.kernels[3].fault_pages["host_fault_pages"] == 2


def test_pinned_tensors_are_not_pushed_out_by_prefetches_whatever_is_protected():
    trace = trace_of({"u*": 2, "w*": 2}, [(1000, "u", ""), (50_000, "u", ""), (1000, "w", "")])
    actions = {1: [Protect(frozenset({1})), Fetch(1)]}
    records = simulate(
        trace, machine(3), Acts(actions=actions), iterations=1, record=("kernels", "migrations")
    )
    during = records.kernels[1]
    assert [m for m in records.migrations if m.tensor == 0 and during.start <= m.start < during.end] == []


def test_former_modules_have_the_names_that_they_had():
    names = ("Policy", "JointPolicy", "PolicyView", "Requirements", "Place", "PlannedPlace", "Compressed")
    assert [name for name in (*names, "Trials") if not hasattr(base, name)] == []
    assert (base.Policy, moves.Evict) == (Policy, Evict)


class Watches(Policy):
    """Writes down what it sees."""

    name = "watches"

    def __init__(self, *, look=None):
        self.look = look
        self.seen = []

    def on_kernel_start(self, view):
        self.seen.append(self.look(view))
        return ()


def seen_by(look, trace=None, system=None, **options):
    policy = Watches(look=look)
    simulate(trace or steps(), system or machine(), policy, **options)
    return policy.seen


def test_view_tells_where_tensors_are():
    def look(view):
        in_tiers = [[view.bytes_in(t, tier) for tier in ("host", "ssd")] for t in (0, 1)]
        return [(view.resident_bytes(t), *in_tiers[t], view.in_transfer_bytes(t)) for t in (0, 1)]

    seen = seen_by(look, system=machine(4), iterations=1)
    assert seen[0] == [(0, 0, 2000, 0), (0, 0, 0, 0)]
    assert seen[1] == [(2000, 0, 0, 0), (2000, 0, 0, 0)]
    assert seen[2] == [(0, 2000, 0, 0), (0, 0, 0, 0)]


def test_deprecated_questions_have_the_answers_of_those_that_take_a_tier():
    def look(view):
        former = [view.host_free_bytes, *map(view.host_bytes, range(4)), *map(view.flash_bytes, range(4))]
        in_tiers = [view.bytes_in(t, tier) for tier in ("host", "ssd") for t in range(4)]
        return former, [view.free_bytes_of("host"), *in_tiers]

    seen = seen_by(look, system=machine(4))
    assert all(former == named for former, named in seen)
    assert any(sum(former[1:5]) for former, _ in seen)
    assert any(sum(former[5:]) for former, _ in seen)


def test_view_tells_time_and_room():
    def look(view):
        return view.iteration, view.kernel, view.now_cycles, view.free_bytes, view.free_bytes_of("host")

    seen = seen_by(look)
    assert seen[:2] == [(0, 0, 0, 1_000_000, 1_000_000), (0, 1, 20_000, 996_000, 1_000_000)]
    assert [entry[:2] for entry in seen[4:]] == [(1, 0), (1, 1), (1, 2), (1, 3)]


def test_view_tells_uses_and_deaths():
    seen = seen_by(lambda view: [view.next_use(t) for t in range(4)], iterations=1)
    # w is used by kernels 0 and 3 and next in the coming iteration; a by 0 and 1; b by 1 and 2; c by 2 and 3.
    assert seen == [[3, 1, 1, 2], [2, 8, 1, 1], [1, 8, 8, 1], [1, 8, 8, 8]]
    dead = seen_by(lambda view: [view.is_dead(t) for t in range(4)], iterations=1)
    assert dead == [[False] * 4, [False] * 4, [False, True, False, False], [False, True, True, False]]


def test_view_tells_needs_and_sizes_in_whole_pages():
    trace = trace_of({"a": 1, "b": 2}, [(1000, "", "a"), (1000, "", "b")], page=999)
    assert seen_by(lambda view: [view.size_bytes(t) for t in (0, 1)], trace, iterations=1)[0] == [1000, 2000]
    assert seen_by(lambda view: [view.is_needed(t) for t in (0, 1)], trace, iterations=1) == [
        [True, False],
        [False, True],
    ]


def test_view_cannot_be_written():
    def look(view):
        view.kernel = 3

    with pytest.raises(PolicyError, match="on_kernel_start raised AttributeError"):
        seen_by(look)


class Looks(Policy):
    """Notes what it sees, and when it is asked."""

    name = "looks"

    def __init__(self):
        self.seen = []

    def on_iteration_start(self, view):
        self.seen.append((view.iteration, view.kernel))

    def on_kernel_start(self, view):
        self.seen.append((view.iteration, view.kernel, view.free_bytes_of("host"), view.free_bytes_of("cxl")))
        return ()


def test_an_iteration_starts_at_its_first_kernel_and_a_tier_that_there_is_not_has_no_room():
    policy = Looks()
    simulate(steps(), machine(host_pages=7), policy)
    kernels = [[(iteration, kernel, 7000, 0) for kernel in range(4)] for iteration in range(2)]
    assert policy.seen == [(0, 0), *kernels[0], (1, 0), *kernels[1]]


def test_copies_are_kept_in_paged_memory_alone():
    with pytest.raises(
        ValueError, match="keeps_copies: found with placement 'contiguous'; allowed: with 'paged'"
    ):
        Requirements(keeps_copies=True, placement="contiguous")
