"""Layer-wise offloading, as in vDNN: inputs of layers wait in host memory for the backward pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import compress
from math import inf
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import ValidationError

from g10sim.config.allocator import CachingPoolSpec
from g10sim.config.behaviour import BehaviourSpec
from g10sim.config.effects import Effect
from g10sim.config.problems import describe
from g10sim.config.system import SystemSpec
from g10sim.errors import ConfigError, UnsupportedError
from g10sim.grouping import grouped
from g10sim.looks import RED, Look
from g10sim.policies.designs.vdnn.algorithms import load_table, with_algorithms
from g10sim.policies.designs.vdnn.layers import Layer, Schedule, live_bytes, make_schedule
from g10sim.policies.interface.jobs import PolicyPerJob
from g10sim.policies.interface.machine import PlannedMachine
from g10sim.policies.interface.moves import Await, Evict, Fetch, Move
from g10sim.policies.interface.parameters import AlgorithmsFile, Declared, PoolParameters, parameter
from g10sim.policies.interface.plan import MigrationPlan
from g10sim.policies.interface.policy import Place, Policy, Requirements, Trials
from g10sim.policies.interface.registry import register_policy
from g10sim.policies.planning.moves import MovesByKernel
from g10sim.trace.model import Trace
from g10sim.trace.workload import Job

Mode = Literal["all", "conv", "alternate", "none", "dyn"]
Algorithms = Literal["performance", "memory", "greedy"]
Allocator = Literal["best_fit", "first_fit", "worst_fit", "both_ends", "right_for_resident", "caching"]
Order = Literal["prefetch_first", "gradient_first"]

_ONE_RULE = {"best_fit": Place.BEST, "caching": Place.BEST, "first_fit": Place.LEFT, "worst_fit": Place.WORST}

OFFLOADING = Effect(
    lambda run, policy: policy.offloads, "with layers that offload", "no layer offloads anything"
)
"""Effect of parameters that say how to offload."""


@dataclass(kw_only=True)
class LayerJob(MovesByKernel):
    """Moves of one job, as its ``schedule`` says."""

    schedule: Schedule


def offload(layer: Layer, tensor: int) -> Evict:
    """Return the move that copies one of a layer's inputs out while the layer computes."""
    return Evict(tensor, until=layer.kernels[-1])


def layer_joins(schedule: Schedule) -> Iterator[tuple[int, Move]]:
    """Let layers end with the copies that they issued."""
    for layer in schedule.offloads:
        yield layer.kernels[-1], Await(frozenset(layer.inputs))
    for issuing, layer in schedule.fetches:
        yield issuing.backward[-1], Await(frozenset(layer.inputs), evictions=False, prefetches=True)


class LayerWise(Declared, PolicyPerJob):
    """Offloads the inputs of layers; subclasses choose the layers, and where copies are waited for."""

    allocator: Allocator | PoolParameters = parameter(default="best_fit", published="best_fit (CNMeM), vDNN")
    """Allocator of contiguous memory."""
    order: Order = parameter(default="prefetch_first", effect=OFFLOADING)
    """Order in which a prefetched input and the layer's own results ask for memory."""
    fuse_activations: bool = parameter(default=True)
    """Count an activation function as a part of the layer before it."""

    note = ""
    """Describe the choice."""

    @property
    def offloads(self) -> bool:
        """Return True if anything may leave the GPU."""
        return True

    def _set_up(self) -> None:
        self._caching_pool = CachingPoolSpec() if self.allocator == "caching" else None
        if isinstance(self.allocator, dict):
            try:
                self._caching_pool = CachingPoolSpec.model_validate(self.allocator)
            except ValidationError as error:
                path, message = describe(error, CachingPoolSpec)
                raise ConfigError(f"{'.'.join(map(str, ('allocator', *path)))}: {message}") from None

    @property
    def requirements(self) -> Requirements:
        """Contiguous memory, from a caching pool if that is the allocator."""
        return Requirements(placement="contiguous", caching_pool=self._caching_pool)

    job_class: ClassVar[type[LayerJob]] = LayerJob

    def _copies(
        self, trace: Trace, schedule: Schedule, evict: Callable[[Layer, int], Evict] = offload
    ) -> Iterator[tuple[int, Move]]:
        """Offload what layers read as they begin, and prefetch what the window says."""
        for layer in schedule.offloads:
            first = layer.kernels[0]
            for tensor in layer.inputs:
                if trace.births[tensor] >= first:  # training data: it arrives now
                    yield first, Fetch(tensor)
                yield first, evict(layer, tensor)
        for issuing, layer in schedule.fetches:
            kernel = trace.kernels[issuing.backward[0]]
            results = kernel.tensors if self.order == "gradient_first" else ()
            yield from ((kernel.id, Fetch(tensor)) for tensor in (*results, *layer.inputs))

    def _check_tiers(self, system: SystemSpec) -> None:
        """Raise UnsupportedError for a system without host memory, in which offloaded tensors wait."""
        tiers = [tier.name for tier in system.all_tiers]
        if "host" not in tiers:
            found = f"tiers {', '.join(tiers)}"
            raise UnsupportedError.at(f"policy '{self.name}'", found, "host among them")

    def places(self, job: Job, plan: MigrationPlan | None, behaviour: BehaviourSpec) -> Sequence[Place]:
        """Place blocks as the allocator says; what waits for the backward pass on the GPU may lie apart."""
        trace, tensors = job.trace, job.trace.tensors
        rule = _ONE_RULE.get("caching" if isinstance(self.allocator, dict) else self.allocator)
        if rule is not None:
            return (rule,) * len(tensors)
        alike = (one.trace is trace and one.gpu == job.gpu for one in self.workload.jobs)
        schedule: Schedule = next(compress(self.jobs, alike)).schedule
        border = schedule.last_forward
        made = {t for t, lasts in enumerate(trace.lasting) if trace.births[t] <= border and not lasts}
        kept = {t for t in made if trace.deaths[t] > border + 1}.difference(schedule.offloaded)
        if self.allocator == "both_ends":
            return [Place.RIGHT if one.persistent or one.id in kept else Place.LEFT for one in tensors]
        return [Place.LAST if one.id in kept else Place.BEST for one in tensors]


