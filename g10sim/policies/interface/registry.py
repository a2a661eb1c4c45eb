"""Finding policies: built-in ones, plug-ins and ``module:Class`` names; refusing classes with mistakes."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from g10sim.errors import (
    ConfigError,
    PolicyError,
    choices_text,
    is_bundled,
    is_raised_by_plug_in,
    nearest,
    not_found,
    own_lines,
)
from g10sim.looks import Look
from g10sim.policies.interface.contract import register_class
from g10sim.policies.interface.jobs import JobPolicy, PolicyPerJob
from g10sim.policies.interface.policy import Policy, Requirements

ENTRY_POINT_GROUP = "g10sim.policies"

PolicyClass = TypeVar("PolicyClass", bound=type[Policy])


_POLICIES: dict[str, type[Policy]] = {}
_PLUG_INS: set[str] = set()
_TRUSTS = ContextVar("_TRUSTS", default=True)

_HOOK = "on_"
_CLOSE = 0.8
_TYPES: Mapping[str, tuple[type, str]] = {
    "name": (str, "text"),
    "label": (str, "text"),
    "paper": (str, "text"),
    "look": (Look, "g10sim.looks.Look(...)"),
    "check_exemptions": (Mapping, "a mapping of checks to reasons"),
}


class Unread(Policy):
    """A stand-in for a plug-in whose code is not to be loaded; it can be made, with any parameters."""

    name = "unread"


@contextmanager
def without_plug_ins() -> Iterator[None]:
    """Let ``module:Class`` name a stand-in: no code is imported that a file names."""
    token = _TRUSTS.set(False)
    try:
        yield
    finally:
        _TRUSTS.reset(token)


def register_policy(policy: PolicyClass) -> PolicyClass:
    """Class decorator that makes a policy available under its ``name``.

    Raises PolicyError when another class already has the name, or it has none.
    """
    register_class(_POLICIES, policy, "policy", "policies")
    return policy


def available() -> dict[str, type[Policy]]:
    """Return all policies by name: built-in, registered by decorator, and installed plug-ins."""
    import_built_in()
    known = dict(_POLICIES)
    for point in _plugins():
        if point.name not in known:
            known[point.name] = _checked(_load(point.value, point.name), point.value)
    return dict(sorted(known.items()))


@cache
def _modules() -> tuple[str, ...]:
    """Names of the modules of designs: a file each, or several in a folder."""
    root = Path(__file__).parents[1] / "designs"
    files = (path.relative_to(root) for path in sorted(root.rglob("*.py")) if path.stem != "__init__")
    return tuple(".".join(["g10sim.policies.designs", *file.with_suffix("").parts]) for file in files)


@cache
def import_built_in() -> None:
    """Import every policy that comes with g10sim."""
    for module in _modules():
        importlib.import_module(module)


@cache
def _import_one(name: str) -> None:
    """Import the module of a policy that comes with g10sim; all where none is called like it."""
    for module in _modules():
        if module.endswith(f".{name}"):
            importlib.import_module(module)
    if name not in _POLICIES:
        import_built_in()


@cache  # the metadata of every installed package are read for it
def _plugins() -> tuple[EntryPoint, ...]:
    return tuple(entry_points(group=ENTRY_POINT_GROUP))


def create(spec: str | Mapping[str, Any]) -> Policy:
    """Make a policy from its name, ``module:Class``, or a mapping of ``name`` and parameters.

    Raises PolicyError for a name that is not known or a plug-in that cannot be loaded, ConfigError for
    parameters that it does not take or refuses.
    """
    if isinstance(spec, str):
        spec = {"name": spec}
    parameters = dict(spec)
    name = parameters.pop("name", None)
    if not isinstance(name, str):
        raise ConfigError(f"policy {dict(spec)!r}: found no name; allowed: a mapping with the key 'name'")
    policy = find(name)
    if policy is Unread:
        return policy()
    known = policy.parameter_names()
    for key in parameters:
        if key not in known:
            allowed = not_found(key, known) if known else "; allowed: no parameters"
            raise ConfigError(f"policy '{name}': unknown parameter '{key}'{allowed}")
    try:
        made = policy(**parameters)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"policy '{name}': {error}{own_lines(error)}") from error
    _check_requirements(made, name)
    _check_stored(made, name, parameters)
    return made


def _check_requirements(policy: Policy, name: str) -> None:
    """Refuse requirements that cannot be read, or are of another type. Raises PolicyError."""
    try:
        found: object = policy.requirements
    except BaseException as error:
        if not is_raised_by_plug_in(error):
            raise
        raise PolicyError(f"policy '{name}': requirements: {error}{own_lines(error)}") from error
    if not isinstance(found, Requirements):
        raise PolicyError(f"policy '{name}': requirements: found {found!r}; allowed: Requirements(...)")


def _check_stored(policy: Policy, name: str, given: Mapping[str, Any]) -> None:
    """Refuse a policy that does not keep its parameters under their names. Raises PolicyError."""
    for key in policy.parameter_names():
        if not hasattr(policy, key) or (key in given and getattr(policy, key) != given[key]):
            found = repr(getattr(policy, key)) if hasattr(policy, key) else "no such attribute"
            place, allowed = f"policy '{name}': parameter '{key}'", f"what was given, stored as self.{key}"
            raise PolicyError.at(place, found, allowed)


def find(name: str) -> type[Policy]:
    """Return the policy class of a name or ``module:Class``. Raises PolicyError."""
    if ":" in name:
        return _checked(_load(name, name), name) if _TRUSTS.get() else Unread
    _import_one(name)
    if name in _POLICIES:
        return _POLICIES[name]
    known = available()
    if name not in known:
        raise PolicyError(f"unknown policy '{name}'{not_found(name, known)}, or module:Class")
    return known[name]


def module_of(name: str) -> str:
    """Return the name of the module with a policy; that of a plug-in without importing it.

    Raises PolicyError for an unknown policy.
    """
    if ":" not in name and name not in _POLICIES:
        _import_one(name)
        points = {point.name: point.value for point in _plugins()} if name not in _POLICIES else {}
        name = points.get(name, name)
    return name.partition(":")[0] if ":" in name else find(name).__module__


def has_plug_ins() -> bool:
    """Return whether this process has imported code of plug-ins."""
    return bool(_PLUG_INS)


def _load(path: str, name: str) -> object:
    _PLUG_INS.add(path)
    module, _, attribute = path.partition(":")
    try:
        found: object = importlib.import_module(module)
        for part in attribute.split("."):
            found = getattr(found, part)
    except BaseException as error:
        if not is_raised_by_plug_in(error):
            raise
        said = f"{type(error).__name__}: {error}{own_lines(error)}"
        if isinstance(error, AttributeError) and inspect.ismodule(error.obj):
            said += not_found(attribute, _policies_in(error.obj))
        if isinstance(error, TypeError) and Requirements.__name__ in str(error):
            said += f"; allowed: {choices_text(inspect.signature(Requirements).parameters)}"
        raise PolicyError(f"policy plug-in '{name}': cannot load {path}: {said}") from error
    return found


def _policies_in(module: ModuleType) -> list[str]:
    """Return the names of the policies that a module defines."""
    own = (value for value in vars(module).values() if inspect.isclass(value) and issubclass(value, Policy))
    return [policy.__name__ for policy in own if policy.__module__ == module.__name__]


def _checked(found: object, path: str) -> type[Policy]:
    if not (inspect.isclass(found) and issubclass(found, Policy)):
        raise PolicyError(f"policy plug-in '{path}': found {found!r}; allowed: a subclass of Policy")
    check_class(found)
    return found


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
    above = cls.__mro__[: cls.__mro__.index(base)]
    bases = (one for one in above if not is_bundled(one.__module__))
    return _public(dict.fromkeys(name for one in bases for name in vars(one)))


def _check_name(policy: type[Policy], name: str, known: list[str]) -> None:
    meant = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()
    if meant.startswith(_HOOK) or nearest(meant, known, _CLOSE):
        hooks = [hook for hook in known if hook.startswith(_HOOK)]
        near = nearest(meant, hooks) or nearest(meant, known)
        allowed = f"the names of Policy ({', '.join(hooks)}, ...), or another name"
        raise PolicyError.at(f"policy '{_called(policy)}'", f"'{name}', which nobody asks{near}", allowed)


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
