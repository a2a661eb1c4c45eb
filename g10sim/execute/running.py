"""Executes a source: its step is recorded on the device, simulated, run under a plan, and compared."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import torch

from g10sim.analysis.footprint import peak_live_bytes
from g10sim.api import Result
from g10sim.api import system as make_system
from g10sim.capture.devices import CUDA, lists_in_optimizers, on_device, without_earlier_objects
from g10sim.capture.options import StepOptions, flag, step_options
from g10sim.capture.own import OwnStep, Steps
from g10sim.capture.refusal import refusal
from g10sim.capture.source import SIZES, find_source, importing_from_here, make_torchvision_importable
from g10sim.capture.step import make_step
from g10sim.capture.workload import Step
from g10sim.config.problems import check_choice
from g10sim.config.system import SystemSpec
from g10sim.errors import ConfigError, PlanError
from g10sim.execute.cuda import CudaMemory, TorchStreams
from g10sim.execute.executor import Executor, StepReport
from g10sim.execute.memory import Memory
from g10sim.execute.moving import Guide
from g10sim.execute.script import Script, captured_script, first_difference, record_script
from g10sim.execute.simulated import BEHAVIOUR, simulated_plan
from g10sim.experiment.cells import make_policy
from g10sim.policies.interface.plan import MigrationPlan
from g10sim.policies.interface.plan_format import load_plan
from g10sim.policies.interface.policy import Policy
from g10sim.sim.engine import run
from g10sim.sim.hooks import asked, plans_of
from g10sim.sim.preparation import settled
from g10sim.trace.model import Trace
from g10sim.trace.workload import Job, Workload

MAIN = "cpu"
DEVICES = (MAIN, CUDA)
PAGE = 512
"""Bytes that blocks of PyTorch's allocator are multiples of."""
_SEED = 0
_NOT_HERE = (
    *("steps", "workspace", "cudnn_pooling", "cuda_graph"),
    *("generate", "cache", "routing", "routing_seed"),
)
"""Options of a capture that no step that computes has."""

AnyStep = Step | OwnStep


@dataclass(frozen=True)
class Source:
    """A step that can be made again: the same each time, as random numbers begin with the same seed."""

    name: str
    how: StepOptions
    build: Callable[[], Any]
    model: str
    batch_size: int | None
    device: str

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Make tensors on the device, with optimizers that work on lists, while open.

        Raises TraceError for whatever the step raises.
        """
        with importing_from_here(), on_device(self.how, self.device), lists_in_optimizers():
            try:
                yield
            except Exception as error:
                raise refusal(error, self.name, "the step") from error

    def made(self) -> AnyStep:
        """Make the step and run it once, so that the optimizer's states exist. Raises ConfigError."""
        gc.collect()  # cycles keep the tensors of earlier steps
        torch.manual_seed(_SEED)
        step = make_step(self.build(), self.how)
        step.warm_up()
        if step.is_compiled:
            raise ConfigError(f"{self.name}: found torch.compile; allowed: steps that are not compiled")
        return step


def open_source(source: str, *, device: str = MAIN, settings: Sequence[str] = (), **options: Any) -> Source:
    """Find a source, named and with sizes and options as for ``g10sim.capture.capture_source``.

    Raises ConfigError for a device that is not there, and for options that no step that computes has.
    """
    memory_of(device)
    for name in _NOT_HERE:
        if options.get(name):
            raise ConfigError(f"{flag(name)}: found {options[name]}; allowed: captures only")
    sizes = {name: options.pop(name, None) for name in SIZES}
    how = step_options(options)
    make_torchvision_importable()
    found = find_source(source, how, settings, **sizes)
    return Source(source, how, found.build, found.model, found.batch_size, device)


def recorded(source: Source, step: AnyStep, gpu: str) -> Script:
    """Record the script of a step on its device."""
    return record_script(step, source.how, gpu=gpu, model=source.model, batch_size=source.batch_size)


def machine(name: str | Mapping[str, Any], budget_bytes: int) -> SystemSpec:
    """Return a system with the budget as GPU memory, and host memory as the only tier."""
    given: dict[str, Any] = {"preset": name} if isinstance(name, str) else dict(name)
    gpu = {**(given.get("gpu") or {}), "memory": f"{budget_bytes} B", "page_size": f"{PAGE} B"}
    return make_system(given, gpu=gpu, tiers=["host"], ssd=None)


