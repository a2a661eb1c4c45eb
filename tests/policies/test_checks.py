"""The battery of checks: what comes with g10sim passes it, and every check notices what it is there for."""

import random
from dataclasses import replace
from typing import ClassVar

import pytest

from g10sim.analysis.footprint import footprint_bytes, largest_working_set, peak_live_bytes
from g10sim.config.behaviour import BehaviourSpec
from g10sim.errors import PolicyError
from g10sim.policies.checks import (
    CHECKS,
    PolicyCheckError,
    Subject,
    check_policy,
    parametrize_with_policy_checks,
)
from g10sim.policies.checks.battery import run_check
from g10sim.policies.checks.subject import roomy, scenarios
from g10sim.policies.designs.base_uvm import BaseUvm
from g10sim.policies.interface.moves import Evict, Fetch
from g10sim.policies.interface.plan import MigrationPlan, Planned
from g10sim.policies.interface.policy import Policy
from g10sim.policies.interface.registry import available
from g10sim.sim.accounts import recorder
from g10sim.sim.engine import run

NEEDS_A_FILE = {"replay"}


LONG = {
    *("autoswap", "capuchin", "deepum", "g10_gds", "g10_host", "g10_paced", "pressure", "pressurefit"),
    *("ssdtrain", "stream", "tensile", "teraio", "vdnn_multi", "vdnnpp"),
}


def marks(policy):
    return pytest.mark.slow if policy in LONG else ()


@pytest.mark.parametrize(
    "policy",
    [pytest.param(policy, marks=marks(policy)) for policy in sorted(set(available()) - NEEDS_A_FILE)],
)
def test_policies_that_come_with_g10sim(policy):
    check_policy(policy)


def test_a_policy_that_needs_a_file_is_checked_with_one(tmp_path):
    path = tmp_path / "empty.g10p"
    path.write_text('{"format": "g10sim-plan", "version": 1, "moves": 0}\n')
    assert check_policy({"name": "replay", "plan_file": str(path)}) == {}


class Good(Policy):
    """Does nothing that is not allowed."""

    name, label, paper = "good", "Good", "none"


class Undocumented(Good):
    def __init__(self, *, secret=1):
        self.secret = secret


class KeepsNoParameters(Good):
    """Takes a ``depth`` and stores twice as much."""

    def __init__(self, *, depth=1):
        self.depth = 2 * depth


class NoYaml(Good):
    """Its ``places`` are no YAML."""

    def __init__(self, *, places=frozenset({1})):
        self.places = places


class EvictsWhatIsNeeded(Good):
    """Breaks a rule."""

    def on_kernel_start(self, view):
        kernel = view.trace.kernels[view.kernel]
        return [Evict(tensor) for tensor in kernel.inputs if view.resident_bytes(tensor)]


class RunsNothing(Good):
    """Supports no workload."""

    def plan_job(self, job, system, behaviour):
        from g10sim.errors import UnsupportedError

        raise UnsupportedError("not today")


class EvictsForNothing(Good):
    """Moves tensors out and in though there is room."""

    def plan_job(self, job, system, behaviour):
        moves = [Planned(1, Evict(t.id)) for t in job.trace.tensors if 1 not in job.trace.uses[t.id]]
        return MigrationPlan.ordered(moves)


class Exempt(EvictsForNothing):
    """Moves tensors for nothing and says why."""

    check_exemptions: ClassVar = {"no_stalls_with_room": "always offloads, as published"}


class Throws(Good):
    """Throws dice."""

    def on_kernel_start(self, view):
        return [Fetch(random.SystemRandom().randrange(len(view.trace.tensors)))]


class Remembers(Good):
    """Counts over workloads."""

    def __init__(self):
        self._count = 0

    def on_kernel_start(self, view):
        self._count += 1
        return [Fetch(self._count % len(view.trace.tensors))] if self._count > 200 else []


class ChangesItself(Good):
    """Changes its parameter ``look_ahead``."""

    def __init__(self, *, look_ahead=1):
        self.look_ahead = look_ahead

    def on_kernel_start(self, view):
        self.look_ahead += 1
        return ()


class CannotTravel(Good):
    """Holds what cannot be pickled."""

    def __init__(self):
        self._function = lambda: None


BAD = {
    "documented": Undocumented,
    "parameters_are_yaml": KeepsNoParameters,
    "runs": RunsNothing,
    "kernels_in_order": EvictsWhatIsNeeded,
    "no_stalls_with_room": EvictsForNothing,
    "deterministic": Throws,
    "reusable": Remembers,
    "picklable": CannotTravel,
    "inputs_unchanged": ChangesItself,
}


@parametrize_with_policy_checks(["base_uvm", "ssdtrain"])
def test_each_check_of_a_policy_can_be_a_test(subject, check):
    run_check(check, subject)


@pytest.mark.parametrize(("check", "policy"), BAD.items(), ids=BAD.keys())
def test_every_check_notices_a_bad_policy(check, policy):
    (found,) = [entry for entry in CHECKS if entry.name == check]
    with pytest.raises(PolicyCheckError, match=f"^policy 'good', check '{check}': "):
        run_check(found, Subject(policy))


@pytest.mark.parametrize("attribute", ["name", "label", "paper"])
def test_a_policy_without_a_key_a_label_or_a_paper_is_noticed(attribute):
    class Nameless(Good):
        """Does nothing that is not allowed."""

    setattr(Nameless, attribute, "")
    (check,) = [entry for entry in CHECKS if entry.name == "documented"]
    with pytest.raises(PolicyCheckError, match=f"has no '{attribute}'"):
        run_check(check, Subject(Nameless))


