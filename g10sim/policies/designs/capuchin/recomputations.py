"""Recomputations of one job: each tensor is made again once, though others need it on their way."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace

from g10sim.analysis.recomputation import Recomputability
from g10sim.policies.designs.capuchin.swaps import AccessPair
from g10sim.policies.planning.swapping.peak import Span
from g10sim.policies.planning.swapping.schedule import AccessSequence, Recomputed


@dataclass(eq=False, slots=True)
class _Group:
    """Recomputations that happen together, before kernel ``use``: that of ``lead`` needs all others.

    ``sources`` are the dropped tensors of other groups that it reads. ``absences`` are pairs of kernels
    between which swaps take something away that it reads.
    """

    lead: int
    use: int
    members: list[int]
    latest_drop: int
    size_bytes: int
    extra_bytes: int
    sources: set[int]
    absences: list[tuple[int, int]]

    def can_happen(self, use: int) -> bool:
        """Return True if all that is read is there before a kernel."""
        return not any(evicted < use < back for evicted, back in self.absences)

    def include(self, other: _Group) -> None:
        """Take over what another group does."""
        self.members += other.members
        self.latest_drop = max(self.latest_drop, other.latest_drop)
        self.size_bytes += other.size_bytes
        self.extra_bytes += other.extra_bytes
        self.sources |= other.sources
        self.absences += other.absences


class Recomputations:
    """Dropped tensors, and before which kernels they are made again.

    A tensor that was dropped and that another's producer reads is back when that one is recomputed, so that
    each is made again once (Capuchin's collective recomputation). What a recomputation needs happens with
    it from then on: together it is one group, brought forward as a whole.
    """

    def __init__(self, accesses: AccessSequence, rules: Recomputability) -> None:
        self._accesses, self._rules = accesses, rules
        self._entries: dict[int, Recomputed] = {}
        self._groups: dict[int, _Group] = {}
        self._readers = defaultdict[int, list[int]](list)
        self._absences = defaultdict[int, list[tuple[int, int]]](list)

    def entries(self) -> list[Recomputed]:
        """Return what is recomputed, as it happens, in the order of choice."""
        return [replace(entry, use=self._groups[tensor].use) for tensor, entry in self._entries.items()]

    def allow(self, pair: AccessPair) -> bool:
        """Return True if no recomputation reads a tensor between its accesses."""
        uses = (self._groups[reader].use for reader in self._readers.get(pair.tensor, ()))
        return not any(pair.evicted < use < pair.use for use in uses)

    def note_swap(self, pair: AccessPair) -> None:
        """Remember between which kernels a tensor is swapped."""
        self._absences[pair.tensor].append((pair.evicted, pair.use))
        for reader in self._readers.get(pair.tensor, ()):
            self._groups[reader].absences.append((pair.evicted, pair.use))

    def add(self, entry: Recomputed, is_kept: Callable[[Collection[Span]], bool]) -> bool:
        """Recompute a tensor, and bring forward what that needs.

        False, and nothing changes, where a tensor that is read is away by then, or unless the spans in which
        bytes come and go ``are kept``.
        """
        uses = (self._groups[reader].use for reader in self._readers.get(entry.tensor, ()))
        use = min((use for use in uses if entry.drop <= use < entry.use), default=entry.use)
        new = self._alone(entry, use)
        if not new.can_happen(use):
            return False
        needed = self._reached(new.sources, use)
        # Also what is dropped after its readers have brought it forward.
        moved = dict.fromkeys(self._reached(new.sources, entry.use, needed), entry.use)
        moved.update(dict.fromkeys(needed, use))
        if not all(group.can_happen(when) for group, when in moved.items()):
            return False
        if not is_kept([*self._spans(new), *self._shifts(moved)]):
            return False
        for group, when in moved.items():
            group.use = when
        self._keep(entry, new, list(needed))
        return True

    def _alone(self, entry: Recomputed, use: int) -> _Group:
        sources = self._sources(entry)
        tensor, size = entry.tensor, self._accesses.sizes[entry.tensor]
        dropped = {source for source in sources if source in self._entries}
        absences = [absence for source in sources for absence in self._absences.get(source, ())]
        return _Group(tensor, use, [tensor], entry.drop, size, entry.extra_bytes, dropped, absences)

    def _sources(self, entry: Recomputed) -> Iterable[int]:
        """Return what the kernel reads that makes a dropped tensor."""
        producer = self._rules.producer(entry.tensor, entry.drop)
        return () if producer is None else producer.inputs

    def _reached(self, sources: Iterable[int], use: int, known: Iterable[_Group] = ()) -> dict[_Group, None]:
        """Return the groups that are needed before a kernel, earlier than for themselves, and those known."""
        found, waiting = dict.fromkeys(known), [*sources]
        while waiting:
            tensor = waiting.pop()
            group = self._groups[tensor]
            if group in found or not self._entries[tensor].drop <= use < group.use:
                continue
            if group.lead != tensor or group.latest_drop > use:
                for member in group.members:
                    self._groups[member] = self._alone(self._entries[member], group.use)
                group = self._groups[tensor]
            found[group] = None
            waiting += group.sources
        return found

    def _spans(self, group: _Group) -> list[Span]:
        kernels = group.latest_drop, group.use, group.use + 1
        drop, use, after = (self._accesses.times[kernel] for kernel in kernels)
        return [(drop, use, -group.size_bytes), (use, after, group.extra_bytes)]

    def _shifts(self, moved: dict[_Group, int]) -> Iterable[Span]:
        """Yield the spans in which bytes come and go when groups happen before other kernels."""
        times = self._accesses.times
        for group, use in moved.items():
            yield times[use], times[group.use], group.size_bytes
            yield times[use], times[use + 1], group.extra_bytes
            yield times[group.use], times[group.use + 1], -group.extra_bytes

    def _keep(self, entry: Recomputed, new: _Group, needed: list[_Group]) -> None:
        self._entries[entry.tensor] = entry
        for source in self._sources(entry):
            self._readers[source].append(entry.tensor)
        for reader in self._readers.get(entry.tensor, ()):
            self._groups[reader].sources.add(entry.tensor)
        group, *rest = sorted([*needed, new], key=lambda group: -len(group.members))
        for other in rest:
            group.include(other)
            self._groups.update(dict.fromkeys(other.members, group))
        self._groups[entry.tensor] = group
        group.lead = entry.tensor
        group.sources = {source for source in group.sources if self._groups[source] is not group}