def guided(spec: Any, trace: Trace, system: SystemSpec) -> Guide:
    """Let a policy plan for a trace and decide while the step runs. Raises ConfigError for others."""
    workload = Workload((Job(trace),)).as_planned()
    policy = settled(
        executable(spec, trace, system),
        workload,
        system,
        lambda design, short, _: run(short, system, design, BEHAVIOUR),
    )
    (plan,) = asked(policy, "plan", lambda: plans_of(policy.plan(workload, system, BEHAVIOUR), 1))
    return Guide(system, plan, policy)


def executable(spec: Any, trace: Trace, system: SystemSpec) -> Policy:
    """Make a policy whose moves a device can carry out. Raises ConfigError for others."""
    policy = make_policy({"name": spec} if isinstance(spec, str) else spec, _SEED)
    if policy.requirements.unlimited_memory:
        raise ConfigError(f"policy '{policy.name}' has unlimited memory; allowed: policies that move tensors")
    if policy.partitions or policy.choose_kernels(trace, system) != trace:
        raise ConfigError(
            f"policy '{policy.name}' runs other kernels than the step; allowed: policies that do not"
        )
    return policy


def plan_of(path: Path, source: Source, script: Script, gpu: str) -> MigrationPlan:
    """Load a plan for what was recorded. Raises PlanError.

    A plan for the capture of the same source names the first operator that the device runs instead.
    """
    try:
        return load_plan(path, script.trace)
    except PlanError:
        captured = captured_script(
            source.build, source.how, gpu=gpu, model=source.model, batch_size=source.batch_size
        )
        load_plan(path, captured.trace)
        difference = first_difference(script, captured) or "the sizes of tensors differ from the capture's"
        raise PlanError(f"{path}: the step on this device is not the captured one: {difference}") from None


def record(step: Callable[[], Any], gpu: str = "a100-40g", model: str = "step") -> Script:
    """Run a training step of one's own twice, the second time recorded, and return its script.

    Kernel times are modelled for ``gpu``. Raises ConfigError for what a capture would refuse, too.
    """
    how = step_options({})
    own = OwnStep(Steps(step), how)
    own.warm_up()
    return record_script(own, how, gpu=gpu, model=model)


def make_executor(
    script: Script,
    budget: int | float,
    *,
    policy: Any = None,
    plan: MigrationPlan | None = None,
    device: str = MAIN,
    system: str | Mapping[str, Any] = "a100-40g-pcie3-znand",
    weights: Iterable[Any] = (),
    undo: bool = True,
) -> Executor:
    """Make an executor for a loop of one's own, under a policy, a plan, or with everything on demand.

    ``budget`` is in bytes, or (a float) a share of the trace's peak; ``system`` is what the policy plans for.
    Raises errors of ``g10sim.errors``.
    """
    size = bytes_of(script.trace, budget)
    spec = machine(system, size)
    guide = Guide(spec, plan) if policy is None else guided(policy, script.trace, spec)
    return Executor(script, size, guide, memory_of(device), weights, undo=undo)


def bytes_of(trace: Trace, budget: int | float) -> int:
    """Return a budget in bytes, given so or (a float) as a share of the peak of a trace."""
    return int(budget * peak_live_bytes(trace)) if isinstance(budget, float) else budget


def memory_of(device: str) -> Memory:
    """Make the memory of a device. Raises ConfigError for one that is not there."""
    check_choice(device, DEVICES, "device: found")
    if device == CUDA and not torch.cuda.is_available():
        raise ConfigError.at("device", f"{CUDA}, but no CUDA device", f"{MAIN}, or a computer with one")
    return CudaMemory(TorchStreams()) if device == CUDA else Memory()


class Comparison(StrEnum):
    """Outcomes of a comparison of values, as the rest of a sentence."""

    EQUAL = "equal those of the plain step, bit for bit"
    DIFFERENT = "differ from the plain step's"
    VARYING = "differ from the plain step's; so do those of a second plain step"


