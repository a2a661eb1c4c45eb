"""FlexGen: a block of batches runs layer by layer, with shares of all data on GPU, host memory and SSD."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from g10sim.config.behaviour import BehaviourSpec
from g10sim.config.system import SystemSpec
from g10sim.errors import UnsupportedError
from g10sim.looks import Look
from g10sim.policies.interface.moves import Move
from g10sim.policies.interface.parameters import Count, Declared, Percentages, parameter
from g10sim.policies.interface.plan import MigrationPlan
from g10sim.policies.interface.policy import Policy, PolicyView, Requirements
from g10sim.policies.interface.registry import register_policy
from g10sim.policies.planning.blocks.attention import with_attention_on_cpu
from g10sim.policies.planning.blocks.homes import GPU, PLACES, Shares, homes_of, most_bytes
from g10sim.policies.planning.blocks.parts import Kind, kinds_of, parts_of
from g10sim.policies.planning.blocks.schedule import Schedule
from g10sim.policies.planning.blocks.visits import Overlap, visits_of, windows_of
from g10sim.policies.planning.machine import page_sizes
from g10sim.policies.planning.offloading.room import gpu_peak, require_gpu, require_tier
from g10sim.trace.model import Trace
from g10sim.trace.workload import Workload


@register_policy
class FlexGen(Declared, Policy):
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
    requirements = Requirements(
        addresses="own", drops_dead_tensors=True, keeps_mappings=True, pins_on_use=True
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

    def _set_up(self) -> None:
        self._shares: Shares = {
            kind: (self.percent[2 * number] / 100, self.percent[2 * number + 1] / 100)
            for number, kind in enumerate(Kind)
        }
        for kind, shares in self._shares.items():
            if sum(shares) > 1:
                found = f"{100 * sum(shares):g} % of {kind}"
                raise ValueError(f"percent: found {found} on GPU and host; allowed: at most 100 %")
        self._jobs: tuple[Schedule, ...] = ()
        self._pageable: tuple[frozenset[int], ...] = ()

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

    def plan(
        self, workload: Workload, system: SystemSpec, behaviour: BehaviourSpec
    ) -> Sequence[MigrationPlan | None]:
        """Give all tensors their homes; the moves follow from that. Raises UnsupportedError."""
        below = dict.fromkeys(PLACES[1:], 0)
        jobs, pageable = list[Schedule](), list[frozenset[int]]()
        for job in workload.jobs:
            trace, sizes = job.trace, page_sizes(job.trace, system.gpu.page_size)
            parts = parts_of(trace)
            homes, kinds = homes_of(trace, parts, self._shares), kinds_of(trace, parts)
            visits = visits_of(trace, parts, homes, self.overlap)
            stays = windows_of(trace, parts, visits, leave_later=self.overlap != "none")
            away = [tensor for tensor, home in homes.items() if home != GPU]
            needed, kernel = gpu_peak(trace, sizes, {}, self.births, stays, away)
            require_gpu(self.name, system, needed, kernel, "its shares, and what comes to a layer,")
            for tier in below:
                below[tier] += most_bytes(trace, sizes, [t for t, home in homes.items() if home == tier])
            jobs.append(Schedule(trace, parts, homes, visits, self.overlap, self.births))
            pageable.append(frozenset(tensor for tensor in away if kinds[tensor] is Kind.CACHE))
        for tier, size in below.items():
            if size:
                require_tier(self.name, system, tier, size, "its shares")
        self._jobs, self._pageable = tuple(jobs), tuple(pageable)
        return (None,) * len(jobs)

    def pageable(self, job: int) -> frozenset[int]:
        """Return the keys and values below the GPU, which the published program does not pin."""
        return self._pageable[job]

    def on_kernel_start(self, view: PolicyView) -> Iterator[Move]:
        """Load what the next layer and the next batch need."""
        yield from self._jobs[view.job].before(view)

    def on_kernel_end(self, view: PolicyView) -> Iterator[Move]:
        """Wait for what was loaded, and send away what is not needed soon."""
        yield from self._jobs[view.job].after(view)
