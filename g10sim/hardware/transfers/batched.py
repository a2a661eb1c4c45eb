"""Transfers as periodic DMA batches with integer quotas per link (one GPU).

At every multiple of an interval a batch of pages moves at once; the directions are independent. This is
how the published G10 simulator moves data. A batch is computed exactly, run by run; when a batch
uses nothing up, two in a row make the same moves, or the runs of one queue stream in past victims that are
treated alike, as many further ones as must be alike are applied in one step.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from itertools import pairwise

from g10sim.config.behaviour import BehaviourSpec
from g10sim.config.system import SystemSpec, published_drive
from g10sim.errors import ConfigError, InvariantError
from g10sim.hardware.counts import GPU, NONE
from g10sim.hardware.memory import Residency
from g10sim.hardware.pools import Door
from g10sim.hardware.runs import Run
from g10sim.hardware.transfers.interface import Due, Observer, Transfers, VictimRule, report
from g10sim.hardware.transfers.jumps import BatchMove, are_alike, in_turn, repeats_in_room, repeats_of_runs
from g10sim.records import Location
from g10sim.units import format_rate

# Makes a move in half the time of its constructor.
_move = tuple.__new__


class BatchedTransfers(Transfers):
    """Moves the pages in one GPU's queues, batch by batch."""

    def __init__(
        self,
        system: SystemSpec,
        behaviour: BehaviourSpec,
        observer: Observer | None = None,
        door: Door | None = None,
    ) -> None:
        self._door = door or Door()
        self._observer = observer
        if system.gpu.count != 1:
            raise ConfigError(
                f"compat.transfers: batched transfers serve one GPU; found gpu.count {system.gpu.count}"
            )
        pages, link = behaviour.batch_pages, system.pcie.inward
        self.interval_cycles = max(1, pages * system.gpu.page_size * system.gpu.clock // link)
        ssd = published_drive(system)
        slowest = min(ssd.read_bandwidth, ssd.write_bandwidth)
        if pages * slowest < link:
            rates = f"an SSD of {format_rate(slowest)} on a link of {format_rate(link)}"
            found, least = f"{pages}, of which none crosses {rates}", -(-link // slowest)
            raise ConfigError.at("compat.batch_pages", found, f"{least} or more")
        self._link_pages = pages
        self._read_pages = min(pages, pages * ssd.read_bandwidth // link)
        self._write_pages = min(pages, pages * ssd.write_bandwidth // link)
        self._arrival_pages = pages * system.gpu.allocation_rate // link
        self._next = self._busy = self._repeats = self._changes = self.events = 0
        self._host_before = self._at_once = self._foreseen = 0
        self._moves: list[BatchMove] = []
        self._previous: list[BatchMove] = []
        self._stream: BatchMove | None = None
        """All that a batch of a stream brings in. Victims go to its target, or are dropped."""
        self._steady = self._attached = False
        self._stuck = True

    def attach(self, job: int, gpu: int, memory: Residency, victims: VictimRule, due: Due = None) -> None:
        """Serve this job's memory from now on."""
        self._job, self._memory, self._victims = job, memory, victims
        self._host, self._flash = memory.tiers
        self._host_pool = memory.pools[self._host]
        self._attached = True
        self.changed()

    def detach(self, job: int) -> None:
        """Stop serving the memory of a job that has ended."""
        self._attached = False
        self.changed()

    def changed(self, jobs: Collection[int] = (), now: int | None = None, *, others: bool = True) -> None:
        """Forget what was foreseen: queues, working set or eviction order were altered.

        Victims are chosen again for ``jobs``. Raises InvariantError unless transfers are at cycle ``now``.
        """
        self._check_time(now)
        if self._attached and self._job in jobs:
            self._victims.restart()
            self._memory.recency.restart_scan()
        self._repeats = 0
        self._previous = []
        self._stuck = not self._attached

    def _check_time(self, now: int | None) -> None:
        if now is not None and self._next <= now:
            raise InvariantError(f"memory was changed at cycle {now} with transfers at {self._next}")

    def next_change(self, now: int | None = None) -> int | None:
        """Cycle of the next batch that may do something new, or None when nothing will happen.

        Raises InvariantError unless transfers are at the cycle ``now``.
        """
        self._check_time(now)
        if self._stuck or not self._memory.queues.busy:
            return None
        return self._next + self._repeats * self.interval_cycles

    def advance(self, now: int, jobs: Collection[int] | None = None) -> None:
        """Form every batch before the cycle ``now``, and the one at it."""
        while self._next <= now:
            pending = (now - self._next) // self.interval_cycles + 1
            if self._repeats:
                if self._changes != self._door.changes:
                    raise InvariantError("links were not shared anew after memory had changed")
                self._repeat(min(self._repeats, pending))
            elif self._stuck or not self._memory.queues.busy:
                if self._attached and self._memory.queues.busy:
                    self._busy += pending * self.interval_cycles
                self._next += pending * self.interval_cycles
            else:
                self._form_batch()
                self._next += self.interval_cycles

    def follow(self, last: int, *, skips: bool) -> int | None:
        """Advance to a change; if it ``skips``, past those after which a kernel waits for the same faults."""
        place = self._memory.faults_from if skips else None
        reached, change = None, self.next_change()
        while change is not None and change <= last:
            self.advance(change)
            reached = change
            if place is None or self._memory.faults_from is not place:
                break
            change = self.next_change()
        return reached

    def demand(self, job: int, tensor: int) -> None:
        """Put every page of a tensor that is not on the GPU nor in transfer on the fault queues."""
        self._memory.demand(tensor)

    def busy_cycles(self, job: int) -> int:
        """Cycles so far with pages in a queue, whether or not they could move."""
        return self._busy

    def _repeat(self, times: int) -> None:
        self.events += 1
        if self._stream is None:
            self._move_again(times)
        else:
            self._let_in(self._stream, times)
        self._memory.note_peak()
        self._busy += times * self.interval_cycles
        self._repeats -= times
        self._next += times * self.interval_cycles
        self._changes = self._door.changes

    def _move_again(self, times: int) -> None:
        """Repeat the moves of the last batch that often: as many ``_at_once`` as may be, then one alone."""
        pools, since, done = self._memory.pools, self._next, self._foreseen - self._repeats
        while times:
            count = min(times, self._at_once - done % (self._at_once + 1) or 1)
            done += count
            times -= count
            end = since + (count - 1) * self.interval_cycles
            # Leavers of many batches would overfill a pool before the arrivals of the same batches empty it.
            lent = [(pools[move.target], move.pages * count) for move in self._moves if move.target in pools]
            for pool, pages in lent:
                pool.free += pages
            for move in self._moves:
                queue, source, run, victim, pages, target, _ = move
                self._memory.commit(queue, run, pages * count, source, target, victim)
                self._report(move, pages * count, end, since)
            for pool, pages in lent:
                pool.free -= pages
            for pool, _ in lent:
                pool.take(0)
            since = end + self.interval_cycles

    def _let_in(self, stream: BatchMove, times: int) -> None:
        """Let the pages of that many batches arrive, past one victim after another."""
        queue, source, _, _, quota, way, demanded = stream
        memory, victims, done, pages = self._memory, self._victims, 0, quota * times
        while done < pages:
            run = queue[0]
            victim = victims.choose(memory, demanded or run.tensor in memory.needed)
            if victim is None:
                raise InvariantError("fewer pages make room than were foreseen")
            count = min(run.count, victim.count, pages - done)
            target = NONE if victims.is_worthless(victim.tensor) else way
            memory.commit(queue, run, count, source, target, victim)
            if self._observer is not None:
                self._report_part(BatchMove(queue, source, run, victim, count, target, demanded), done, quota)
            done += count

    def _report_part(self, move: BatchMove, done: int, quota: int) -> None:
        """Tell of a part of a stream, after that many of its pages, batch by batch."""
        end = done + move.pages
        first, last = -(-done // quota) * quota, end // quota * quota
        for start, stop in pairwise(sorted({done, end, *(cut for cut in (first, last) if done < cut < end)})):
            since = self._next + start // quota * self.interval_cycles
            until = self._next + (stop - 1) // quota * self.interval_cycles
            self._report(move, stop - start, until, since)

    def _form_batch(self) -> None:
        self.events += 1
        self._moves = []
        self._steady = True
        self._link_in = self._link_out = self._link_pages
        self._flash_in, self._flash_out = self._read_pages, self._write_pages
        self._arrivals = self._arrival_pages
        queues, self._host_before = self._memory.queues, self._host_pool.free
        if any(queues.evict):
            self._evict()
        self._spill = self._host_pool.free == 0
        if any(queues.fault):
            self._arrive(queues.fault, demanded=True)
        if any(queues.prefetch):
            self._arrive(queues.prefetch, demanded=False)
            if not self._moves and self._memory.awaits_needed:
                self._arrive(queues.prefetch, demanded=True)
        self._foresee()

    def _evict(self) -> None:
        queues, pool = self._memory.queues, self._host_pool
        queue = queues.evict[self._flash]
        while queue and self._flash_out and self._link_out:
            self._evict_some(queue, min(self._flash_out, self._link_out), self._flash)
        queue = queues.evict[self._host]
        while queue and self._link_out:
            if pool.free:
                self._evict_some(queue, min(pool.free, self._link_out), self._host)
            elif self._flash_out:
                self._evict_some(queue, min(self._flash_out, self._link_out), self._flash)
            else:
                break

    def _evict_some(self, queue: deque[Run], limit: int, target: Location) -> None:
        run = queue[0]
        count = min(run.count, limit)
        self._spend(count, GPU, target)
        self._memory.commit(queue, run, count, GPU, target)
        self._note(BatchMove(queue, GPU, run, None, count, target, False))

    def _arrive(self, queues: Sequence[deque[Run]], *, demanded: bool) -> None:
        """Bring pages in; those from flash that find no room hold up those behind them."""
        flash, host, new = queues[self._flash], queues[self._host], queues[NONE]
        is_held_up = False
        if flash:
            limit = min(self._flash_in, self._link_in)
            moved = self._serve(flash, self._flash, limit, demanded=demanded)
            self._flash_in -= moved
            self._link_in -= moved
            is_held_up = moved < limit and bool(flash)
        if host and not is_held_up:
            self._link_in -= self._serve(host, self._host, self._link_in, demanded=demanded)
        if new and (demanded or not is_held_up):
            self._serve(new, NONE, self._arrivals, demanded=demanded)

    def _serve(self, queue: deque[Run], source: Location, limit: int, *, demanded: bool) -> int:
        memory, victims, frames, pool = self._memory, self._victims, self._memory.frames, self._host_pool
        moved, is_from_host = 0, source == self._host
        while queue and moved < limit:
            run = queue[0]
            count = run.count if run.count < limit - moved else limit - moved
            victim, target = None, NONE
            if frames.free:
                count = min(count, frames.free)
            else:
                victim = victims.choose(memory, demanded or run.tensor in memory.needed)
                if victim is None or not self._link_out or not (pool.free or self._flash_out):
                    break
                if victim.count < count:
                    count = victim.count
                if not victims.is_worthless(victim.tensor):
                    target, room = self._destination(source)
                    if not room:
                        break
                    if room < count:
                        count = room
                    self._spend(count, source, target)
            moved += count
            if is_from_host:
                self._spill = False
            memory.commit(queue, run, count, source, target, victim)
            self._note(_move(BatchMove, (queue, source, run, victim, count, target, demanded)))
        self._arrivals -= moved
        return moved

    def _destination(self, source: Location) -> tuple[Location, int]:
        """Return the target of the next victims and how many may go there before it is asked again."""
        if self._spill and self._flash_out:
            count = min(self._flash_out, self._link_out)
            return self._flash, 1 if source == self._host else count
        if source == self._host:
            return self._host, self._link_out
        return self._host, min(self._host_pool.free, self._link_out)

    def _spend(self, count: int, source: Location, target: Location) -> None:
        self._link_out -= count
        if target == self._flash:
            self._flash_out -= count
            self._spill = self._flash_out > 0
        elif source != self._host and self._host_pool.free == count:
            self._spill = True

    def _note(self, move: BatchMove) -> None:
        """Remember a move, and whether the next batch is sure to make it again."""
        self._moves.append(move)
        if self._steady:
            _, source, run, victim, pages, _, _ = move
            memory, leaver = self._memory, run if source is GPU else victim
            lasts = memory.frames.free > 0 if victim is None else victim.count > pages
            returns = leaver is not None and leaver.tensor in memory.needed
            self._steady = lasts and run.count > pages and not returns
        if self._observer is not None:
            self._report(move, move.pages, self._next)

    def _report(self, move: BatchMove, pages: int, end: int, first: int | None = None) -> None:
        """Tell of pages that moved in batches: in that at the cycle ``first`` (None: the next) to ``end``."""
        if self._observer is not None:
            moved = [(self._job, 0, run.tensor) for run in (move.run, move.victim) if run is not None]
            span = (self._next if first is None else first) - self.interval_cycles, end
            report(self._observer, moved, (move.source, move.target), span, pages, demanded=move.demanded)

    def _foresee(self) -> None:
        """Decide how many of the following batches must make the same moves as this one."""
        self._memory.note_peak()
        self._changes = self._door.changes
        moves, previous = self._moves, self._previous
        self._previous = moves
        if not moves:
            self._stuck = True
            return
        self._busy += self.interval_cycles
        # Host memory so far from full does not matter to the next batch.
        is_roomy = self._host_pool.free > 2 * self._link_pages
        self._repeats = self._stream_repeats(is_roomy=is_roomy)
        if not self._repeats and ((self._steady and is_roomy) or are_alike(moves, previous)):
            self._stream = None
            repeats, self._at_once = repeats_of_runs(self._memory, moves)
            if repeats and self._at_once:
                self._repeats = min(repeats, repeats_in_room(self._memory, moves, self._link_pages))
            self._foreseen = self._repeats

    def _stream_repeats(self, *, is_roomy: bool) -> int:
        """Batches in which runs of one queue go on to arrive while victims make room alike.

        Whether they are dropped or leave does not matter to runs from a tier whose queue is alone.
        """
        memory, victims, move = self._memory, self._victims, self._moves[-1]
        if not (ahead := in_turn(memory, self._moves)):
            return 0
        batch_pages, targets = sum([one.pages for one in self._moves]), {one.target for one in self._moves}
        if move.source and is_roomy and memory.queues.count == 1:
            targets = {NONE, self._host}
        elif len(targets) > 1 or not (
            is_roomy or NONE in targets or self._host_pool.free == self._host_before
        ):
            return 0
        way = max(targets)
        self._stream = move._replace(pages=batch_pages, target=way)
        most = min((ahead - 1) // batch_pages, repeats_in_room(memory, [self._stream], self._link_pages))
        is_demanded, pages = move.demanded or move.queue[0].tensor in memory.needed, 0
        for victim in victims.upcoming(memory, is_demanded) if most > 0 else ():
            goes_on = NONE in targets if victims.is_worthless(victim.tensor) else way
            if not goes_on or victim.tensor in memory.needed:
                break
            pages += victim.count
            if pages >= most * batch_pages:
                return most
        return pages // batch_pages
