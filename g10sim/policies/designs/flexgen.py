"""FlexGen: a block of batches runs layer by layer, with shares of all data on GPU, host memory and SSD."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

from g10sim.config.system import SystemSpec
from g10sim.grouping import grouped
from g10sim.looks import Look
from g10sim.policies.interface import Await, Evict, Fetch, Move, PlannedMachine, Store
from g10sim.policies.interface.parameters import Count, Declared, Percentages, parameter
from g10sim.policies.interface.registry import register_policy
from g10sim.policies.planning.blocks.homes import GPU, PLACES, Shares, homes_of, most_bytes
from g10sim.policies.planning.blocks.parts import Kind, Part, kinds_of, part_numbers, parts_of
from g10sim.policies.planning.blocks.visits import Overlap, Visit, visits_of, windows_of
from g10sim.policies.planning.moves import MovesByKernel, births
from g10sim.policies.planning.offloading.room import FixedPlaces, gpu_peak, refused, require_gpu
from g10sim.policies.planning.offloading.takeover import added_kernel, numbered
from g10sim.trace.model import Device, Kernel, Phase, Trace
from g10sim.trace.workload import Job


@register_policy
class FlexGen(Declared, FixedPlaces):
    """Weights come once for all batches of a layer, keys and values and states for each batch.

    Of each kind a share lies on the GPU, a share in host memory and the rest on the SSD. While a batch
    computes, what the next one needs comes and what the one before has made leaves; while a layer computes,
    the next layer's weights come. The CPU can compute the attention to keys and values that lie below the
    GPU. A workload whose shares the GPU or a tier cannot hold is unsupported.
    """

    name = "flexgen"
    label = "FlexGen"
    look = Look("#EE8866", "xx--", ".", "5 2 1 2")
    paper = (
        "Sheng et al., FlexGen: High-Throughput Generative Inference of Large Language Models with a Single "
        "GPU, ICML 2023"
    )

    percent: Percentages = parameter(
        default=[100, 0, 100, 0, 100, 0], published="100, 0, 100, 0, 100, 0, published program"
    )
    """Percentages of weights on the GPU and in host memory, of keys and values, and of states: the rest is on
    the SSD."""
    overlap: Overlap = parameter(default="all", published="all, published program")
    """Copies during computing: ``all``; ``batches``, all but those of weights, as in the paper's cost model;
    or ``none``."""
    cpu_attention: bool = parameter(default=False, published="false, published program")
    """Let the CPU compute the attention of new tokens to keys and values below the GPU."""
    births: Count = parameter(default=4)
    """Kernels ahead of which new tensors are mapped."""

    job_class = MovesByKernel
    _kept: ClassVar[Mapping[str, str]] = dict.fromkeys(PLACES[1:], "its shares")

    def _set_up(self) -> None:
        self._shares: Shares = {
            kind: (self.percent[2 * number] / 100, self.percent[2 * number + 1] / 100)
            for number, kind in enumerate(Kind)
        }
        for kind, shares in self._shares.items():
            if sum(shares) > 1:
                found = f"{100 * sum(shares):g} % of {kind}"
                raise ValueError(f"percent: found {found} on GPU and host; allowed: at most 100 %")

    def choose_kernels(self, trace: Trace, system: SystemSpec) -> Trace:
        """Let the CPU compute its part of attention. Raises UnsupportedError without a CPU."""
        if not self.cpu_attention:
            return trace
        rates = system.host.memory_bandwidth, system.cpu and system.cpu.memory_bandwidth
        if system.cpu is None or not any(rates):
            does = "lets the CPU compute attention, as fast as it reads memory"
            raise refused(self.name, does, "with system.cpu, its memory_bandwidth")
        parts = parts_of(trace)
        homes = homes_of(trace, parts, self._shares)
        return _with_attention_on_cpu(trace, parts, homes, loads_ahead=self.overlap != "none")

    def pageable(self, job: int) -> Collection[int]:
        """Return the keys and values below the GPU, which the published program does not pin."""
        started: MovesByKernel = self.jobs[job]
        return started.pageable

    def start_job(self, job: Job, machine: PlannedMachine, system: SystemSpec) -> MovesByKernel:
        """Give all tensors their homes; the moves follow from that. Raises UnsupportedError.

        The published program does not pin keys and values below the GPU.
        """
        trace, sizes = job.trace, machine.sizes(job.trace)
        parts = parts_of(trace)
        homes, kinds = homes_of(trace, parts, self._shares), kinds_of(trace, parts)
        visits = visits_of(trace, parts, homes, self.overlap)
        away = [tensor for tensor, home in homes.items() if home != GPU]
        stays = windows_of(trace, parts, visits, leave_later=self.overlap != "none")
        peak = gpu_peak(trace, sizes, {}, self.births, stays, away)
        require_gpu(self.name, system, peak, "its shares, and what comes to a layer,")
        below = {tier: [tensor for tensor in away if homes[tensor] == tier] for tier in PLACES[1:]}
        leaving = _departures(parts, homes, visits, overlaps=self.overlap != "none")
        return MovesByKernel(
            grouped([*_arrivals(parts, visits), *births(trace, self.births)]),
            grouped([*_after_attention(trace, homes), *leaving]),
            below={tier: most_bytes(trace, sizes, tensors) for tier, tensors in below.items()},
            pageable=frozenset(tensor for tensor in away if kinds[tensor] is Kind.CACHE),
        )


def _attention_kernels(trace: Trace, parts: Sequence[Part], homes: Mapping[int, str]) -> frozenset[int]:
    """Return the kernels that the CPU takes over: those that read keys and values of earlier parts.

    So it is only where these lie below the GPU, and not for prompts: passes of a layer with larger states
    than its last one. What such a kernel makes of keys and values stays on the CPU, with the kernels that
    read it, until it is no larger than states are.
    """
    kinds, numbers = kinds_of(trace, parts), part_numbers(parts)
    states = [0] * len(parts)
    for kernel in trace.kernels:
        large = (trace.tensors[t].size_bytes for t in kernel.touched if kinds.get(t) is Kind.STATES)
        states[numbers[kernel.id]] = max(states[numbers[kernel.id]], *large, 0)
    last = {(part.block, part.batch): states[number] for number, part in enumerate(parts)}
    made, derived, found = dict[int, int](), set[int](), set[int]()
    for kernel in trace.kernels:
        part = numbers[kernel.id]
        read = (t for t in kernel.inputs if kinds.get(t) is Kind.CACHE and homes[t] != GPU)
        is_token = states[part] <= last[parts[part].block, parts[part].batch]
        if is_token and (any(made.get(t, -1) < part for t in read) or not derived.isdisjoint(kernel.inputs)):
            found.add(kernel.id)
            derived.update(t for t in kernel.outputs if trace.tensors[t].size_bytes > states[part])
        for tensor in kernel.outputs:
            if not trace.lasting[tensor]:
                made.setdefault(tensor, part)
    return frozenset(found)


def _with_attention_on_cpu(
    trace: Trace, parts: Sequence[Part], homes: Mapping[int, str], *, loads_ahead: bool
) -> Trace:
    """Return the trace in which the CPU runs its part of attention, as fast as memory delivers the data.

    With ``loads_ahead`` what lies on the SSD comes to host memory while the part before computes: a kernel
    without work asks for it, after the attention of that part.
    """
    taken = _attention_kernels(trace, parts, homes)
    kernels = list[Kernel]()
    for number, part in enumerate(parts):
        mine = [trace.kernels[kernel] for kernel in range(part.first, part.last + 1)]
        loads = list(_loads(trace, parts, number + 1, taken, homes)) if loads_ahead else []
        after = max((kernel.id for kernel in mine if kernel.id in taken), default=part.first)
        for kernel in mine:
            on_cpu = replace(kernel, device=Device.CPU, duration=0, fault_profile=None)
            kernels.append(on_cpu if kernel.id in taken else kernel)
            kernels += loads if kernel.id == after else ()
    if not taken:
        return trace
    return replace(trace, kernels=numbered(kernels))


def _loads(
    trace: Trace, parts: Sequence[Part], number: int, taken: frozenset[int], homes: Mapping[int, str]
) -> Iterator[Kernel]:
    """Yield the kernel that brings what a part's attention reads from the SSD, if there is any.

    The part after the last one is the first one of the next iteration.
    """
    part, is_next = parts[number % len(parts)], number < len(parts)
    mine = (trace.kernels[kernel] for kernel in range(part.first, part.last + 1) if kernel in taken)
    below = dict.fromkeys(t for kernel in mine for t in kernel.inputs if homes.get(t) == "ssd")
    read = tuple(tensor for tensor in below if is_next or trace.lasting[tensor])
    if read:
        yield added_kernel(
            "Load keys and values", read, (), phase=Phase.OTHER, device=Device.CPU, moved_bytes=1
        )


def _arrivals(parts: Sequence[Part], visits: Sequence[Visit]) -> Iterator[tuple[int, Move]]:
    """Ask for what comes when a part begins; a part waits for what it needs itself."""
    for number, loaded in grouped((visit.loaded, visit) for visit in visits).items():
        if number is not None:
            kernel, now = parts[number].first, [one.tensor for one in loaded if one.first == number]
            yield from ((kernel, Fetch(tensor)) for tensor in now)
            if now:
                yield kernel, Await(frozenset(now), evictions=False, prefetches=True)
            yield from ((kernel, Fetch(one.tensor)) for one in loaded if one.first != number)


def _departures(
    parts: Sequence[Part], homes: Mapping[int, str], visits: Sequence[Visit], *, overlaps: bool
) -> Iterator[tuple[int, Move]]:
    """Send away what leaves after a part, which ends when what was asked for is there.

    Before the next part ends, it is away; where nothing ``overlaps``, before that part begins.
    """
    coming = grouped((one.loaded, one.tensor) for one in visits if one.loaded != one.first)
    leaving = grouped((one.last, one) for one in visits if one.leaves)
    for number, part in enumerate(parts):
        own = leaving.get(number, ())
        moves: list[Move] = [Evict(one.tensor, homes[one.tensor], is_clean=one.is_clean) for one in own]
        left = leaving.get((number - 1) % len(parts) if overlaps else number, ())
        waits = {*(one.tensor for one in left), *(coming.get(number, ()) if overlaps else ())}
        if waits:
            wait = Await(frozenset(waits), evictions=True, prefetches=True)
            moves = [wait, *moves] if overlaps else [*moves, wait]
        yield from ((part.last, move) for move in moves)


def _after_attention(trace: Trace, homes: Mapping[int, str]) -> Iterator[tuple[int, Move]]:
    """Bring what the CPU makes for the GPU; what lies on the SSD leaves host memory again."""
    for kernel in trace.cpu_kernels:
        for tensor in kernel.touched if kernel.outputs else ():
            home = homes.get(tensor)
            if home == "ssd":
                yield kernel.id, Store(tensor, "ssd", is_clean=tensor not in trace.rewritten)
            elif home is None and tensor in kernel.outputs and trace.uses[tensor]:
                yield kernel.id, Fetch(tensor)