def test_moves_that_cost_no_time_are_noticed_all_the_same():
    class Cheats(Subject):
        def fresh(self, scenario):
            records = super().fresh(scenario)
            more = {column: moved + 1 for column, moved in records.iterations[-1].traffic.items()}
            return replace(records, iterations=(replace(records.iterations[-1], traffic=more),))

    (check,) = [entry for entry in CHECKS if entry.name == "no_stalls_with_room"]
    with pytest.raises(PolicyCheckError, match=r"moves \d+ bytes, page faults alone \d+; allowed: "):
        run_check(check, Cheats(BaseUvm))


def test_parameters_that_are_no_yaml_are_noticed():
    with pytest.raises(PolicyCheckError, match="parameters_are_yaml"):
        check_policy(type("Documented", (NoYaml,), {"__doc__": "Has places.", "__module__": __name__}))


def test_a_faster_iteration_than_its_kernels_is_noticed():
    (check,) = [entry for entry in CHECKS if entry.name == "never_faster_than_ideal"]

    class Cheats(Subject):
        def fresh(self, scenario):
            records = super().fresh(scenario)
            first = replace(records.iterations[0], ideal_cycles=10**15)
            return replace(records, iterations=(first, *records.iterations[1:]))

    with pytest.raises(PolicyCheckError, match=r"takes .* cycles, its kernels 1000000000000000"):
        run_check(check, Cheats(BaseUvm))


def test_a_later_iteration_may_be_no_faster_either():
    (check,) = [entry for entry in CHECKS if entry.name == "never_faster_than_ideal"]

    class Cheats(Subject):
        def fresh(self, scenario):
            records = super().fresh(scenario)
            last = records.iterations[-1]
            slow = replace(last, ideal_cycles=last.end - last.start + 1)
            return replace(records, iterations=(*records.iterations[:-1], slow))

    with pytest.raises(PolicyCheckError, match=r"iteration 1 takes \d+ cycles, its kernels \d+"):
        run_check(check, Cheats(BaseUvm))


def test_some_workloads_have_no_host_memory_at_all():
    memories = [one.system.host.memory for one in scenarios() if one.name.endswith("with no host memory")]
    assert memories
    assert set(memories) == {0}


def test_plans_that_do_not_fit_are_noticed():
    class PlansTooMuch(Good):
        """Plans for a kernel that is not there."""

        def plan_job(self, job, system, behaviour):
            return MigrationPlan((Planned(10**6, Fetch(0)),))

    (check,) = [entry for entry in CHECKS if entry.name == "plans_are_data"]
    with pytest.raises(Exception, match="found kernel 1000000"):
        run_check(check, Subject(PlansTooMuch))


def test_an_exemption_needs_a_check_and_a_reason(monkeypatch):
    assert list(check_policy(Exempt)) == ["no_stalls_with_room"]
    for wrong in ({"no_such_check": "why not"}, {"runs": " "}):
        monkeypatch.setattr(Exempt, "check_exemptions", wrong)
        with pytest.raises(PolicyCheckError, match=r"check_exemptions has .*; allowed: a reason for one of"):
            check_policy(Exempt)


def test_workloads_are_simulated_with_every_invariant_tested(monkeypatch):
    monkeypatch.setattr(recorder, "MOST_STEPS", 0)
    with pytest.raises(PolicyCheckError, match=r"transfers took [1-9][0-9]* steps"):
        Subject(Good).run(scenarios()[0])


def test_kernels_whose_pages_may_be_evicted_may_thrash_for_long(monkeypatch):
    monkeypatch.setattr(recorder, "MOST_STEPS", 0)
    one = scenarios()[0]
    run(one.workload, one.system, Good(), BehaviourSpec(running_tensors="evictable"), check=True)


def test_a_policy_that_is_not_there_cannot_be_checked():
    with pytest.raises(PolicyError, match="g11"):
        check_policy("g11")


def test_scenarios_have_twice_an_eighth_or_none_of_the_footprint_as_host_memory():
    for scenario in scenarios():
        footprint = footprint_bytes(scenario.workload.jobs[0].trace)
        host = {"much": 2 * footprint, "little": footprint // 8, "no": 0}
        words = scenario.name.partition(" with ")[2].removesuffix(" host memory")
        if words in host:
            assert scenario.system.host.memory == host[words]
            # What the largest kernel uses, with a page more for each tensor, or 60 % of what is alive.
            trace = scenario.workload.jobs[0].trace
            needed = largest_working_set(trace)[1] + 4096 * len(trace.tensors)
            assert scenario.system.gpu.memory == max(needed, peak_live_bytes(trace) * 6 // 10)
        elif scenario.system.host.kernel_access is not None:
            assert scenario.system.host.memory == 2 * footprint
        elif scenario.system.cpu is not None:
            assert scenario.system.host.memory == scenario.system.gpu.memory == 2 * footprint


def test_there_is_room_for_twice_the_footprint_or_half_more_than_is_alive():
    """A page more for each tensor, as tensors take whole pages; three iterations show what is steady."""
    for scenario in roomy():
        (job,) = scenario.workload.jobs
        pages = 4096 * len(job.trace.tensors)
        everything = 2 * footprint_bytes(job.trace) + pages
        alive = peak_live_bytes(job.trace) * 3 // 2 + pages
        assert scenario.system.gpu.memory == (everything if "everything" in scenario.name else alive)
        assert (scenario.system.host.memory, job.iterations) == (everything, 3)
