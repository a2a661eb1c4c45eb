"""The books of one job: what each kernel and each iteration cost and moved."""

from __future__ import annotations

from dataclasses import dataclass

from g10sim.hardware.faults import FaultCount
from g10sim.hardware.memory import GpuMemory
from g10sim.records import IterationRecord, KernelRecord, StallReason
from g10sim.sim.checks import Checker
from g10sim.sim.recorder import Recorder
from g10sim.trace.model import Kernel


@dataclass(slots=True)
class Execution:
    """One execution of a kernel while it happens; times in cycles."""

    iteration: int
    kernel: Kernel
    start: int
    duration: int
    in_transfer_pages: int
    inputs: FaultCount
    outputs: FaultCount
    busy_at_start: int
    busy_at_compute: int = 0
    busy_at_end: int = 0
    stalls: tuple[tuple[StallReason, int], ...] = ()

    @property
    def faulting_pages(self) -> int:
        """Pages that faulted."""
        return self.inputs.faulting + self.outputs.faulting


class Ledger:
    """Sums executions up to iterations and writes the records."""

    def __init__(
        self,
        job: int,
        gpu: int,
        memory: GpuMemory,
        recorder: Recorder,
        checker: Checker | None,
        *,
        overlap_is_computing: bool,
    ) -> None:
        self._job, self._gpu, self._memory = job, gpu, memory
        self._recorder, self._checker = recorder, checker
        self._overlap_is_computing = overlap_is_computing

    def open_iteration(self, now: int) -> None:
        """Start the books of an iteration."""
        memory = self._memory
        memory.restart_peaks()
        memory.host_pool.watch(self._job)
        self._start, self._before = now, memory.traffic.snapshot()
        self._flash_before = memory.flash_pool.snapshot()
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
            self._write(self._record(execution, now, overlap, in_flight))

    def _record(self, execution: Execution, now: int, overlap: int, in_flight: int) -> KernelRecord:
        inputs, outputs = execution.inputs, execution.outputs
        return KernelRecord(
            job=self._job,
            gpu=self._gpu,
            iteration=execution.iteration,
            kernel=execution.kernel.id,
            start=execution.start,
            end=now,
            compute_cycles=execution.duration,
            overlap_cycles=overlap,
            in_flight_cycles=in_flight,
            stalls=execution.stalls,
            in_transfer_pages=execution.in_transfer_pages,
            host_fault_pages=inputs.host + outputs.host,
            flash_fault_pages=inputs.flash + outputs.flash,
            first_touch_pages=inputs.absent + outputs.absent,
            gpu_pages=self._memory.used,
            host_pages=self._memory.host_pool.used,
        )

    def _write(self, record: KernelRecord) -> None:
        if self._recorder.wants_kernels:
            self._recorder.kernel(record)
        if self._checker is not None:
            self._checker.kernel_ended(record)

    def close_iteration(self, iteration: int, now: int, ideal_cycles: int) -> None:
        """Book an iteration that has just ended."""
        memory, page = self._memory, self._memory.page_bytes
        flash_in, flash_out, host_in, host_out, faults = (
            after - earlier for after, earlier in zip(memory.traffic.snapshot(), self._before, strict=True)
        )
        memory.note_peak()
        record = IterationRecord(
            job=self._job,
            gpu=self._gpu,
            iteration=iteration,
            start=self._start,
            end=now,
            ideal_cycles=ideal_cycles,
            compute_cycles=self._compute,
            overlap_cycles=self._overlap,
            in_flight_cycles=self._in_flight,
            stalls=tuple(sorted(self._stalls.items())),
            ssd_to_gpu_bytes=flash_in * page,
            gpu_to_ssd_bytes=flash_out * page,
            host_to_gpu_bytes=host_in * page,
            gpu_to_host_bytes=host_out * page,
            page_faults=faults,
            peak_gpu_bytes=memory.peak_used * page,
            peak_host_bytes=memory.host_pool.peak(self._job) * page,
            contiguous=memory.contiguous_figures(),
            peak_gpu_bytes_of_all=memory.peak_used_by_all * page,
            flash=memory.flash_pool.figures_since(self._flash_before),
        )
        self._recorder.iteration(record)
        if self._checker is not None:
            self._checker.iteration_ended(record, memory)
