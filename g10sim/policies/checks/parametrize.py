"""The checks as pytest tests."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from g10sim.policies.base import Policy
from g10sim.policies.checks.battery import CHECKS, exemptions
from g10sim.policies.checks.subject import Subject


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