@dataclass(frozen=True)
class ExecutedStep:
    """A step executed under a guide.

    ``predicted`` is the simulation of the same; None where a plan or nothing guided. ``values`` compares them
    with those of the plain step after as many steps; None where nobody asked.
    """

    script: Script
    system: SystemSpec
    reports: Sequence[StepReport]
    predicted: Result | None
    values: Comparison | None

    def simulated_bytes(self) -> tuple[int, int, int]:
        """Return what the simulation moves in and out in an iteration, and its peak, in bytes."""
        if self.predicted is None:
            return 0, 0, 0
        summary, page = self.predicted.summary, self.system.gpu.page_size
        into, out = (int(summary[f"{way}_bytes"]) for way in ("host_to_gpu", "gpu_to_host"))
        return into, out, max(self._simulated_pages()) * page

    def _simulated_pages(self) -> list[int]:
        """Return the pages on the GPU after every kernel of the last simulated iteration."""
        if self.predicted is None:
            return []
        found = self.predicted.kernels
        return [int(pages) for pages in found[found.iteration == found.iteration.max()].gpu_pages]

    def kernel_rows(self) -> list[dict[str, Any]]:
        """Return a row for each kernel of the last step: what is on the device after it, and simulated."""
        page = self.system.gpu.page_size
        last = zip(self.script.trace.kernels, self.reports[-1].resident_bytes, strict=True)
        rows: list[dict[str, Any]] = [
            {"kernel": kernel.id, "name": kernel.name, "resident_bytes": resident}
            for kernel, resident in last
        ]
        for row, pages in zip(rows, self._simulated_pages(), strict=False):
            row["simulated_bytes"] = pages * page
        return rows


def run_guided(
    source: Source,
    step: AnyStep,
    script: Script,
    guide: Guide,
    budget_bytes: int,
    steps: int,
    *,
    undo: bool = True,
) -> Sequence[StepReport]:
    """Run a step that has run before that many times under a guide, after one that finds its tensors.

    ``undo`` means the same as for ``Executor``.
    """
    weights = [weight for _, weight in step.parts().weights()]
    executor = Executor(script, budget_bytes, guide, memory_of(source.device), weights, undo=undo)
    with without_earlier_objects(), executor:
        for _ in range(steps + 1):
            with executor.step():
                step.run()
    reports = executor.reports
    del executor
    gc.collect()  # pinned buffers hang on cycles
    return reports


def execute_source(
    source: Source,
    *,
    budget: int | float,
    plan: Path | None = None,
    policy: Any = None,
    steps: int = 3,
    gpu: str = "a100-40g",
    system: str | Mapping[str, Any] = "a100-40g-pcie3-znand",
    live: bool = True,
    check: bool = True,
) -> ExecutedStep:
    """Execute a source under a saved plan or a policy, or with everything fetched on demand.

    ``budget`` is in bytes, or (a float) a share of the peak of the recorded trace. A policy that is not
    ``live`` is not asked while the step runs: the moves of its simulation are carried out. With ``check`` the
    plain step runs as often, and all values are compared. Raises errors of ``g10sim.errors``.
    """
    with source.opened():
        step = source.made()
        script = recorded(source, step, gpu)
        trace = script.trace
        size = bytes_of(trace, budget)
        spec = machine(system, size)
        predicted = None
        if policy is not None:
            design = executable(policy, trace, spec)
            found, predicted = simulated_plan(design, trace, spec, record=("kernels",))
            guide = guided(policy, trace, spec) if live else Guide(spec, found)
        else:
            guide = Guide(spec, None if plan is None else plan_of(plan, source, script, gpu))
        reports = run_guided(source, step, script, guide, size, steps)
        values = compared_with_plain(source, step, steps + 2) if check else None
    return ExecutedStep(script, spec, reports, predicted, values)


def compared_with_plain(source: Source, step: AnyStep, steps: int) -> Comparison:
    """Compare all values of a step with those of the plain one after ``steps`` more than the first.

    Where they differ the plain step runs again: it need not repeat its own values.
    """

    def plain_values() -> dict[str, Any]:
        plain = source.made()
        for _ in range(steps):
            plain.run()
        return values_of(plain)

    allowed = plain_values()
    if _are_equal(values_of(step), allowed):
        return Comparison.EQUAL
    return Comparison.DIFFERENT if _are_equal(plain_values(), allowed) else Comparison.VARYING


def _are_equal(found: Mapping[str, Any], allowed: Mapping[str, Any]) -> bool:
    return found.keys() == allowed.keys() and all(torch.equal(found[name], allowed[name]) for name in found)


def values_of(step: AnyStep) -> dict[str, Any]:
    """Return weights, buffers, inputs, states and gradients of a step, by name."""
    parts = step.parts()
    found = {**dict(parts.buffers()), **parts.inputs, **dict(parts.weights())}
    found |= {f"{name}.grad": weight.grad for name, weight in parts.weights() if weight.grad is not None}
    for place, optimizer in enumerate(parts.optimizers):
        for number, states in enumerate(optimizer.state.values()):
            tensors = ((key, value) for key, value in states.items() if isinstance(value, torch.Tensor))
            found |= {f"optimizer{place}.{number}.{key}": value for key, value in tensors}
    return found
