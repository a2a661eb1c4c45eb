"""Names that a policy class gives itself: those that nobody asks, and values of another type."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches

from g10sim.errors import PolicyError
from g10sim.looks import Look
from g10sim.policies.interface.jobs import JobPolicy, PolicyPerJob
from g10sim.policies.interface.policy import Policy
from g10sim.registry import nearest

_HOOK = "on_"
_CLOSE = 0.8
_TYPES: Mapping[str, tuple[type, str]] = {
    "name": (str, "text"),
    "label": (str, "text"),
    "paper": (str, "text"),
    "look": (Look, "g10sim.looks.Look(...)"),
    "check_exemptions": (Mapping, "a mapping of checks to reasons"),
}


def check_class(policy: type[Policy]) -> None:
    """Refuse a policy whose class has a misspelt hook or attribute, or one of another type than allowed.

    A misspelt one would never be asked, without a word: a name that starts like a hook (``on_``) or is close
    to a public name of ``Policy``. Raises PolicyError with the nearest name, or with what is allowed.
    """
    known = _public(dir(Policy))
    for name in _own_names(policy, Policy):
        if name in known:
            _check_type(policy, name)
        else:
            _check_name(policy, name, known)
    if issubclass(policy, PolicyPerJob):
        asked = _public(dir(JobPolicy))
        for name in _own_names(policy.job_class, JobPolicy):
            if name not in asked:
                _check_name(policy, name, asked)


def _public(names: Iterable[str]) -> list[str]:
    return [name for name in names if not name.startswith("_")]


def _own_names(cls: type, base: type) -> list[str]:
    """Return the public names that a class and its bases up to ``base`` define outside g10sim."""
    bases = (
        one for one in cls.__mro__[: cls.__mro__.index(base)] if not one.__module__.startswith("g10sim.")
    )
    return _public(dict.fromkeys(name for one in bases for name in vars(one)))


def _check_name(policy: type[Policy], name: str, known: list[str]) -> None:
    meant = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()
    if meant.startswith(_HOOK) or get_close_matches(meant, known, 1, _CLOSE):
        hooks = [hook for hook in known if hook.startswith(_HOOK)]
        near = nearest(meant, hooks) or nearest(meant, known)
        raise PolicyError(
            f"policy '{_called(policy)}': found '{name}', which nobody asks{near}; "
            f"allowed: the names of Policy ({', '.join(hooks)}, ...), or another name"
        )


def _check_type(policy: type[Policy], name: str) -> None:
    found, intended = getattr(policy, name), getattr(Policy, name)
    if name in _TYPES:
        kind, allowed = _TYPES[name]
        is_wrong = not isinstance(found, kind | property)
    elif isinstance(intended, property):
        is_wrong, allowed = inspect.isroutine(found), "a value, or a method with @property"
    else:
        is_wrong, allowed = callable(intended) and not inspect.isroutine(found), "a method"
    if is_wrong:
        raise PolicyError(f"policy '{_called(policy)}': {name}: found {found!r}; allowed: {allowed}")


def _called(policy: type[Policy]) -> str:
    return policy.name if policy.name and isinstance(policy.name, str) else policy.__name__
