"""FlexGen: a block of batches runs layer by layer, with shares of all data on GPU, host memory and SSD."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import ClassVar

from g10sim.config.system import SystemSpec
from g10sim.errors import UnsupportedError
from g10sim.grouping import grouped
from g10sim.looks import Look
from g10sim.policies.interface import JobPolicy, PlannedMachine, PolicyView
from g10sim.policies.interface.moves import Await, Evict, Fetch, Move, Store
from g10sim.policies.interface.parameters import Count, Declared, Percentages, parameter
from g10sim.policies.interface.registry import register_policy
from g10sim.policies.planning.blocks.attention import with_attention_on_cpu
from g10sim.policies.planning.blocks.homes import GPU, PLACES, Shares, homes_of, most_bytes
from g10sim.policies.planning.blocks.parts import Kind, kinds_of, parts_of
from g10sim.policies.planning.blocks.visits import Overlap, Visit, visits_of, windows_of
from g10sim.policies.planning.offloading.births import Births
from g10sim.policies.planning.offloading.room import FixedPlaces, gpu_peak, require_gpu
from g10sim.trace.model import Device, Trace
from g10sim.trace.workload import Job


class _Job(JobPolicy):
    """The zig-zag schedule of one job, whose tensors have ``homes``.

    When a part begins, what comes meanwhile is asked for; before the next one, it is there, and what left
    after the part before is away. Where nothing overlaps, a part waits for its own data, and what leaves
    after it is away before the next one. ``peak`` is what the GPU holds at most, and
    when; ``below`` are its bytes in the tiers. The published program
    does not pin keys and values there: they are ``pageable``.
    """

    def __init__(
        self,
        trace: Trace,
        sizes: Sequence[int],
        shares: Shares,
        overlap: Overlap,
        births: int,
    ) -> None:
        parts = parts_of(trace)
        homes, kinds = homes_of(trace, parts, shares), kinds_of(trace, parts)
        visits = visits_of(trace, parts, homes, overlap)
        away = [tensor for tensor, home in homes.items() if home != GPU]
        stays = windows_of(trace, parts, visits, leave_later=overlap != "none")
        self.peak = gpu_peak(trace, sizes, {}, births, stays, away)
        below = {tier: [tensor for tensor in away if homes[tensor] == tier] for tier in PLACES[1:]}
        self.below = {tier: most_bytes(trace, sizes, tensors) for tier, tensors in below.items()}
        self.pageable = frozenset(tensor for tensor in away if kinds[tensor] is Kind.CACHE)
        self._trace, self._homes, self._births = trace, homes, Births(trace, births)
        self._starts = {part.first: number for number, part in enumerate(parts)}
        self._ends = {part.last: number for number, part in enumerate(parts)}
        loaded = [one for one in visits if one.loaded is not None]
        self._now = grouped((one.loaded, one.tensor) for one in loaded if one.loaded == one.first)
        self._loads = grouped((one.loaded, one.tensor) for one in loaded if one.loaded != one.first)
        self._leaves = grouped((one.last, one) for one in visits if one.leaves)
        self._overlaps = overlap != "none"

    def on_kernel_start(self, view: PolicyView) -> Iterator[Move]:
        """Load what the next layer and the next batch need."""
        part = self._starts.get(view.kernel)
        if part is not None:
            if now := self._now.get(part):
                yield from map(Fetch, now)
                yield Await(frozenset(now), evictions=False, prefetches=True)
            yield from map(Fetch, self._loads.get(part, ()))
        yield from self._births.before(view.kernel)

    def on_kernel_end(self, view: PolicyView) -> Iterator[Move]:
        """Wait for what was loaded, and send away what is not needed soon."""
        kernel = self._trace.kernels[view.kernel]
        if kernel.device is Device.CPU and kernel.outputs:
            yield from self._after_attention(kernel.touched, kernel.outputs)
        part = self._ends.get(view.kernel)
        if part is None:
            return
        if self._overlaps:
            left = self._leaves.get((part - 1) % len(self._ends), ())
            yield from self._synchronize(left, self._loads.get(part, ()))
        for visit in self._leaves.get(part, ()):
            yield Evict(visit.tensor, self._homes[visit.tensor], is_clean=visit.is_clean)
        if not self._overlaps:
            yield from self._synchronize(self._leaves.get(part, ()))

    def _synchronize(self, left: Sequence[Visit], loaded: Sequence[int] = ()) -> Iterator[Move]:
        waits = frozenset([*(visit.tensor for visit in left), *loaded])
        if waits:
            yield Await(waits, evictions=True, prefetches=True)

    def _after_attention(self, touched: Sequence[int], outputs: Sequence[int]) -> Iterator[Move]:
        """Bring what the CPU makes for the GPU; what lies on the SSD leaves host memory again."""
        for tensor in touched:
            home = self._homes.get(tensor)
            if home == "ssd":
                yield Store(tensor, "ssd", is_clean=tensor not in self._trace.rewritten)
            elif home is None and tensor in outputs and self._trace.uses[tensor]:
                yield Fetch(tensor)


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

    job_class = _Job
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
            raise UnsupportedError(
                f"policy '{self.name}' lets the CPU compute attention, as fast as it reads memory; allowed: "
                "with system.cpu, its memory_bandwidth"
            )
        parts = parts_of(trace)
        homes = homes_of(trace, parts, self._shares)
        return with_attention_on_cpu(trace, parts, homes, loads_ahead=self.overlap != "none")

    def pageable(self, job: int) -> Collection[int]:
        """Return the keys and values below the GPU, which the published program does not pin."""
        started: _Job = self.jobs[job]
        return started.pageable

    def start_job(self, job: Job, machine: PlannedMachine, system: SystemSpec) -> _Job:
        """Give all tensors their homes; the moves follow from that. Raises UnsupportedError."""
        started = _Job(job.trace, machine.sizes(job.trace), self._shares, self.overlap, self.births)
        require_gpu(self.name, system, started.peak, "its shares, and what comes to a layer,")
        return started
