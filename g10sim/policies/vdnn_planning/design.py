"""What vDNN and vDNN++ have in common: inputs of layers wait in host memory for the backward pass."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal, get_args

from pydantic import ValidationError

from g10sim.config.allocator import CachingPoolSpec
from g10sim.config.behaviour import BehaviourSpec
from g10sim.config.problems import describe
from g10sim.config.system import SystemSpec
from g10sim.errors import ConfigError, UnsupportedError
from g10sim.policies.base import (
    Action,
    Evict,
    Place,
    Policy,
    PolicyView,
    Prefetch,
    Trials,
)
from g10sim.policies.plan import MigrationPlan
from g10sim.policies.vdnn_planning.algorithms import (
    check_table_file,
    choose,
    fastest_within,
    least_workspace,
    load_table,
    with_algorithms,
)
from g10sim.policies.vdnn_planning.layers import Layer
from g10sim.policies.vdnn_planning.schedule import Schedule, live_bytes, make_schedule
from g10sim.records import Location
from g10sim.trace.model import TensorKind, Trace
from g10sim.trace.workload import Job, Workload

Mode = Literal["all", "conv", "alternate", "none", "dyn"]
Algorithms = Literal["performance", "memory", "greedy"]
Allocator = Literal["best_fit", "first_fit", "worst_fit", "both_ends", "right_for_resident", "caching"]
Order = Literal["prefetch_first", "gradient_first"]

_ONE_RULE = {"best_fit": Place.BEST, "caching": Place.BEST, "first_fit": Place.LEFT, "worst_fit": Place.WORST}
_CHOICES = {"mode": Mode, "algorithms": Algorithms, "order": Order}


class LayerWise(Policy):
    """A design that offloads the inputs of layers; subclasses say where copies are waited for.

    Parameters
    ----------
    mode
        Layers whose inputs are offloaded: ``none``, ``conv``, ``all``, or ``dyn``: the first that fits.
    algorithms
        Which algorithm of ``algorithms_file`` a convolution uses: fastest, least scratch space, or greedily
        the fastest that fits.
    algorithms_file
        Table of the algorithms of layers, with times and scratch space; without it there are the trace's own.
    allocator
        Where a tensor's block goes in contiguous memory.
    order
        Whether a prefetched input or the layer's own results ask for memory first.
    fuse_activations
        Whether an activation function is a part of the layer before it.
    """

    placement = "contiguous"

    def __init__(
        self,
        *,
        mode: Mode = "dyn",
        algorithms: Algorithms = "performance",
        algorithms_file: str | None = None,
        allocator: Allocator | dict[str, object] = "best_fit",
        order: Order = "prefetch_first",
        fuse_activations: bool = True,
    ) -> None:
        self.mode, self.algorithms, self.algorithms_file = mode, algorithms, algorithms_file
        self.allocator, self.order, self.fuse_activations = allocator, order, fuse_activations
        for key, kind in _CHOICES.items():
            check_choice(key, getattr(self, key), get_args(kind))
        check_flag("fuse_activations", fuse_activations)
        check_table_file(algorithms_file)
        if algorithms_file is None and algorithms != "performance":
            raise ValueError(
                f"algorithms: found '{algorithms}' without algorithms_file; allowed: performance"
            )
        if mode == "dyn" and algorithms != "performance":
            raise ValueError(f"algorithms: found '{algorithms}' with mode dyn, which chooses them itself")
        self.caching_pool = _caching_pool(allocator)
        self._schedules: list[Schedule] = []
        self._note = ""

    @property
    def note(self) -> str:
        """What the dynamic mode chose."""
        return self._note

    def variant(self, mode: Mode, algorithms: Algorithms) -> LayerWise:
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
        for mode, algorithms in order:
            variant = self.variant(mode, algorithms)
            if obstacle(variant) is None:
                return variant._with_note(f"dyn chose {mode}, {algorithms}")
        return smallest._with_note(f"dyn chose {smallest.mode}, {smallest.algorithms}")

    def _with_note(self, chosen: str) -> LayerWise:
        greedy = "; no algorithms_file: greedy choice of algorithms not tried"
        self._note = chosen + ("" if self.algorithms_file is not None else greedy)
        return self

    def choose_kernels(self, trace: Trace, system: SystemSpec) -> Trace:
        """Use the chosen algorithms. Raises ConfigError for a table that does not match the trace."""
        if self.algorithms_file is None:
            return trace
        table = load_table(Path(self.algorithms_file), trace)
        if self.algorithms == "memory":
            return with_algorithms(trace, choose(table, lambda kernel, ways: least_workspace(ways)))
        if self.algorithms == "greedy":
            live = live_bytes(trace, self._schedule(trace))
            memory = system.gpu.memory
            return with_algorithms(
                trace, choose(table, lambda kernel, ways: fastest_within(ways, memory - live[kernel]))
            )
        return trace

    def plan(
        self, workload: Workload, system: SystemSpec, behaviour: BehaviourSpec
    ) -> Sequence[MigrationPlan | None]:
        """Decide what every job offloads and prefetches; it is carried out kernel by kernel."""
        self._schedules = [self._schedule(job.trace) for job in workload.jobs]
        return (None,) * len(workload.jobs)

    def _schedule(self, trace: Trace) -> Schedule:
        if self.mode == "dyn":
            raise UnsupportedError(f"policy '{self.name}': mode dyn has not chosen a configuration")
        return make_schedule(trace, self.mode, fuse_activations=self.fuse_activations)

    def _schedule_of(self, job: Job) -> Schedule:
        """Return what a job does."""
        return self._schedule(job.trace)

    def places(self, job: Job, plan: MigrationPlan | None, behaviour: BehaviourSpec) -> Sequence[Place]:
        """Place blocks as the allocator says."""
        tensors = job.trace.tensors
        if isinstance(self.allocator, dict) or self.allocator in _ONE_RULE:
            rule = _ONE_RULE["caching" if isinstance(self.allocator, dict) else self.allocator]
            return (rule,) * len(tensors)
        schedule = self._schedule_of(job)
        offloaded = set(schedule.offloaded)
        if self.allocator == "both_ends":
            stays = [t.persistent or self._is_kept(job.trace, schedule, t.id, offloaded) for t in tensors]
            return [Place.RIGHT if stay else Place.LEFT for stay in stays]
        return [
            Place.LAST if self._is_kept(job.trace, schedule, tensor.id, offloaded) else Place.BEST
            for tensor in tensors
        ]

    @staticmethod
    def _is_kept(trace: Trace, schedule: Schedule, tensor: int, offloaded: set[int]) -> bool:
        """Whether a tensor is made in the forward pass and stays for the backward pass."""
        made = trace.births[tensor] <= schedule.last_forward and not trace.tensors[tensor].persistent
        return made and trace.deaths[tensor] > schedule.last_forward + 1 and tensor not in offloaded

    def on_kernel_start(self, view: PolicyView) -> Iterable[Action]:
        """Offload what a layer reads as it begins, and prefetch as the window says."""
        schedule, kernel = self._schedules[view.job], view.kernel
        layer = schedule.offloads.get(kernel)
        if layer is not None:
            yield from self._offload(view, layer)
        if kernel in schedule.fetches:
            if self.order == "gradient_first":
                yield from (Prefetch(tensor) for tensor in view.trace.kernels[kernel].tensors)
            yield from (Prefetch(tensor) for tensor in schedule.fetches[kernel].inputs)

    def _offload(self, view: PolicyView, layer: Layer) -> Iterable[Action]:
        for tensor in layer.inputs:
            if view.trace.births[tensor] >= layer.kernels[0]:  # training data: it arrives now
                yield Prefetch(tensor)
            yield self._eviction(view, layer, tensor)

    def _eviction(self, view: PolicyView, layer: Layer, tensor: int) -> Evict:
        return Evict(tensor, Location.HOST, until=layer.kernels[-1])


def is_training_data(trace: Trace, tensor: int) -> bool:
    """Whether the host has a tensor's contents all the time."""
    return trace.tensors[tensor].kind is TensorKind.INPUT


def check_choice(key: str, value: object, choices: Sequence[str]) -> None:
    """Check a parameter with a few allowed texts. Raises ValueError."""
    if value not in choices:
        raise ValueError(f"{key}: found {value!r}; allowed: {', '.join(choices)}")


def check_flag(key: str, value: object) -> None:
    """Check a parameter that is true or false. Raises ValueError."""
    if not isinstance(value, bool):
        raise ValueError(f"{key}: found {value!r}; allowed: true or false")


def _caching_pool(allocator: object) -> CachingPoolSpec | None:
    """Read the allocator: a name, or the parameters of a caching pool. Raises ValueError or ConfigError."""
    if isinstance(allocator, dict):
        try:
            return CachingPoolSpec.model_validate(allocator)
        except ValidationError as error:
            path, message = describe(error, CachingPoolSpec)
            raise ConfigError(f"{'.'.join(map(str, ('allocator', *path)))}: {message}") from None
    if allocator not in get_args(Allocator):
        choices = ", ".join(get_args(Allocator))
        raise ValueError(
            f"allocator: found {allocator!r}; allowed: {choices}, or parameters of a caching pool"
        )
    return CachingPoolSpec() if allocator == "caching" else None
