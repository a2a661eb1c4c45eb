"""The base class of moves, their register, and a job's memory as a move sees it."""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from types import NoneType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, Self, TypeAlias, TypeVar

from pydantic import ConfigDict

from g10sim.errors import PolicyError, choices_text
from g10sim.trace.model import Trace

if TYPE_CHECKING:
    from g10sim.policies.interface.moves import Evict
    from g10sim.policies.interface.policy import PolicyView

MemoryKind: TypeAlias = Literal["paged", "contiguous"]
_FEW = 8
"""Tensors of a move up to which they are looked at one by one."""
_TYPES: Mapping[str, tuple[tuple[type, ...], str]] = {
    "bool": ((bool,), "True or False"),
    "int": ((int,), "an int"),
    "float": ((float, int), "a number"),
    "str": ((str,), "text"),
    "None": ((NoneType,), "None"),
}
"""Types that options of moves are made of, with the values they allow, also in words."""


class MoveState(Protocol):
    """The job's memory as a move sees it: facts first, then the operations that moves are made of.

    Operations act on the memory at once and check nothing; ``Move.check`` comes before them.
    """

    @property
    def view(self) -> PolicyView:
        """Residency of tensors, the kernel that is about to start or running, and the trace."""

    @property
    def memory_kind(self) -> MemoryKind:
        """Kind of GPU memory that the job has."""

    @property
    def keeps_needed(self) -> bool:
        """Return True if the pages of tensors that the current kernel needs may not leave."""

    def was_away(self, tensor: int) -> bool:
        """Return True if what is on the GPU of a tensor, or some of it, came from a tier."""

    def drop_problem(self, tensor: int) -> str:
        """Say why a tensor cannot be computed again before its next use; empty if it can."""

    def fetch(self, tensor: int) -> None:
        """Queue what is elsewhere to come in, and what has no contents to be allocated."""

    def recall(self, tensor: int) -> None:
        """Keep what is still here of a tensor that was to be evicted."""

    def evict(self, move: Evict | int, target: str = "host", **options: Any) -> None:
        """Queue what is on the GPU to go to a tier, as the move says.

        A tensor with the target and the options of ``Evict`` is taken, too, for one release.
        """

    def discard(self, tensor: int) -> None:
        """Forget a tensor's contents, except for pages in transfer."""

    def drop(self, tensor: int) -> None:
        """Forget a tensor's contents, pages in transfer too, and have it computed again when it is read."""

    def protect(self, tensors: Collection[int]) -> None:
        """Keep prefetches from pushing out tensors until the next kernel starts."""

    def await_transfers(self, tensors: frozenset[int] | None, *, evictions: bool, prefetches: bool) -> None:
        """Let the kernel wait for transfers under way of these tensors (None: of all)."""

    def keep_uncompressed(self) -> None:
        """Leave tensors in host memory uncompressed unless compression has begun."""

    def use_in_place(self, tensor: int, tier: str) -> None:
        """Let the kernel that is about to start use what a tier has of a tensor where it lies."""

    def store(self, tensor: int, tier: str, *, is_clean: bool) -> None:
        """Send what lies of a tensor in host memory to another tier; ``is_clean`` is that of ``Store``."""


