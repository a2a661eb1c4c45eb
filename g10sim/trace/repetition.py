"""Sequences of which blocks occur many times in a row: blocks are stored once, items made on demand."""

from __future__ import annotations

from abc import abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, count, pairwise
from operator import eq
from typing import TYPE_CHECKING, Generic, Protocol, Self, TypeAlias, TypeVar, overload

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt


class Repeatable(Protocol):
    """A tensor or a kernel."""

    @property
    def id(self) -> int:
        """Its place among all."""

    def again(self, number: int, since: int, shift: int) -> Self:
        """Return it with another id; ids of tensors from ``since`` on that it names grow by ``shift``."""


Item = TypeVar("Item", bound=Repeatable)
Value = TypeVar("Value")

Ids: TypeAlias = "npt.NDArray[np.object_]"
Names: TypeAlias = Callable[[Item], tuple[int, ...]]
"""Returns ids of tensors that an item names."""
_KEPT = 64


@dataclass(frozen=True, slots=True)
class Block(Generic[Item]):
    """Items that occur ``times`` times in a row.

    Each time, the ids of tensors from ``since`` on that they name are larger by ``shift``.
    """

    items: tuple[Item, ...]
    times: int = 1
    since: int = 0
    shift: int = 0

    @property
    def count(self) -> int:
        """Number of all items that it stands for."""
        return len(self.items) * self.times

    def named(self, names: Names[Item], new: Ids | None = None) -> Iterator[tuple[int, ...]]:
        """Yield the ids of tensors that ``names`` finds in each item, in order, without making the item.

        Where there are ``new`` ids, these stand in place of those found.
        """
        first = [names(item) for item in self.items]
        ids = np.fromiter(chain.from_iterable(first), dtype=np.int64)
        ends = [*accumulate(map(len, first), initial=0)]
        for time in range(self.times):
            found = np.where(ids >= self.since, ids + time * self.shift, ids)
            every = (found if new is None else new.take(found)).tolist()
            for start, end in pairwise(ends):
                yield tuple(every[start:end])


def shifted(ids: Iterable[int], since: int, shift: int) -> tuple[int, ...]:
    """Return ids of tensors, those from ``since`` on larger by ``shift``."""
    return tuple([number + shift if number >= since else number for number in ids])


class MadeOnDemand(Sequence[Item]):
    """Items that are made when somebody asks for them, each from one of ``origins``.

    They are kept for those who ask again: all where the origins are there at once, else a few.
    """

    def __init__(self, origins: Sequence[object]) -> None:
        self._count = len(origins)
        self.keeps_all: bool = getattr(origins, "keeps_all", isinstance(origins, tuple))
        self._places = max(1, self._count) if self.keeps_all else _KEPT
        self._kept: list[tuple[int, Item] | None] = [None] * self._places

    @abstractmethod
    def _make(self, number: int) -> Item:
        """Return an item by its number from 0."""

    def __len__(self) -> int:
        """Return the number of items."""
        return self._count

    @overload
    def __getitem__(self, index: int) -> Item: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Item, ...]: ...
    def __getitem__(self, index: int | slice) -> Item | tuple[Item, ...]:
        """Return an item, or several as a tuple. Raises IndexError."""
        if isinstance(index, slice):
            return tuple(map(self._make, range(*index.indices(self._count))))
        kept = self._kept[index % self._places]
        if kept is not None and kept[0] == index:
            return kept[1]
        number = index + self._count if index < 0 else index
        if not 0 <= number < self._count:
            raise IndexError(f"found index {index}; allowed: less than {self._count}")
        item = self._make(number)
        self._kept[number % self._places] = number, item
        return item

    def __iter__(self) -> Iterator[Item]:
        """Yield every item."""
        return map(self.__getitem__, range(self._count))

    def each(self, value: Callable[[Item], Value]) -> list[Value]:
        """Return a value of every item: see :func:`each`."""
        return [value(item) for item in self]

    def named(self, names: Names[Item]) -> Iterator[tuple[int, ...]]:
        """Yield ids of tensors of every item: see :func:`named`."""
        return map(names, self)

    def __eq__(self, other: object) -> bool:
        """Return whether another sequence has equal items."""
        return isinstance(other, Sequence) and len(self) == len(other) and all(map(eq, self, other))

    def __repr__(self) -> str:
        """Say how many items there are."""
        return f"<{self._count} items, made on demand>"


