"""Bytes of a job's tensors on the GPU and elsewhere, and what the kernels to come lack by that."""

from __future__ import annotations

from array import array
from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from g10sim.analysis.timeline import Integers
from g10sim.policies.designs.pressure.forecast import Forecast


@dataclass(frozen=True)
class Settings:
    """Parameters of the policy; ``backlog_cycles`` of the link's time, the others in kernels."""

    backlog_cycles: float
    births: int
    horizon: int

    @property
    def last_single(self) -> int:
        """The last kernel ahead at which a step begins in any case."""
        return min(max(2, self.births), self.horizon - 1)


class Order:
    """Tensors by ranks, such as kernels, of equals the lower number first.

    At first those of some pairs of a rank and a tensor.
    """

    def __init__(self, ranks: Iterable[tuple[int, int]] = ()) -> None:
        self._tensors: dict[int, list[int]] = {}
        self._ranks: list[int] = []
        for rank, tensor in ranks:
            self.add(rank, tensor)

    def add(self, rank: int, tensor: int) -> None:
        """Add a tensor."""
        if (tensors := self._tensors.get(rank)) is None:
            self._tensors[rank] = [tensor]
            insort(self._ranks, rank)
        else:
            insort(tensors, tensor)

    def remove(self, rank: int, tensor: int) -> None:
        """Remove a tensor that is there."""
        tensors = self._tensors[rank]
        del tensors[bisect_left(tensors, tensor)]
        if not tensors:
            self.clear(rank)

    def clear(self, rank: int) -> None:
        """Remove the tensors of a rank, if there are any."""
        if rank in self._tensors:
            del self._tensors[rank], self._ranks[bisect_left(self._ranks, rank)]

    def __bool__(self) -> bool:
        """Return whether there are any."""
        return bool(self._ranks)

    def __iter__(self) -> Iterator[int]:
        """Yield the tensors; one that leaves once it was yielded does not disturb this."""
        place, ranks = 0, self._ranks
        while place < len(ranks):
            rank = ranks[place]
            yield from self._tensors[rank].copy()
            place += rank in self._tensors


class Uses:
    """Kernels up to a last one that use some tensors next."""

    def __init__(self, last: int, kernels: Iterable[int] = ()) -> None:
        self._counts, self._marks = [0] * (last + 1), bytearray(last + 1)
        for kernel in kernels:
            self.add(kernel)

    def add(self, kernel: int) -> None:
        """Count one more tensor."""
        self._counts[kernel] += 1
        self._marks[kernel] = True

    def remove(self, kernel: int) -> None:
        """Count one tensor less."""
        self._counts[kernel] -= 1
        self._marks[kernel] = self._counts[kernel] > 0

    def last_until(self, kernel: int) -> int:
        """Return the last kernel up to one that uses any; -1 for none."""
        return self._marks.rfind(True, 0, kernel + 1)

    def between(self, first: int, stop: int) -> Integers:
        """Return the kernels from one to before another that use any."""
        found: Integers = first + np.frombuffer(self._marks, dtype=np.bool_)[first:stop].nonzero()[0]
        return found


_FEW = 8
"""Kernels up to which they are looked at one by one, which is faster than all at once."""