class SelectiveOffloading(LayerWise):
    """A design whose ``mode`` says which layers offload, with a choice of algorithms for convolutions."""

    mode: Mode = parameter(default="dyn", published="dyn, vDNN")
    """Layers whose inputs are offloaded: ``none``, ``conv``, ``alternate`` (every second of these), ``all``,
    or ``dyn``: the first that fits."""
    algorithms: Algorithms = parameter(default="performance")
    """Choice among the algorithms of ``algorithms_file``: fastest, least scratch space, or greedily
    the fastest that fits."""
    algorithms_file: AlgorithmsFile | None = parameter(default=None)
    """Table of the algorithms of layers, with times and scratch space; without it there are the trace's
    own."""

    def _set_up(self) -> None:
        super()._set_up()
        if self.algorithms != "performance" and (self.algorithms_file is None or self.mode == "dyn"):
            is_dyn = "with mode dyn, which chooses them itself"
            why = is_dyn if self.algorithms_file is not None else "without algorithms_file"
            raise ValueError(f"algorithms: found '{self.algorithms}' {why}; allowed: performance")

    @property
    def offloads(self) -> bool:
        """Return True if the mode offloads any layers."""
        return self.mode != "none"

    def variant(self, mode: Mode, algorithms: Algorithms) -> SelectiveOffloading:
        """Return the same design with another static configuration."""
        return type(self)(**{**self.parameters(), "mode": mode, "algorithms": algorithms})

    def settle(self, obstacle: Trials) -> Policy:
        """Choose a static configuration by trial iterations, as vDNN_dyn does (section III-C).

        All with the least memory must be possible. Then the first of these is taken that is: no offload,
        conv, and all with the fastest algorithms, conv and all with greedily chosen ones, all with the least
        memory. Without a table of algorithms there are only the trace's own, and the list ends with them.
        Raises UnsupportedError when nothing can run.
        """
        if self.mode != "dyn":
            return self
        has_table = self.algorithms_file is not None
        smallest = self.variant("all", "memory" if has_table else "performance")
        reason = obstacle(smallest)
        if reason is not None:
            choice = "the least scratch space" if has_table else "no algorithms_file to choose kernels from"
            raise UnsupportedError(f"{reason}; all layers offload already, with {choice}")
        order: list[tuple[Mode, Algorithms]] = [("none", "performance"), ("conv", "performance")]
        order += [("all", "performance"), ("conv", "greedy"), ("all", "greedy")] if has_table else []
        variants = (self.variant(mode, algorithms) for mode, algorithms in order)
        chosen = next((variant for variant in variants if obstacle(variant) is None), smallest)
        untried = "" if has_table else "; no algorithms_file: greedy choice of algorithms not tried"
        chosen.note = f"dyn chose {chosen.mode}, {chosen.algorithms}{untried}"
        return chosen

    def choose_kernels(self, trace: Trace, system: SystemSpec) -> Trace:
        """Use the chosen algorithms. Raises ConfigError for a table that does not match the trace."""
        if self.algorithms_file is None:
            return trace
        table, memory = load_table(Path(self.algorithms_file), trace), system.gpu.memory
        if self.algorithms == "greedy":
            live = live_bytes(trace, self._schedule(trace))
            return with_algorithms(trace, table, lambda kernel: memory - live[kernel])
        room = inf if self.algorithms == "performance" else -1
        return with_algorithms(trace, table, lambda kernel: room)

    def start_job(self, job: Job, machine: PlannedMachine, system: SystemSpec) -> LayerJob:
        """Decide what a job offloads and prefetches; it is carried out kernel by kernel."""
        self._check_tiers(system)
        trace, schedule = job.trace, self._schedule(job.trace)
        before, after = self._copies(trace, schedule), layer_joins(schedule)
        return LayerJob(grouped(before), grouped(after), schedule=schedule)

    def _schedule(self, trace: Trace) -> Schedule:
        if self.mode == "dyn":
            raise UnsupportedError(f"policy '{self.name}': mode dyn has not chosen a configuration")
        return make_schedule(trace, self.mode, fuse_activations=self.fuse_activations)


@register_policy
class Vdnn(SelectiveOffloading):
    """Layer-wise offloading that is synchronised at the end of every layer.

    While a layer of the forward pass computes, its input, if it is the last to read it, is copied to a pinned
    buffer that is kept for the whole run; the layer ends when both are done, and the input's memory is free.
    When the backward pass comes to a layer, it looks for one input to prefetch in a window that ends at the
    next convolution, and ends only when that has arrived. Whole tensors move, in contiguous memory.
    """

    name = "vdnn"
    label = "vDNN"
    look = Look(RED, "----", "X")
    paper = "Rhu et al., vDNN: Virtualized Deep Neural Networks, MICRO 2016"

    @property
    def requirements(self) -> Requirements:
        """Those of every layer-wise design, and pinned buffers that are kept."""
        return replace(super().requirements, keeps_host_buffers=True)
