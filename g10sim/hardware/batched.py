"""Transfers as periodic DMA batches with integer quotas per link (one GPU).

At every multiple of an interval a batch of pages moves at once; the directions are independent. This is
how the published G10 simulator moves data. A batch is computed exactly, run by run; when a batch
uses nothing up, or two in a row make the same moves, as many further ones as must be alike are applied
in one step.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from g10sim.config.behaviour import BehaviourSpec
from g10sim.config.system import SystemSpec
from g10sim.errors import ConfigError
from g10sim.hardware.memory import GpuMemory
from g10sim.hardware.recency import MERGE_PAGES, Run
from g10sim.hardware.transfers import Due, Observer, cause_of
from g10sim.hardware.victims import VictimRule
from g10sim.records import Location, StallReason
from g10sim.units import format_rate

_NONE, _GPU, _HOST, _FLASH = Location.NONE, Location.GPU, Location.HOST, Location.FLASH


class _Move(NamedTuple):
    """``pages`` of ``run`` came from ``source``; as many of ``victim`` went to ``target`` for them.

    A planned eviction has source GPU, no victim, and its own target.
    """

    queue: deque[Run]
    source: Location
    run: Run
    victim: Run | None
    pages: int
    target: Location
    demanded: bool

    def same(self, other: _Move) -> bool:
        """Whether two moves take the same number of pages from the same runs to the same place."""
        return (
            self.run is other.run
            and self.victim is other.victim
            and self.pages == other.pages
            and self.target == other.target
            and self.source == other.source
        )


class BatchedTransfers:
    """Moves the pages in one GPU's queues, batch by batch."""

    _job: int
    _memory: GpuMemory
    _victims: VictimRule

    def __init__(
        self, system: SystemSpec, behaviour: BehaviourSpec, observer: Observer | None = None
    ) -> None:
        if system.gpu.count != 1:
            raise ConfigError(
                f"compat.transfers: batched transfers serve one GPU; found gpu.count {system.gpu.count}"
            )
        pages, link = behaviour.batch_pages, system.pcie.bandwidth
        self.interval_cycles = max(1, pages * system.gpu.page_size * system.gpu.clock // link)
        slowest = min(system.ssd.read_bandwidth, system.ssd.write_bandwidth)
        if pages * slowest < link:
            raise ConfigError(
                f"compat.batch_pages: found {pages}, of which none crosses an SSD of {format_rate(slowest)} "
                f"on a link of {format_rate(link)}; allowed: {-(-link // slowest)} or more"
            )
        self._link_pages = pages
        self._read_pages = min(pages, pages * system.ssd.read_bandwidth // link)
        self._write_pages = min(pages, pages * system.ssd.write_bandwidth // link)
        self._arrival_pages = pages * system.gpu.allocation_rate // link
        self.events = 0
        self._observer = observer
        self._next = 0
        self._busy = 0
        self._repeats = 0
        self._moves: list[_Move] = []
        self._steady = False
        self._previous: list[_Move] | None = None
        self._stuck = True
        self._attached = False

    def attach(
        self, job: int, gpu: int, memory: GpuMemory, victims: VictimRule, due: Due | None = None
    ) -> None:
        """Serve this job's memory from now on."""
        self._job = job
        self._memory = memory
        self._victims = victims
        self._attached = True
        self.changed()

    def detach(self, job: int) -> None:
        """Stop serving the memory of a job that has ended."""
        self.changed()
        self._attached = False
        self._stuck = True

    def changed(self) -> None:
        """Forget what was foreseen: queues, working set or eviction order were altered."""
        self._repeats = 0
        self._previous = None
        self._stuck = False

    def next_change(self) -> int | None:
        """Cycle of the next batch that may do something new, or None when nothing will happen."""
        if self._stuck or not self._memory.queues.busy:
            return None
        return self._next + self._repeats * self.interval_cycles

    def advance(self, now: int) -> None:
        """Form every batch before the cycle ``now``, and the one at it."""
        while self._next <= now:
            pending = (now - self._next) // self.interval_cycles + 1
            if self._repeats:
                self._repeat(min(self._repeats, pending))
            elif self._stuck or not self._memory.queues.busy:
                if self._attached and self._memory.queues.busy:
                    self._busy += pending * self.interval_cycles
                self._next += pending * self.interval_cycles
            else:
                self._form_batch()
                self._next += self.interval_cycles

    def demand(self, job: int, tensor: int) -> None:
        """Put every page of a tensor that is not on the GPU nor in transfer on the fault queues."""
        self._memory.demand(tensor)

    def busy_cycles(self, job: int) -> int:
        """Cycles so far with pages in a queue, whether or not they could move."""
        return self._busy

    def bottleneck(self, job: int) -> StallReason | None:
        """Return None: batches have no bottleneck beyond their own quotas."""
        return None

    def _repeat(self, times: int) -> None:
        self.events += 1
        pools = {_HOST: self._memory.host_pool, _FLASH: self._memory.flash_pool}
        # Leavers of many batches would overfill a pool before the arrivals of the same batches empty it.
        lent = [(pools[move.target], move.pages * times) for move in self._moves if move.target in pools]
        for pool, count in lent:
            pool.free += count
        for move in self._moves:
            self._apply(move._replace(pages=move.pages * times))
            if self._observer is not None:
                end = self._next + (times - 1) * self.interval_cycles
                self._report(move, times, end)
        for pool, count in lent:
            pool.free -= count
        for pool in pools.values():
            pool.take(0)
        self._memory.note_peak()
        self._busy += times * self.interval_cycles
        self._repeats -= times
        self._next += times * self.interval_cycles

    def _form_batch(self) -> None:
        self.events += 1
        self._moves = []
        self._steady = True
        self._link_in = self._link_out = self._link_pages
        self._flash_in, self._flash_out = self._read_pages, self._write_pages
        self._arrivals = self._arrival_pages
        self._evict()
        self._spill = self._memory.host_pool.free == 0
        queues = self._memory.queues
        self._fetch(queues.fault_flash, queues.fault_host, demanded=True)
        self._serve(queues.fault_absent, _NONE, self._arrivals, demanded=True)
        if self._fetch(queues.prefetch_flash, queues.prefetch_host, demanded=False):
            self._serve(queues.prefetch_absent, _NONE, self._arrivals, demanded=False)
        if not self._moves and self._memory_waits():
            self._fetch(queues.prefetch_flash, queues.prefetch_host, demanded=True)
            self._serve(queues.prefetch_absent, _NONE, self._arrivals, demanded=True)
        self._foresee()

    def _memory_waits(self) -> bool:
        moving = self._memory.moving
        return any(moving[tensor] for tensor in self._memory.needed)

    def _evict(self) -> None:
        queues, pool = self._memory.queues, self._memory.host_pool
        queue = queues.evict_flash
        while queue and self._flash_out and self._link_out:
            self._evict_some(queue, min(self._flash_out, self._link_out), _FLASH)
        queue = queues.evict_host
        while queue and self._link_out:
            if pool.free:
                self._evict_some(queue, min(pool.free, self._link_out), _HOST)
            elif self._flash_out:
                self._evict_some(queue, min(self._flash_out, self._link_out), _FLASH)
            else:
                break

    def _evict_some(self, queue: deque[Run], limit: int, target: Location) -> None:
        run = queue[0]
        count = min(run.count, limit)
        self._link_out -= count
        if target is _FLASH:
            self._flash_out -= count
        self._do(_Move(queue, _GPU, run, None, count, target, False))

    def _fetch(self, flash: deque[Run], host: deque[Run], *, demanded: bool) -> bool:
        """Bring pages in; False when pages from flash found no room, which holds up those behind."""
        limit = min(self._flash_in, self._link_in)
        moved = self._serve(flash, _FLASH, limit, demanded=demanded)
        self._flash_in -= moved
        self._link_in -= moved
        if moved < limit and flash:
            return False
        self._link_in -= self._serve(host, _HOST, self._link_in, demanded=demanded)
        return True

    def _serve(self, queue: deque[Run], source: Location, limit: int, *, demanded: bool) -> int:
        memory = self._memory
        moved = 0
        while queue and moved < limit:
            run = queue[0]
            count = min(run.count, limit - moved)
            victim, target = None, _NONE
            if memory.free:
                count = min(count, memory.free)
            else:
                victim = self._victims.choose(memory, demanded or run.tensor in memory.needed)
                if victim is None:
                    break
                count = min(count, victim.count)
                target, room = self._destination(source)
                if not room:
                    break
                if self._victims.is_worthless(victim.tensor):
                    target = _NONE
                else:
                    count = min(count, room)
                    self._spend(count, source, target)
            moved += count
            if source is _HOST:
                self._spill = False
            self._do(_Move(queue, source, run, victim, count, target, demanded))
        self._arrivals -= moved
        return moved

    def _destination(self, source: Location) -> tuple[Location, int]:
        """Where the next victims go and how many may before that has to be asked again."""
        free = self._memory.host_pool.free
        if not self._link_out or (not free and not self._flash_out):
            return _NONE, 0
        if self._spill and self._flash_out:
            count = min(self._flash_out, self._link_out)
            return _FLASH, 1 if source is _HOST else count
        return _HOST, self._link_out if source is _HOST else min(free, self._link_out)

    def _spend(self, count: int, source: Location, target: Location) -> None:
        self._link_out -= count
        if target is _FLASH:
            self._flash_out -= count
            self._spill = self._flash_out > 0
        elif source is not _HOST and self._memory.host_pool.free == count:
            self._spill = True

    def _do(self, move: _Move) -> None:
        self._apply(move)
        self._steady = self._steady and self._leaves_all_alike(move)
        self._moves.append(move)
        if self._observer is not None:
            self._report(move, 1, self._next)

    def _leaves_all_alike(self, move: _Move) -> bool:
        """Whether a move used nothing up and sent nothing back to the fault queues."""
        victim = move.victim
        if victim is None:
            returns = move.source is _GPU and move.run.tensor in self._memory.needed
            return bool(move.run.count and self._memory.free) and not returns
        return bool(move.run.count and victim.count) and victim.tensor not in self._memory.needed

    def _report(self, move: _Move, times: int, end: int) -> None:
        start = self._next - self.interval_cycles
        tensor = move.run.tensor
        self._tell(tensor, move.source, move.target if move.source is _GPU else _GPU, move, times, start, end)
        if move.victim is not None:
            self._tell(move.victim.tensor, _GPU, move.target, move, times, start, end)

    def _tell(
        self,
        tensor: int,
        source: Location,
        target: Location,
        move: _Move,
        times: int,
        start: int,
        end: int,
    ) -> None:
        if self._observer is not None:
            cause = cause_of(source, planned=move.source is _GPU, demanded=move.demanded)
            self._observer(self._job, 0, tensor, source, target, cause, start, end, move.pages * times)

    def _apply(self, move: _Move) -> None:
        queue, source, run, victim, count, target, _ = move
        memory, tensor = self._memory, move.run.tensor
        run.count -= count
        memory.moving[tensor] -= count
        if source is _GPU:
            memory.free += count
            memory.deposit(tensor, count, target)
        else:
            memory.arrive(tensor, count, source)
            if victim is None:
                memory.free -= count
            else:
                victim.count -= count
                memory.idle[victim.tensor] -= count
                memory.deposit(victim.tensor, count, target)
        if not run.count and queue and queue[0] is run:
            queue.popleft()

    def _foresee(self) -> None:
        """Decide how many of the following batches must make the same moves as this one."""
        self._memory.note_peak()
        moves, previous = self._moves, self._previous
        self._previous = moves
        if not moves:
            self._stuck = True
            return
        self._busy += self.interval_cycles
        if (self._steady and self._host_is_roomy()) or self._same_moves(previous):
            self._repeats = max(0, min(self._run_repeats(), self._room_repeats()))

    def _host_is_roomy(self) -> bool:
        """Whether host memory is so far from full that it cannot matter to the next batch."""
        return self._memory.host_pool.free > 2 * self._link_pages

    def _same_moves(self, previous: list[_Move] | None) -> bool:
        moves = self._moves
        if previous is None or len(previous) != len(moves):
            return False
        return all(move.same(other) for move, other in zip(moves, previous, strict=True))

    def _run_repeats(self) -> int:
        """Batches until a run is used up, and until interleaved arrivals would blur the order too much."""
        memory = self._memory
        used: dict[Run, int] = {}
        arrivals: dict[int, int] = {}
        for _, source, run, victim, count, target, _ in self._moves:
            used[run] = used.get(run, 0) + count
            if source is not _GPU:
                arrivals[run.tensor] = arrivals.get(run.tensor, 0) + count
            leaver = run.tensor if source is _GPU else None
            if victim is not None:
                used[victim] = used.get(victim, 0) + count
                leaver = victim.tensor
            if leaver in memory.needed and target is not _NONE:
                back = memory.queues.fault_host if target is _HOST else memory.queues.fault_flash
                if back and back[-1].tensor == leaver:
                    used[back[-1]] = used.get(back[-1], 0) - count
        repeats = (
            min((run.count - 1) // use for run, use in used.items() if use > 0)
            if any(use > 0 for use in used.values())
            else MERGE_PAGES
        )
        if len(arrivals) > 1:
            repeats = min(repeats, MERGE_PAGES // max(arrivals.values()))
        return repeats

    def _room_repeats(self) -> int:
        """Batches until the GPU, host memory or flash comes so close to full that moves may differ."""
        memory = self._memory
        gpu = host = flash = 0
        for _, source, _, victim, count, target, _ in self._moves:
            host += count * ((target is _HOST) - (source is _HOST))
            flash += count * ((target is _FLASH) - (source is _FLASH))
            if source is _GPU:
                gpu -= count
            elif victim is None:
                gpu += count
        limits = [1 << 62]
        if gpu > 0:
            limits.append((memory.free - 1) // gpu)
        if host > 0:
            limits.append((memory.host_pool.free - self._link_pages - 1) // host)
        if flash > 0:
            limits.append(memory.flash_pool.free // flash)
        return min(limits)
