"""A policy whose answers somebody listens to."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from typing import Any, TypeAlias

from g10sim.policies.interface.policy import Policy, Trials

Listener: TypeAlias = Callable[[str, tuple[Any, ...], Any], Any]
"""Hears the name of a hook, what it was given, and its answer; returns the answer to go on with."""

_HOOKS = ("plan", "on_iteration_start", "on_kernel_start", "on_kernel_end", "choose_victims")


def observed(policy: Policy, listen: Listener) -> Policy:
    """Return a policy that does the same, with a listener to its plans, moves and victims."""
    own = type(policy)
    asked = [hook for hook in _HOOKS if hook == "plan" or getattr(own, hook) is not getattr(Policy, hook)]
    hooks: dict[str, Any] = {hook: _heard(own, hook, listen) for hook in asked}

    def settle(self: Policy, obstacle: Trials) -> Policy:
        chosen = own.settle(self, obstacle)
        return chosen if chosen is self else observed(chosen, listen)

    twin = copy(policy)
    twin.__class__ = type(own.__name__, (own,), {**hooks, "settle": settle, "__module__": own.__module__})
    return twin


def _heard(own: type[Policy], hook: str, listen: Listener) -> Callable[..., Any]:
    ask = getattr(own, hook)

    def heard(self: Policy, *given: Any) -> Any:
        return listen(hook, given, ask(self, *given))

    return heard