class Shortage:
    """Bytes that the kernels from one on lack, as far as the horizon: ``lack`` less what is away.

    In a step, the same tensors are away. One begins where some tensor alive is used next, and at each of the
    first kernels. ``asked`` has the tensors that were asked for before the kernels that make them, with these
    kernels and bytes, which kernels before them lack, too, unless they were taken back. ``_highest`` is the
    kernel that lacks most of all, of equals the first; -1: not known.
    """

    def __init__(self, lack: Integers, alive: Uses, settings: Settings) -> None:
        self._lack, self._alive, self._settings = np.tile(lack, 2), alive, settings
        self._levels, self._kernel, self._horizon = self._lack.copy(), 0, settings.horizon
        self._few = min(_FEW, self._horizon)
        self._level_of = self._levels.data
        self.asked: dict[int, tuple[int, int]] = {}
        self._counts_asked = False
        self._highest = -1

    def start_iteration(self, alive: Uses) -> None:
        """Forget what is away."""
        self._alive = alive
        self._levels[:] = self._lack
        self.asked.clear()
        self._highest = -1

    def start_kernel(self, kernel: int) -> None:
        """Go on to a kernel."""
        if kernel == self._kernel + 1 and self._highest > self._kernel:
            last = kernel + self._horizon - 1
            if self._level_of[last] > self._level_of[self._highest]:
                self._highest = last
        elif kernel != self._kernel:
            self._highest = -1
        self._kernel = kernel

    def spare(self, until: int, size_bytes: int) -> None:
        """Take off bytes that are away until a kernel uses them."""
        kernel, highest, levels = self._kernel, self._highest, self._level_of
        if until <= kernel + _FEW:
            for number in range(kernel, min(until, len(levels))):
                levels[number] -= size_bytes
        else:
            part = self._levels[kernel:until]
            part -= size_bytes
        if size_bytes > 0 and highest < until < kernel + self._horizon:
            self._highest = -1
        elif size_bytes < 0 and kernel < until <= highest and self.worst(until - kernel) >= levels[highest]:
            self._highest = self._peak_until(until)

    def ask(self, tensor: int, until: int, size_bytes: int) -> None:
        """Note a tensor that is asked for before a kernel makes it."""
        self.asked[tensor] = until, size_bytes
        if self._counts_asked:
            self.spare(until, -size_bytes)

    def forget(self, tensors: Iterable[int]) -> None:
        """Forget tensors that were asked for and are made now."""
        for tensor in tensors:
            self.asked.pop(tensor, None)

    def count_asked(self, *, counts: bool) -> None:
        """Let kernels lack what was asked for from now on, or take that back."""
        if counts != self._counts_asked:
            self._counts_asked = counts
            for until, size in self.asked.values():
                self.spare(until, -size if counts else size)

    def _peak_until(self, stop: int) -> int:
        """Return the kernel that lacks most from this one to before another, of equals the first."""
        return self._kernel + int(self._levels[self._kernel : stop].argmax())

    def _peak(self, ahead: int | None) -> int:
        """Return the kernel that lacks most among that many, or among all, of equals the first."""
        end = self._kernel + self._horizon
        stop = min(self._kernel + ahead, end) if ahead else end
        if self._highest < 0 and stop == end:
            self._highest = self._peak_until(stop)
        return self._highest if 0 <= self._highest < stop else self._peak_until(stop)

    def worst(self, ahead: int | None = None) -> int:
        """Return what the worst of that many kernels lacks, or the worst of all."""
        if ahead and ahead <= self._few:
            return max(self._level_of[self._kernel : self._kernel + ahead])
        return self._level_of[self._peak(ahead)]

    def worst_between(self, first: int, stop: int) -> int:
        """Return what the worst kernel lacks from one ahead to before another, at most the horizon."""
        first, stop = self._kernel + first, self._kernel + stop
        return self._level_of[first + int(self._levels[first:stop].argmax())]

    def worst_step(self, ahead: int | None = None) -> int:
        """Return the kernels ahead at which the step of the worst of some begins, of equals the first."""
        worst = self._peak(ahead) - self._kernel
        single = self._settings.last_single
        if worst <= single:
            return worst
        return max(single, self._alive.last_until(self._kernel + worst) - self._kernel)

    def later(self) -> tuple[Integers, Integers]:
        """Return the kernels ahead at which steps begin after the next kernel's, and what these lack."""
        single, kernel, stop = self._settings.last_single, self._kernel, self._kernel + self._horizon
        uses = self._alive.between(kernel + single + 1, stop)
        starts = np.append(np.arange(single + 1), uses - kernel)
        levels = self._levels[kernel:stop]
        return starts[2:], np.maximum.reduceat(levels, starts)[2:]

    def worst_soon(self) -> int:
        """Return what the worse of this kernel and the next one lacks."""
        return max(self._level_of[self._kernel], self._level_of[self._kernel + 1])

    def of_next(self) -> int:
        """Return what the next kernel lacks."""
        return self._level_of[self._kernel + 1]


