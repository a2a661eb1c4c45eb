"""Calls of a policy's hooks: whatever goes wrong in one is the policy's error."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from g10sim.errors import G10SimError, PolicyError
from g10sim.policies.base import Policy

Answer = TypeVar("Answer")


def asked(policy: Policy, hook: str, ask: Callable[[], Answer], kernel: int | None = None) -> Answer:
    """Return what a hook answers. Raises PolicyError, naming policy, kernel and hook, for one that fails."""
    try:
        return ask()
    except G10SimError:
        raise
    except Exception as error:
        where = f"policy '{policy.name}'" + ("" if kernel is None else f", kernel {kernel}")
        raise PolicyError(f"{where}: {hook} raised {type(error).__name__}: {error}") from error