@dataclass(frozen=True, slots=True)
class Move:
    """Base class of moves: frozen dataclasses, saved in plan files field by field.

    ``name`` is the key in plan files, ``memories`` are the kinds of GPU memory that can do the move;
    ``may_be_delayed`` is True if it makes sense once its kernel has started.
    """

    __pydantic_config__: ClassVar = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)
    name: ClassVar[str] = ""
    memories: ClassVar[tuple[MemoryKind, ...]] = ("paged", "contiguous")
    may_be_delayed: ClassVar[bool] = True

    def subjects(self) -> Collection[int]:
        """Return the tensors that the move names."""
        return ()

    def tiers(self) -> Collection[str]:
        """Return the memory tiers that the move names."""
        return ()

    def with_ids(self, ids: Sequence[int]) -> Self:
        """Return the move with ``ids[tensor]`` for every tensor in the fields ``tensor`` and ``tensors``.

        Tensors that do not exist stay, for ``flaw`` to name them. Moves that name tensors in other fields
        define it themselves; raises PolicyError for others.
        """

        def found(tensor: int) -> int:
            return ids[tensor] if 0 <= tensor < len(ids) else tensor

        named = {field.name: getattr(self, field.name) for field in fields(self)}
        changes: dict[str, object] = {}
        if named.get("tensor") is not None:
            changes["tensor"] = found(named["tensor"])
        if named.get("tensors") is not None:
            changes["tensors"] = type(named["tensors"])(map(found, named["tensors"]))
        move = replace(self, **changes)
        if set(move.subjects()) != set(map(found, self.subjects())):
            raise PolicyError(
                f"move '{self.name}': found tensors in fields with other names than tensor and tensors; "
                "allowed: a with_ids of its own"
            )
        return move

    def flaw(self, trace: Trace | None, tiers: Collection[str] | None) -> str | None:
        """Say which tensor or tier does not exist, as far as these are known, or which option is wrong."""
        count = sys.maxsize if trace is None else len(trace.tensors)
        subjects: object = self.subjects()
        if not isinstance(subjects, (tuple, Collection)):  # a tuple is told at once
            return f"found {subjects!r} as tensors; allowed: a set of tensors"
        for tensor in () if len(subjects) > _FEW and _all_exist(subjects, count) else subjects:
            if type(tensor) is not int or not 0 <= tensor < count:
                end = " or more" if trace is None else f" to {count - 1} (the trace has {count} tensors)"
                kind = "" if type(tensor) is int else ", as int"
                return f"found unknown tensor {tensor!r}; allowed: 0{end}{kind}"
        for tier in self.tiers():
            if tiers is not None and tier not in tuple(tiers):  # whatever it is
                return f"found unknown tier {tier!r}; allowed: {choices_text(tiers)}"
        move: Any = type(self)  # mypy takes it for a move, whose hash needs one
        for name, default, types, allowed in _options(move):
            value = getattr(self, name)
            if value is default:
                continue
            if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
                return f"found {name} {value!r} of move '{self.name}'; allowed: {allowed}"
        return None

    def check(self, state: MoveState) -> str | None:
        """Say why the move is refused now, in words that end with what is allowed; None if it is not."""
        return None

    def is_moot(self, state: MoveState) -> bool:
        """Return True if a delayed move has nothing left to do when it is due."""
        return False

    def apply(self, state: MoveState) -> None:
        """Carry the move out."""
        raise NotImplementedError


@cache
def _options(move: Any) -> tuple[tuple[str, object, tuple[type, ...], str], ...]:
    """Return the fields of a class of moves with simple types: name, default, types, and what is allowed."""
    found = []
    for field in fields(move):
        hint = field.type.__name__ if isinstance(field.type, type) else str(field.type)
        kinds = [_TYPES[name] for name in hint.split(" | ") if name in _TYPES]
        if len(kinds) == len(hint.split(" | ")):
            types = tuple(one for some, _ in kinds for one in some)
            found.append((field.name, field.default, types, " or ".join(words for _, words in kinds)))
    return tuple(found)


def _all_exist(tensors: Collection[int], count: int) -> bool:
    """Return True if all of some tensors exist, in a trace of ``count``: faster than one by one."""
    return {*map(type, tensors)} == {int} and min(tensors) >= 0 and max(tensors) < count


MoveClass = TypeVar("MoveClass", bound=type[Move])
_MOVES: dict[str, type[Move]] = {}


def registered_moves() -> dict[str, type[Move]]:
    """Return all moves that plan files may name."""
    return dict(_MOVES)


def register_class(known: dict[str, Any], new: Any, kind: str, kinds: str) -> None:
    """Add a class under its attribute ``name``; a class that is defined again replaces its former self.

    Raises PolicyError when another class already has the name, or it has none.
    """
    if not new.name:
        raise PolicyError(f"{kind} class {new.__module__}:{new.__name__} has no name")
    other = known.get(new.name, new)
    if (other.__module__, other.__qualname__) != (new.__module__, new.__qualname__):
        raise PolicyError(
            f"two {kinds} are called '{new.name}': {other.__module__}:{other.__name__} and "
            f"{new.__module__}:{new.__name__}"
        )
    known[new.name] = new


def register_move(move: MoveClass) -> MoveClass:
    """Class decorator that makes a dataclass of a move usable in plan files under its ``name``.

    Raises PolicyError when another class already has the name, it has none, or it is no dataclass.
    """
    if "__dataclass_fields__" not in vars(move):
        raise PolicyError(f"move class {move.__module__}:{move.__name__} is no dataclass")
    register_class(_MOVES, move, "move", "moves")
    return move


@dataclass(frozen=True, slots=True)
class TensorMove(Move):
    """A move of one tensor. If it is delayed, it is dropped while a kernel needs the tensor."""

    tensor: int

    def subjects(self) -> Collection[int]:
        """Return the tensor."""
        return (self.tensor,)

    def is_moot(self, state: MoveState) -> bool:
        """Return True if a kernel needs the tensor meanwhile."""
        return state.view.is_needed(self.tensor)

    def refusal(self, state: MoveState, verb: str, rule: str) -> str:
        """Return the words for a tensor that may not be moved now."""
        return f"{verb} tensor '{state.view.trace.tensors[self.tensor].name}', which {rule}"
