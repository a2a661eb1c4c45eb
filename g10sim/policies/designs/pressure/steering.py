"""Decides at every kernel what leaves, and what comes in."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import compress, count
from math import inf

from g10sim.policies.designs.pressure.account import Settings, TensorAccount
from g10sim.policies.designs.pressure.dividing import Division, EvictionQueues
from g10sim.policies.designs.pressure.forecast import Forecast
from g10sim.policies.designs.pressure.transfers import Arrivals, Departures
from g10sim.policies.interface import Await, Drop, Evict, Fetch, Free, Move, PlannedMachine, PolicyView
from g10sim.policies.planning.leaving import first_gone

_MISFITS = 3
"""Tensors that do not fit yet after which no further one is tried."""
_UNSUITED = 16
"""Tensors that suit no tier after which none is tried; with all, 110 cells took .1 % longer in the mean."""
_SOON = 0.25
"""Share of the backlog for which memory has free room at least: with more of it more moves in decoding, with
less small steps wait longer."""


class Steering:
    """Keeps account of one job's tensors, kernel after kernel.

    Between kernels only tensors that may have changed are looked at; ``_named`` are the lists of victims
    given since then. What a kernel costs grows with the number of tensors that change.
    """

    def __init__(self, forecast: Forecast, machine: PlannedMachine, settings: Settings) -> None:
        self._forecast, self._machine, self._settings = forecast, machine, settings
        self._sizes: list[int] = forecast.sizes.tolist()
        self._cycles: list[int] = forecast.cycles.tolist()
        self._fetch = [*map(Fetch, range(len(self._sizes)))]
        self._free = [*map(Free, range(len(self._sizes)))]
        self._account = TensorAccount(forecast, len(machine.tiers), settings)
        self._shortage = self._account.shortage
        self._leaving = Departures()
        self._coming = Arrivals()
        self._seen: set[int] = set()
        self._named: list[list[int]] = []
        self._spare = 0
        self._division = Division(forecast, machine, self._account)

    def state(self, view: PolicyView) -> tuple[object, ...]:
        """Return the account of what is where and on its way, and what was asked for and named."""
        named = tuple(map(tuple, self._named))
        known = *self._account.state(), tuple(sorted(self._shortage.asked)), named, self._spare
        return *known, self._leaving.state(), self._coming.state()

    def moves(self, view: PolicyView) -> Sequence[Move]:
        """Return the moves of a kernel that is about to start."""
        kernel, forecast = view.kernel, self._forecast
        dead = forecast.dead[kernel or forecast.kernels]
        late = self._hold(view, self._look(view, self._enter(view, dead)))
        drops = map(Drop, forecast.dropped[kernel])
        moves = [*map(self._free.__getitem__, dead), *drops, *self._allocations(view)]
        cycles = self._cycles[kernel] + self._coming.cycles(view, late, self._machine)
        if self._shortage.worst() > 0:
            moves += self._evictions(view, cycles)
        moves += self._fetches(view, cycles, dead)
        return moves

    def waits(self, view: PolicyView) -> Iterator[Move]:
        """Let a kernel end only when planned evictions have made room for the next one.

        What comes in for later kernels needs no room yet. More leaves meanwhile, so that no tier is idle.
        Kernels that demand room push out what is at hand, to the fastest tier, next to what is to leave. New
        tensors come in as soon as they have room unless dead ones give room that no transfer uses meanwhile.
        """
        if self._leaving.total_bytes <= self._spare:
            return
        self._leaving.follow(view.in_transfer_bytes)
        leaving = self._leaving.total_bytes
        forecast, following = self._forecast, (view.kernel + 1) % self._forecast.kernels
        born = forecast.born[following]
        gone = (*forecast.dead[view.kernel + 1], *forecast.dropped[following])
        freed = sum(map(view.resident_bytes, gone))
        free = view.free_bytes
        lack = min(leaving - self._spare, self._missing(view, following) - free - freed)
        if lack <= 0:
            return
        self._shortage.count_asked(counts=False)
        yield from self._evictions(view, lack / self._machine.out_rate, wanted=inf)
        unused = free - view.largest_hole_bytes + freed
        room = free + freed + leaving
        if born and following and unused < lack and self._has_victims(view, following, room):
            yield from map(Fetch, born)
            yield Await(frozenset(born), evictions=False, prefetches=True)
            return
        on_their_way = {tensor: self._machine.tiers[tier] for tensor, tier in self._leaving.ways.items()}
        yield Await(first_gone(view, on_their_way, lack, nearest=True))

    def _missing(self, view: PolicyView, following: int) -> int:
        """Return the bytes that the next kernel needs and that are not on the GPU yet.

        What lies where a tensor will be that nobody has asked for counts as free memory.
        """
        sizes, born = self._sizes, self._forecast.born[following]
        asked = self._shortage.asked
        missing = sum(self._absent(view, i) if i in asked else sizes[i] for i in born)
        used = set(self._forecast.needed[following]).difference(born)
        return missing + sum(self._absent(view, tensor) for tensor in used)

    def _has_victims(self, view: PolicyView, following: int, room: int) -> bool:
        """Return whether new tensors of the next kernel push out nothing else that it needs."""
        account, forecast = self._account, self._forecast
        needed = {*forecast.needed[view.kernel], *forecast.needed[following]}
        victims = account.here_bytes - sum(map(account.here.__getitem__, needed))
        return sum(map(self._sizes.__getitem__, forecast.born[following])) <= room + victims

    def victims(self, view: PolicyView) -> list[int]:
        """Return tensors for a full GPU to evict: those first that are needed last."""
        account, there = self._account, set(self._account.present)
        for tensor in (*self._coming.ways, *self._leaving.ways, *self._forecast.needed[view.kernel]):
            if account.alive[tensor]:
                there.discard(tensor)
                if view.resident_bytes(tensor) and not view.is_needed(tensor):
                    there.add(tensor)
        named = sorted(there, key=lambda tensor: (-account.next[tensor], tensor))
        self._named.append(named)
        return named

    def _enter(self, view: PolicyView, dead: Sequence[int]) -> set[int]:
        """Bring next uses and what is alive up to the kernel; return what the one before has used, if any.

        At first all tensors alive are returned.
        """
        kernel, forecast, account = view.kernel, self._forecast, self._account
        gone, born = {*dead, *forecast.dropped[kernel]}, forecast.born[kernel]
        self._shortage.start_kernel(kernel)
        for tensor in gone:
            account.forget(tensor)
            self._leaving.discard(tensor)
            self._coming.discard(tensor)
        if kernel:
            changed = set(filter(account.alive.__getitem__, forecast.needed[kernel - 1]))
            account.use(changed, kernel - 1)
        else:
            self._division.start_iteration()
            changed = ({*forecast.lasting} - gone) | {*born}
            account.start_iteration(changed)
        for tensor in born:
            if not account.alive[tensor]:
                account.bear(tensor)
        return changed

    def _look(self, view: PolicyView, changed: set[int]) -> set[int]:
        """See where tensors are that may have moved; return those that a kernel has left as a whole."""
        account, kernel = self._account, view.kernel
        there: set[int] = set()
        self._seen.clear()
        gone = self._leaving.follow(view.in_transfer_bytes)
        if kernel and self._forecast.on_gpu[kernel - 1] and not self._named:
            # As nobody had to make room, what the kernel used is where it needed it.
            there = changed
            for tensor in there:
                self._coming.discard(tensor)
                if account.here[tensor] < self._sizes[tensor]:
                    account.put(tensor, self._sizes[tensor], 0)
        else:
            gone += changed
        for tensor in (*gone, *(self._leaving.ways if self._named else ())):
            self._has_moved(view, tensor)
        self._coming.follow(partial(self._has_moved, view))
        if any(all(self._has_moved(view, tensor) for tensor in named) for named in self._named):
            for tensor in set(compress(count(), account.alive)) - self._seen:
                self._has_moved(view, tensor)
        return there

    def _hold(self, view: PolicyView, there: Collection[int]) -> set[int]:
        """Let what the kernel needs stay; return the tensors that have yet to arrive, new ones left out."""
        account, sizes = self._account, self._sizes
        late: set[int] = set()
        born = self._forecast.born[view.kernel]
        for tensor in self._forecast.needed[view.kernel]:
            if tensor in there or (account.here[tensor] == sizes[tensor] and not self._named):
                continue
            if account.alive[tensor]:
                self._leaving.discard(tensor)
                account.put(tensor, 0, view.away_bytes(tensor))
            if tensor not in born and not view.is_whole(tensor):
                late.add(tensor)
        self._named.clear()
        return late

    def _has_moved(self, view: PolicyView, tensor: int) -> bool:
        """See a tensor, once; return whether more or less of it is on the GPU than before."""
        account = self._account
        if tensor in self._seen or not account.alive[tensor]:
            return True
        self._seen.add(tensor)
        before, size, here = account.here[tensor], self._sizes[tensor], view.resident_bytes(tensor)
        moving = view.in_transfer_bytes(tensor) if here < size else 0
        if moving:
            self._coming.note(tensor, moving)
        else:
            self._coming.discard(tensor)
            self._leaving.discard(tensor)
        away = size - here
        if tensor not in self._leaving.ways:
            away = view.away_bytes(tensor) if away > moving else 0
        account.put(tensor, here, away)
        return here != before

    def _allocations(self, view: PolicyView) -> Iterator[Move]:
        """Map what is about to be written: at once for this kernel, ahead where there is room until then.

        While tensors leave, room is what is free at once: what waits for theirs keeps others waiting.
        """
        kernel, forecast, asked = view.kernel, self._forecast, self._shortage.asked
        later, born = kernel + 1, forecast.born[kernel]
        # Other tensors may have had their addresses until now.
        yield from map(self._fetch.__getitem__, born)
        self._shortage.forget(born)
        new: dict[int, int] = {}
        for birth, born in enumerate(forecast.born[later : later + self._settings.births], later):
            for tensor in born:
                # Those alive now are dropped and made again before then.
                if tensor not in asked and not self._account.alive[tensor]:
                    new.setdefault(tensor, birth)
        if new or asked:
            yield from self._ahead(view, new)
        yield from map(Fetch, forecast.scratch[kernel])

    def _ahead(self, view: PolicyView, new: Mapping[int, int]) -> Iterator[Move]:
        """Map new tensors before the kernels that make them, each as far as there is room until then.

        What has to return until then takes its room first: copies need more time than mapping.
        """
        kernel, leaving, sizes = view.kernel, self._leaving.total_bytes, self._sizes
        shortage, is_easy, asked = self._shortage, False, self._shortage.asked
        if not leaving and not self._account.absent:
            shortage.count_asked(counts=False)
            is_easy = shortage.worst() + sum(map(sizes.__getitem__, (*asked, *new))) <= 0
        shortage.count_asked(counts=not is_easy)
        if not new:
            return
        # What was discarded is room, too. What others take is looked for only where there is any.
        room, is_known = view.largest_hole_bytes if leaving else view.free_bytes, False
        for tensor, birth in new.items():
            if not is_easy:
                lack = shortage.worst(birth - kernel) + leaving + sizes[tensor]
                if lack > 0 or lack + sum(self._account.returning(kernel, birth)) > 0:
                    continue
            absent = self._absent(view, tensor)
            if absent <= room and not is_known:
                room -= sum([self._absent(view, other) for other in self._forecast.born[kernel]])
                room, is_known = room - sum(map(view.in_transfer_bytes, asked)), True
            if absent <= room:
                room -= absent
                shortage.ask(tensor, birth, sizes[tensor])
                yield self._fetch[tensor]

    def _absent(self, view: PolicyView, tensor: int) -> int:
        """Return the bytes of a tensor that are not on the GPU."""
        return self._sizes[tensor] - view.resident_bytes(tensor)

    def _evictions(self, view: PolicyView, cycles: float, wanted: float | None = None) -> Iterator[Move]:
        """Evict what is needed last, as far as the worst kernel lacks room and links would idle.

        No more than the ``wanted`` bytes are on their way at a time. What the next kernel lacks leaves in any
        case.
        """
        kernel, account, shortage, machine = view.kernel, self._account, self._shortage, self._machine
        queues, unsuited = None, 0
        for tensor in account.present:
            if tensor in self._leaving.ways:
                continue
            away = min(account.next[tensor] - kernel, self._settings.horizon)
            # What the running kernel uses comes last, and ends this.
            worst = shortage.worst(away) if away > 1 else 0
            if worst <= 0:
                return
            if queues is None:
                free = [view.free_bytes_of(tier.name) for tier in machine.tiers]
                queued = [self._leaving.queued[tier] for tier in range(len(free))]
                queues = EvictionQueues(machine, free, cycles + self._settings.backlog_cycles, queued)
                self._division.start_kernel(kernel, queues)
            if shortage.worst_soon() + queues.queued_bytes <= 0:
                if not queues.idle_tiers():
                    return
                wanted = self._wanted(view, cycles) if wanted is None else wanted
                if queues.queued_bytes >= wanted:
                    return
            size = min(account.here[tensor], -(-worst // machine.page_bytes) * machine.page_bytes)
            tier = self._division.place(tensor, size, away, worst)
            if tier is None:
                unsuited += 1
                if self._division.is_choosy and unsuited <= _UNSUITED:
                    continue
                return
            self._leaving.add(tensor, tier, size)
            account.leave(tensor, size, tier)
            yield Evict(tensor, machine.tiers[tier].name, size_bytes=size)

    def _wanted(self, view: PolicyView, cycles: float) -> float:
        """Return the bytes that have to leave by now, where the next kernel has what it needs.

        They make room for what is born until memory is fullest, or for kernels to come and for what can
        return soon. Where all tensors are used in turn, as in decoding, each that leaves earlier is one more
        to return.
        """
        forecast, machine = self._forecast, self._machine
        growth = forecast.most_lacking - int(forecast.lack[view.kernel])
        soon = machine.in_rate * (cycles + _SOON * self._settings.backlog_cycles)
        return max(growth, forecast.largest_set + soon) - view.free_bytes

    def _fetches(self, view: PolicyView, cycles: float, dead: Sequence[int]) -> Iterable[Move]:
        """Fetch in the order of need what fits until it is needed, and what is needed now.

        What has no room before the next decision, in that many cycles, waits for that, which is made with
        better knowledge; dead tensors give room at once. Others go ahead of one that does not fit only if the
        link would idle: they take room that it awaits.
        """
        kernel, account, tiers = view.kernel, self._account, view.tiers
        backlog, coming = self._settings.backlog_cycles, self._coming.total_bytes
        enough = self._machine.in_rate * (self._cycles[kernel] + backlog) - coming
        misfits = added = asked = reached = 0
        worst = -inf
        room: float | None = None
        fetched: list[int] = []
        for tensor in account.absent:
            if tensor in self._coming.ways or tensor in self._leaving.ways:
                continue
            distance, size = account.next[tensor] - kernel, account.away[tensor]
            if distance > 1:
                if reached < (ahead := min(distance, self._settings.horizon)):
                    worst = max(worst, self._shortage.worst_between(reached, ahead))
                    reached = ahead
                lack = worst + added
                if lack + size > 0:
                    misfits += 1
                    if lack >= 0 or misfits > _MISFITS or asked >= enough:
                        break
                    continue
                if room is None:
                    gone = (*dead, *self._forecast.dropped[kernel])
                    leaving = self._machine.out_rate * (cycles + backlog)
                    room = view.free_bytes + sum(map(view.resident_bytes, gone)) + leaving - coming
                if asked >= room:
                    break
                added += size
            way = tuple([tier for tier in tiers if view.bytes_in(tensor, tier)])
            self._coming.add(tensor, way, size)
            fetched.append(tensor)
            asked += size
        self._spare = -(self._shortage.of_next() + added)
        for tensor in fetched:
            account.put(tensor, account.here[tensor], 0)
        return map(self._fetch.__getitem__, fetched)
