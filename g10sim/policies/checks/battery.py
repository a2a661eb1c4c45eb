"""The checks, one function each; its docstring says what a policy must do."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml

from g10sim.config.behaviour import BehaviourSpec
from g10sim.errors import PolicyError, UnsupportedError
from g10sim.policies.checks.subject import PolicyCheckError, Scenario, Subject, roomy, scenarios
from g10sim.policies.interface.parameters import Declared
from g10sim.policies.interface.plan_format import load_plan, save_plan
from g10sim.policies.interface.policy import Policy, Requirements
from g10sim.policies.interface.registry import create
from g10sim.records import RunRecords
from g10sim.sim.preparation import as_recorded
from g10sim.trace.workload import Workload


@dataclass(frozen=True)
class Check:
    """One check: ``name``, what a policy must do, and the function that raises PolicyCheckError."""

    name: str
    rule: str
    run: Callable[[Subject], None]


def check_policy(policy: type[Policy] | str | Mapping[str, Any]) -> dict[str, str]:
    """Run every check on a policy: a class, a key, ``module:Class``, or a mapping with its parameters.

    Returns the reasons of the checks that it is exempt from. Raises PolicyCheckError for the first check that
    it does not pass, and for an exemption from a check that does not exist, or without a reason.
    """
    subject = Subject(policy)
    exempt = exemptions(subject.cls)
    for check in CHECKS:
        if check.name not in exempt:
            run_check(check, subject)
    return exempt


def run_check(check: Check, subject: Subject) -> None:
    """Run one check. Raises PolicyCheckError that names policy, check and rule."""
    try:
        check.run(subject)
    except PolicyCheckError as error:
        raise PolicyCheckError(
            f"policy '{subject.cls.name}', check '{check.name}': {error}; allowed: {check.rule}"
        ) from error


def exemptions(cls: type[Policy]) -> dict[str, str]:
    """Return what a policy is exempt from, with reasons. Raises PolicyCheckError for what is no exemption."""
    known = [check.name for check in CHECKS]
    for name, reason in cls.check_exemptions.items():
        if name not in known or not isinstance(reason, str) or not reason.strip():
            raise PolicyCheckError(
                f"policy '{cls.name}': check_exemptions has {name!r}: {reason!r}; allowed: a reason for one "
                f"of {', '.join(known)}"
            )
    return dict(cls.check_exemptions)


def _require(holds: bool, found: str) -> None:
    if not holds:
        raise PolicyCheckError(found)


def _supported(subject: Subject) -> list[tuple[Scenario, RunRecords]]:
    ran = [(scenario, subject.fresh(scenario)) for scenario in scenarios()]
    return [(scenario, records) for scenario, records in ran if records is not None]


def _recorded(subject: Subject, scenario: Scenario) -> Workload:
    return as_recorded(scenario.workload, scenario.system, subject.make())


def _runs(subject: Subject) -> None:
    """Workloads are supported, one at least, and none breaks an invariant (capacity, data, conservation)."""
    _require(bool(_supported(subject)), "supports none of the workloads")


def _kernels_in_order(subject: Subject) -> None:
    """Every kernel of every iteration runs once, in order, after the one before it."""
    for scenario, records in _supported(subject):
        for number, job in enumerate(_recorded(subject, scenario).jobs):
            ran = [(k.iteration, k.kernel) for k in records.kernels if k.job == number]
            count = len(job.trace.kernels)
            iterations = sum(record.job == number for record in records.iterations)
            wanted = [(i, k) for i in range(iterations) for k in range(count)]
            _require(ran == wanted, f"{scenario.name}: job {number} ran {len(ran)} kernels of {len(wanted)}")


def _never_faster_than_ideal(subject: Subject) -> None:
    """No iteration takes less time than its kernels, except for those that the CPU takes over."""
    for scenario, records in _supported(subject):
        offloads = _recorded(subject, scenario) is not scenario.workload
        for record in records.iterations:
            least = record.compute_cycles if offloads else record.ideal_cycles
            took, iteration = record.end - record.start, f"{scenario.name}: iteration {record.iteration}"
            _require(took >= least, f"{iteration} takes {took} cycles, its kernels {least}")


class _OwnAddresses(Policy):
    """Base UVM whose tensors have separate addresses: new ones fault in every iteration."""

    name = "own_addresses"
    requirements = Requirements(addresses="own")


def _no_stalls_with_room(subject: Subject) -> None:
    """With GPU memory for all that is alive no more moves, and no more waits, than with page faults alone."""
    plain = Subject(_OwnAddresses if subject.make().requirements.addresses == "own" else Policy)
    for scenario in roomy():
        records, yardstick = subject.fresh(scenario), plain.fresh(scenario)
        if records is None or yardstick is None:
            continue
        last, slowest = records.iterations[-1], yardstick.iterations[-1]
        moved, allowed = (sum(iteration.traffic.values()) for iteration in (last, slowest))
        _require(moved <= allowed, f"{scenario.name}: moves {moved} bytes, page faults alone {allowed}")
        longest, took = slowest.end - slowest.start, last.end - last.start
        _require(took <= longest, f"{scenario.name}: takes {took} cycles, with page faults alone {longest}")


def _compare(subject: Subject, policy: Policy | None, found: str, among: Sequence[Scenario]) -> None:
    """Require that an instance (None: a new one for each workload) does as fresh ones do."""
    for scenario in among:
        same = subject.run(scenario, policy) == subject.fresh(scenario)
        _require(same, f"{scenario.name}: {found}")


def _deterministic(subject: Subject) -> None:
    """Equal workloads give equal records, every time."""
    _compare(subject, None, "two runs differ", scenarios())


def _reusable(subject: Subject) -> None:
    """Instances that have simulated other workloads do as fresh ones do."""
    _compare(subject, subject.make(), "a used instance differs from a fresh one", scenarios())


def _inputs_unchanged(subject: Subject) -> None:
    """Traces, system and parameters are not changed."""
    for scenario in scenarios():
        subject.fresh(scenario)
        changed = scenario.name in subject.changing
        _require(not changed, f"{scenario.name}: changed trace, system or parameters")


def _picklable(subject: Subject) -> None:
    """Instances can be sent to another process and do there as they would here."""
    try:
        copy = pickle.loads(pickle.dumps(subject.make()))
    except Exception as error:
        raise PolicyCheckError(f"cannot be pickled: {type(error).__name__}: {error}") from error
    _compare(subject, copy, "a pickled copy differs", scenarios()[:3])


def _parameters_are_yaml(subject: Subject) -> None:
    """Parameters are stored unchanged under their names, and come back from YAML as they were."""
    policy = subject.make()
    parameters = policy.parameters()
    spec = {"name": subject.name, **parameters}
    try:
        read = yaml.safe_load(yaml.safe_dump(spec))
    except yaml.YAMLError as error:
        raise PolicyCheckError(f"parameters {parameters} cannot be written as YAML") from error
    _require(read == spec, f"parameters {parameters} come back from YAML as {read}")
    try:
        again = create(read).parameters()
    except PolicyError as error:
        raise PolicyCheckError(str(error)) from error
    _require(again == parameters, f"made again from {parameters} it has {again}")


def _documented(subject: Subject) -> None:
    """Key, label, citation, and a docstring or description of every parameter are there."""
    cls = subject.cls
    for attribute in ("name", "label", "paper"):
        _require(bool(getattr(cls, attribute)), f"has no '{attribute}'")
    bases = cls.__mro__[: cls.__mro__.index(Policy)]
    text = "\n".join(base.__doc__ or "" for base in bases)
    _require(bool(text.strip()), "has no docstring")
    described = cls.parameter_descriptions() if issubclass(cls, Declared) else {}
    for parameter in cls.parameter_names():
        is_described = bool(described.get(parameter)) or parameter in text
        _require(is_described, f"its docstring does not name the parameter '{parameter}'")


def _plans_are_data(subject: Subject) -> None:
    """Plans fit their traces and can be saved and loaded."""
    with TemporaryDirectory() as directory:
        path = Path(directory) / "plan.g10p"
        for scenario in scenarios():
            try:
                plans = subject.make().plan(scenario.workload, scenario.system, BehaviourSpec())
            except UnsupportedError:
                continue
            for job, plan in zip(scenario.workload.jobs, plans, strict=True):
                if plan is not None:
                    save_plan(plan, path, job.trace)
                    same = load_plan(path, job.trace) == plan
                    _require(same, f"{scenario.name}: the plan changes when it is saved")


CHECKS: tuple[Check, ...] = tuple(
    Check(function.__name__.strip("_"), " ".join((function.__doc__ or "").split()).rstrip("."), function)
    for function in (
        _documented,
        _parameters_are_yaml,
        _runs,
        _kernels_in_order,
        _never_faster_than_ideal,
        _no_stalls_with_room,
        _deterministic,
        _reusable,
        _picklable,
        _inputs_unchanged,
        _plans_are_data,
    )
)


def parametrize_with_policy_checks(policies: Iterable[type[Policy] | str | Mapping[str, Any]]) -> Any:
    """Return a decorator that gives a test the arguments ``subject`` and ``check``, for all of both.

    The test body is ``check.run(subject)``. Checks that a policy is exempt from are skipped with its reason.
    Raises ImportError without pytest, PolicyError for a policy that cannot be made.
    """
    import pytest

    cases = []
    for policy in policies:
        subject = Subject(policy)
        exempt = exemptions(subject.cls)
        for check in CHECKS:
            reason = exempt.get(check.name)
            marks = (pytest.mark.skip(reason=reason),) if reason else ()
            cases.append(pytest.param(subject, check, id=f"{subject.cls.name}-{check.name}", marks=marks))
    return pytest.mark.parametrize(("subject", "check"), cases)