class TensorAccount:
    """Bytes of tensors ``here`` on the GPU that do not leave, and ``away``, which lie elsewhere or leave.

    Bytes on their way in are neither. ``next`` are the kernels that use tensors next, ``tier_of`` the places
    of those of ``tiers`` where they went. ``alive`` marks those that have contents or pages. ``present``
    and ``absent`` have those with bytes here, needed last first, and away, needed first first. ``here_bytes``
    are those of all.
    """

    def __init__(self, forecast: Forecast, tiers: int, settings: Settings) -> None:
        self._forecast = forecast
        tensors = len(forecast.sizes)
        self.here, self.away, self.next, self.tier_of = ([0] * tensors for _ in range(4))
        self.alive = [False] * tensors
        self._never = forecast.never
        self.present, self.absent = Order(), Order()
        self._uses = Uses(self._never)
        self.here_bytes = 0
        self._returning: Integers = np.zeros((tiers, self._never + 1), dtype=np.int64)
        self._returning_of = [tier.data for tier in self._returning]
        self.shortage = Shortage(forecast.lack, self._uses, settings)

    def state(self) -> tuple[object, ...]:
        """Return what is where."""
        return tuple(array("q", part).tobytes() for part in (self.here, self.away, self.tier_of))

    def start_iteration(self, alive: Iterable[int]) -> None:
        """Begin an iteration with the tensors that are alive at its first kernel."""
        self.next = self._forecast.first_uses.copy()
        self.alive = [False] * len(self.next)
        self._returning[:] = 0
        tensors = [*alive]
        self._uses = Uses(self._never, map(self.next.__getitem__, tensors))
        self.shortage.start_iteration(self._uses)
        for tensor in tensors:
            self.alive[tensor] = True
            if self.away[tensor]:
                self._count(tensor, self.away[tensor])
        present = ((self._never - self.next[i], i) for i in tensors if self.here[i])
        absent = ((self.next[i], i) for i in tensors if self.away[i])
        self.present, self.absent = Order(present), Order(absent)

    def bear(self, tensor: int) -> None:
        """Count a tensor in that is alive from now on."""
        self.alive[tensor] = True
        self._uses.add(self.next[tensor])

    def forget(self, tensor: int) -> None:
        """Count a tensor out, alive or not."""
        self.put(tensor, 0, 0)
        self.tier_of[tensor] = 0
        if self.alive[tensor]:
            self.alive[tensor] = False
            self._uses.remove(self.next[tensor])

    def use(self, tensors: Iterable[int], kernel: int) -> None:
        """Note that a kernel has used tensors that are alive, all that it needed."""
        next_use = self._forecast.next_use
        self.present.clear(self._never - kernel)
        for tensor in tensors:
            here, away = self.here[tensor], self.away[tensor]
            if away:
                self.put(tensor, here, 0)
            self.next[tensor] = following = next_use(tensor, kernel + 1)
            self.tier_of[tensor] = 0
            self._uses.add(following)
            if here:
                self.present.add(self._never - following, tensor)
            if away:
                self.put(tensor, here, away)

    def leave(self, tensor: int, size_bytes: int, tier: int) -> None:
        """Note bytes that leave for a tier; those that are away already count there, too."""
        here, away = self.here[tensor], self.away[tensor]
        if away:
            self.put(tensor, here, 0)
        self.tier_of[tensor] = tier
        self.put(tensor, here - size_bytes, away + size_bytes)

    def put(self, tensor: int, here: int, away: int) -> None:
        """Note the bytes of a tensor that are here and away."""
        use, was_here, was_away = self.next[tensor], self.here[tensor], self.away[tensor]
        if here != was_here:
            self.here[tensor] = here
            self.here_bytes += here - was_here
            if not was_here:
                self.present.add(self._never - use, tensor)
            elif not here:
                self.present.remove(self._never - use, tensor)
        if away != was_away:
            self.away[tensor] = away
            self._count(tensor, away - was_away)
            if not was_away:
                self.absent.add(use, tensor)
            elif not away:
                self.absent.remove(use, tensor)

    def returning(self, first: int, last: int) -> list[int]:
        """Return the bytes by tier that have to be back for some kernels, from the first to the last."""
        if last - first < _FEW:
            return [sum(tier[first : last + 1]) for tier in self._returning_of]
        found: list[int] = np.add.reduce(self._returning[:, first : last + 1], axis=1).tolist()
        return found

    def _count(self, tensor: int, size_bytes: int) -> None:
        """Count bytes that are away until they are used."""
        use = self.next[tensor]
        self.shortage.spare(use, size_bytes)
        self._returning_of[self.tier_of[tensor]][use] += size_bytes