class Repeated(MadeOnDemand[Item]):
    """The items of blocks one after another; ids count up from 0."""

    def __init__(self, blocks: Iterable[Block[Item]]) -> None:
        self.blocks = tuple(blocks)
        *self._starts, total = accumulate((block.count for block in self.blocks), initial=0)
        super().__init__(range(total))

    def _make(self, number: int) -> Item:
        place = bisect_right(self._starts, number) - 1
        block = self.blocks[place]
        time, index = divmod(number - self._starts[place], len(block.items))
        item = block.items[index]
        return item.again(number, block.since, time * block.shift) if item.id != number else item

    def each(self, value: Callable[[Item], Value]) -> list[Value]:
        """Return a value of every item: see :func:`each`."""
        found: list[Value] = []
        for block in self.blocks:
            found += [value(item) for item in block.items] * block.times
        return found

    def named(self, names: Names[Item], new: Ids | None = None) -> Iterator[tuple[int, ...]]:
        """Yield ids of tensors of every item, or the ``new`` ones in their places: see :func:`named`."""
        return chain.from_iterable(block.named(names, new) for block in self.blocks)


def joined(blocks: Sequence[Block[Item]], rest: Iterable[Item] = ()) -> Sequence[Item]:
    """Return the items of blocks and those after them; a tuple where nothing repeats."""
    every = [block for block in (*blocks, Block(tuple(rest))) if block.items]
    repeats = any(block.times > 1 for block in every)
    return Repeated(every) if repeats else tuple(item for block in every for item in block.items)


class Changed(MadeOnDemand[Item]):
    """Items of another sequence, each changed when it is made."""

    def __init__(self, items: Sequence[Item], change: Callable[[Item], Item]) -> None:
        super().__init__(items)
        self._items, self._change = items, change

    def _make(self, number: int) -> Item:
        return self._change(self._items[number])


class _Chosen(MadeOnDemand[Item]):
    """Items of another sequence in another order, with ids that count up from 0."""

    def __init__(self, items: Sequence[Item], order: Sequence[int]) -> None:
        super().__init__(items)
        self.items, self.order = items, order

    def _make(self, number: int) -> Item:
        return self.items[self.order[number]].again(number, 0, 0)

    def each(self, value: Callable[[Item], Value]) -> list[Value]:
        """Return a value of every item: see :func:`each`."""
        values = each(self.items, value)
        return [values[number] for number in self.order]


def chosen(items: Sequence[Item], order: Sequence[int]) -> Sequence[Item]:
    """Return items in an order of their ids, numbered from 0 and made on demand."""
    if isinstance(items, _Chosen):
        order, items = [items.order[number] for number in order], items.items
    return items if is_identity(order) else _Chosen(items, order)


def is_identity(order: Sequence[int]) -> bool:
    """Return whether ids stay what they are."""
    return all(map(eq, order, count()))


def blocks_of(items: Sequence[Item]) -> tuple[Block[Item], ...]:
    """Return the blocks of a sequence: one that occurs once where none repeat."""
    return items.blocks if isinstance(items, Repeated) else (Block(tuple(items)),)


def each(items: Sequence[Item], value: Callable[[Item], Value]) -> list[Value]:
    """Return a value of every item, one that depends neither on its id nor on the tensors that it names."""
    return items.each(value) if isinstance(items, MadeOnDemand) else [value(item) for item in items]


def named(items: Sequence[Item], names: Names[Item]) -> Iterator[tuple[int, ...]]:
    """Yield the ids of tensors that ``names`` finds in each item; it may order and leave out, no more."""
    return items.named(names) if isinstance(items, MadeOnDemand) else map(names, items)
