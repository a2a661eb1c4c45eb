"""Reads pickles that hold plain values only: nothing in them can name code, and there are not too many."""

from __future__ import annotations

import io
import pickle
import pickletools
from pathlib import Path
from typing import Any, NoReturn

from g10sim.errors import TraceError

MOST_OPERATIONS = 10_000_000
"""Most operations of a pickle; each makes at most one value, the largest of which is an empty dict."""
MOST_DEPTH = 64
"""Deepest nesting of containers."""

_OPERATIONS = """
    PROTO FRAME STOP MARK NONE NEWTRUE NEWFALSE BININT BININT1 BININT2 LONG1 BINFLOAT BINUNICODE
    SHORT_BINUNICODE BINUNICODE8 EMPTY_LIST APPEND APPENDS EMPTY_DICT SETITEM SETITEMS EMPTY_TUPLE TUPLE
    TUPLE1 TUPLE2 TUPLE3 BINPUT LONG_BINPUT MEMOIZE BINGET LONG_BINGET
"""
_ALLOWED = frozenset(_OPERATIONS.split())
"""Operations that ``pickle.dump`` writes, from protocol 2 on, for dicts, lists, tuples, texts and numbers."""
_FILLING = frozenset({"APPEND", "APPENDS", "SETITEM", "SETITEMS"})
_EMPTY = frozenset({"EMPTY_LIST", "EMPTY_DICT", "EMPTY_TUPLE"})
_PUTS, _GETS = frozenset({"BINPUT", "LONG_BINPUT", "MEMOIZE"}), frozenset({"BINGET", "LONG_BINGET"})
_SILENT = frozenset({"PROTO", "FRAME", "STOP"})


class _PlainUnpickler(pickle.Unpickler):
    """Resolves no name and no reference to anything outside the pickle."""

    def find_class(self, module: str, name: str) -> NoReturn:
        """Refuse every global."""
        raise pickle.UnpicklingError(f"names {module}.{name}")

    def persistent_load(self, _: Any) -> NoReturn:
        """Refuse every reference to outside."""
        raise pickle.UnpicklingError("refers to something outside")


def read_plain_pickle(path: Path, data: bytes, what: str) -> tuple[Any, int]:
    """Return the value of a pickle, the data of a file, and the number of its operations.

    All of it is looked through before anything of it is built: an operation other than those for plain
    values, more than ``MOST_OPERATIONS``, or containers nested deeper than ``MOST_DEPTH`` refuse it. Raises
    TraceError, which calls the file ``what``.
    """
    try:
        operations = _check(path, data, what)
        return _PlainUnpickler(io.BytesIO(data)).load(), operations
    except TraceError:
        raise
    except Exception as error:  # the C reader raises many kinds for broken input
        raise TraceError(f"{path}: found a broken pickle ({error}); allowed: {what}") from error


def _check(path: Path, data: bytes, what: str) -> int:
    """Look through a pickle without building it; return the number of operations. Raises TraceError."""
    depths = _Depths()
    number = 0
    for number, (operation, argument, position) in enumerate(pickletools.genops(data), 1):
        if operation.name not in _ALLOWED:
            allowed = f"{what}, plain values that name no code"
            raise TraceError.at(f"{path}: byte {position}", f"the pickle operation {operation.name}", allowed)
        if number > MOST_OPERATIONS:
            raise TraceError.at(path, f"more than {MOST_OPERATIONS} values", f"at most that many, {what}")
        depths.follow(operation.name, len(operation.stack_before), argument)
        if depths.deepest > MOST_DEPTH:
            raise TraceError(f"{path}: found values nested deeper than {MOST_DEPTH}; allowed: {what}")
    return number


class _Depths:
    """The stack of a pickle machine with the depth of each value in place of the value.

    A container that is still filled after it was memoized counts with its depth of then: references to it
    from inside itself do not make it deeper.
    """

    def __init__(self) -> None:
        self.deepest = 0
        self._stack: list[int] = []
        self._marks: list[int] = []
        self._memo: dict[int, int] = {}

    def follow(self, name: str, taken: int, argument: Any) -> None:
        """Carry out an operation that takes that many values. Raises IndexError or KeyError if it cannot."""
        stack = self._stack
        if name in _SILENT:
            return
        if name == "MARK":
            self._marks.append(len(stack))
        elif name in _PUTS:
            self._put(argument)
        elif name in _GETS:
            stack.append(self._memo[argument])
        elif name in _FILLING:
            self._grow(self._items(taken - 1, is_marked=name.endswith("S")))
        elif name.startswith("TUPLE"):
            items = self._items(taken, is_marked=name == "TUPLE")
            stack.append(0)
            self._grow(items)
        else:
            stack.append(1 if name in _EMPTY else 0)

    def _put(self, argument: Any) -> None:
        index = len(self._memo) if argument is None else argument
        if index > len(self._memo):
            raise ValueError(f"memo index {index} after {len(self._memo)}")
        self._memo[index] = self._stack[-1]

    def _items(self, count: int, *, is_marked: bool) -> list[int]:
        """Take values off the stack: those above the last mark, or that many."""
        start = self._marks.pop() if is_marked else len(self._stack) - count
        if start < 0:
            raise IndexError("too few values")
        items = self._stack[start:]
        del self._stack[start:]
        return items

    def _grow(self, items: list[int]) -> None:
        """Put items into the container on top of the stack."""
        if not self._stack:
            raise IndexError("too few values")
        self._stack[-1] = max(self._stack[-1], 1 + max(items, default=0))
        self.deepest = max(self.deepest, self._stack[-1])
