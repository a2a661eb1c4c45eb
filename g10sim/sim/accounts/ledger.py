"""Per-job accounting: the time and the traffic of each kernel and each iteration."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TypeAlias

from g10sim.hardware.faults import FaultCount
from g10sim.hardware.pools import Pool
from g10sim.records import (
    CpuRecord,
    IterationRecord,
    KernelRecord,
    StallReason,
    memory_columns,
    traffic_columns,
    word_columns,
)
from g10sim.sim.accounts.repetition import EndState, Repetition
from g10sim.sim.context import JobContext

Beside: TypeAlias = tuple[CpuRecord | None, Mapping[str, int]]
"""Figures of the CPU, where there is one, and bytes sent to other GPUs, by column."""


class Execution:
    """One execution of a kernel while it happens; times in cycles.

    ``busy`` counts the cycles with transfers in flight before it, ``faults`` what faults on either side.
    """

    def __init__(
        self, iteration: int, kernel: int, start: int, duration: int, busy: int, faults: FaultCount
    ) -> None:
        self.iteration, self.kernel, self.start, self.duration = iteration, kernel, start, duration
        self.inputs = self.outputs = faults
        self.in_transfer_pages = 0
        self.busy_at_start = self.busy_at_compute = self.busy_at_end = busy
        self.stalls: tuple[tuple[StallReason, int], ...] = ()


def _labelled(columns: Iterable[str], values: Iterable[int]) -> dict[str, int]:
    return dict(zip(columns, values, strict=True))


class Ledger:
    """Sums executions up to iterations and writes the records."""

    def __init__(self, context: JobContext) -> None:
        machine, memory, trace = context.machine, context.memory, context.job.trace
        self._job, self._gpu, self._memory = context.number, context.gpu, memory
        self._recorder, self._checker = machine.recorder, machine.checker
        self._ideal_cycles = context.ideal_cycles
        self._overlap_is_computing = context.behaviour.breakdown == "computing"
        runs_beside = bool(trace.cpu_kernels or trace.link_kernels)
        self._repetition = Repetition(memory.page_bytes, confirms=runs_beside or machine.has_replicas)

    def open_iteration(self, now: int) -> None:
        """Start accounting for an iteration."""
        memory = self._memory
        memory.restart_peaks()
        for pool in memory.pools.values():
            pool.watch(self._job)
        self._start, self._before = now, memory.traffic.snapshot()
        self._drives_before = {place: pool.snapshot() for place, pool in memory.pools.items()}
        self._compute = self._overlap = self._in_flight = 0
        self._stalls: dict[StallReason, int] = {}

    def close_kernel(self, execution: Execution, now: int, busy: int) -> None:
        """Book a kernel that has just ended; ``busy`` counts cycles with transfers in flight so far."""
        in_flight = busy - execution.busy_at_start
        stalled = now - execution.start - execution.duration
        if self._overlap_is_computing:
            overlap = min(execution.duration, execution.busy_at_end - execution.busy_at_compute)
        else:
            overlap = max(0, in_flight - stalled)
        self._compute += execution.duration
        self._overlap += overlap
        self._in_flight += in_flight
        for reason, cycles in execution.stalls:
            self._stalls[reason] = self._stalls.get(reason, 0) + cycles
        self._recorder.kernel_count += 1
        if self._recorder.wants_memory:
            self._recorder.memory(now, self._gpu, self._memory)
        if self._recorder.wants_kernels or self._checker is not None:
            record = self._record(execution, now, overlap, in_flight)
            if self._recorder.wants_kernels:
                self._recorder.kernels.append(record)
            if self._checker is not None:
                self._checker.kernel_ended(record)

    def _record(self, execution: Execution, now: int, overlap: int, in_flight: int) -> KernelRecord:
        inputs, outputs, tiers = execution.inputs.at, execution.outputs.at, self._memory.kinds
        faults = [inputs[place] + outputs[place] for place in self._memory.tiers]
        return KernelRecord(
            job=self._job,
            gpu=self._gpu,
            iteration=execution.iteration,
            kernel=execution.kernel,
            start=execution.start,
            end=now,
            compute_cycles=execution.duration,
            overlap_cycles=overlap,
            in_flight_cycles=in_flight,
            stalls=execution.stalls,
            in_transfer_pages=execution.in_transfer_pages,
            fault_pages=_labelled(word_columns(tiers, "{}_fault_pages"), faults),
            first_touch_pages=inputs[0] + outputs[0],
            gpu_pages=self._memory.used_pages,
            tier_pages=_labelled(memory_columns(tiers, "{}_pages"), (pool.used for pool in self._memories())),
        )

    def _memories(self) -> Iterable[Pool]:
        """Yield the pools of tiers of kind memory."""
        return (pool for pool in self._memory.pools.values() if pool.tier.kind == "memory")

    def _traffic(self) -> dict[str, int]:
        """Return the bytes of the iteration by column."""
        memory, before = self._memory, self._before
        traffic, page = memory.traffic, memory.page_bytes
        sizes = [
            (now[place] - then[place]) * page
            for place in reversed(memory.tiers)
            for now, then in ((traffic.moved_in, before.moved_in), (traffic.moved_out, before.moved_out))
        ]
        return _labelled(traffic_columns(memory.kinds), sizes)

    def close_iteration(self, iteration: int, now: int, state: EndState, beside: Beside) -> IterationRecord:
        """Book an iteration that has just ended in some state, and what was done next to the GPU."""
        memory, page = self._memory, self._memory.page_bytes
        slowest_first = reversed(memory.pools.items())
        drives = [pool.figures_since(self._drives_before[place]) for place, pool in slowest_first]
        peaks = [pool.peak(self._job) * page for pool in self._memories()]
        traffic, before = memory.traffic, self._before
        record = IterationRecord(
            job=self._job,
            gpu=self._gpu,
            iteration=iteration,
            start=self._start,
            end=now,
            ideal_cycles=self._ideal_cycles,
            compute_cycles=self._compute,
            overlap_cycles=self._overlap,
            in_flight_cycles=self._in_flight,
            stalls=tuple(sorted(self._stalls.items())),
            traffic=self._traffic(),
            page_faults=traffic.faults - before.faults,
            peak_gpu_bytes=memory.peaks[0] * page,
            peaks=_labelled(memory_columns(memory.kinds, "peak_{}_bytes"), peaks),
            contiguous=memory.figures(),
            peak_gpu_bytes_of_all=memory.peaks[1] * page,
            flash=next(filter(None, drives), None),
            in_place_read_bytes=traffic.read_in_place - before.read_in_place,
            in_place_written_bytes=traffic.written_in_place - before.written_in_place,
            cpu=beside[0],
            exchanged=beside[1],
        )
        steady, period = self._repetition.judge(record, state)
        record = replace(record, steady=steady, period=period)
        self._recorder.iterations.append(record)
        if self._checker is not None:
            self._checker.iteration_ended(record, memory)
        return record
