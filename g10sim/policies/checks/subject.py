"""The policy that is checked, and the small workloads that it is checked with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from g10sim.analysis.footprint import footprint_bytes, largest_working_set, peak_live_bytes
from g10sim.config.behaviour import BehaviourSpec
from g10sim.config.presets import load_system
from g10sim.config.system import SystemSpec
from g10sim.errors import CapacityError, G10SimError, UnsupportedError
from g10sim.policies.interface.policy import Policy
from g10sim.policies.interface.registry import check_class, create
from g10sim.records import RunRecords
from g10sim.sim.engine import run
from g10sim.trace.format import trace_hash
from g10sim.trace.model import Trace
from g10sim.trace.synthetic import chain, random_trace
from g10sim.trace.workload import Job, Workload

_PRESET = "a100-40g-pcie3-znand"
_PAGE_BYTES = 4096
_SEEDS = (1, 2, 3)


class PolicyCheckError(G10SimError, AssertionError):
    """A policy does not do what every policy must."""


@dataclass(frozen=True)
class Scenario:
    """A workload on a system."""

    name: str
    workload: Workload
    system: SystemSpec


class Subject:
    """Makes fresh instances of one policy.

    ``policy`` is a class, a key, ``module:Class``, or a mapping with the key ``name`` and parameters. Raises
    PolicyError when it cannot be made. ``changing`` names the scenarios whose traces, system or parameters a
    fresh instance has changed.
    """

    def __init__(self, policy: type[Policy] | str | Mapping[str, Any]) -> None:
        self._policy = policy
        self.cls = type(self.make())
        check_class(self.cls)
        self._fresh: dict[str, RunRecords | None] = {}
        self.changing: set[str] = set()

    @property
    def name(self) -> str:
        """Name under which YAML finds the policy: its key, or ``module:Class``."""
        if isinstance(self._policy, str):
            return self._policy
        if isinstance(self._policy, Mapping):
            return str(self._policy["name"])
        return f"{self._policy.__module__}:{self._policy.__qualname__}"

    def make(self) -> Policy:
        """Return a fresh instance."""
        policy = self._policy
        return policy() if isinstance(policy, type) else create(policy)

    def fresh(self, scenario: Scenario) -> RunRecords | None:
        """Return what a fresh instance does; simulated once."""
        if scenario.name not in self._fresh:
            policy = self.make()
            before = _inputs(scenario, policy)
            self._fresh[scenario.name] = self.run(scenario, policy)
            if _inputs(scenario, policy) != before:
                self.changing.add(scenario.name)
        return self._fresh[scenario.name]

    def run(self, scenario: Scenario, policy: Policy | None = None) -> RunRecords | None:
        """Simulate with every invariant tested; None when the policy does not support the workload."""
        policy = policy if policy is not None else self.make()
        try:
            return run(
                scenario.workload, scenario.system, policy, BehaviourSpec(), record=("timeline",), check=True
            )
        except CapacityError as error:  # there is room in all of them
            raise PolicyCheckError(f"{scenario.name}: {error}") from error
        except UnsupportedError:
            return None
        except G10SimError as error:
            raise PolicyCheckError(f"{scenario.name}: {error}") from error


def _inputs(scenario: Scenario, policy: Policy) -> tuple[object, ...]:
    traces = tuple(trace_hash(job.trace) for job in scenario.workload.jobs)
    return traces, scenario.system.model_dump_json(), repr(policy.parameters())


def _system(gpu_bytes: int, host_bytes: int, gpus: int = 1, **host: Any) -> SystemSpec:
    gpu = {"memory": f"{gpu_bytes} B", "count": gpus}
    changes = {"gpu": gpu, "host": {"memory": f"{host_bytes} B", **host}, "cpu": None}
    return load_system({"preset": _PRESET, **changes})


def _tight(trace: Trace) -> int:
    """GPU memory in which the trace just runs and does not fit."""
    everything = _PAGE_BYTES * sum(trace.page_sizes(_PAGE_BYTES))
    largest = largest_working_set(trace)[1] + _PAGE_BYTES * len(trace.tensors)
    return max(largest, min(peak_live_bytes(trace) * 6 // 10, everything))


def _alone(job: Job, words: str, system: SystemSpec) -> Scenario:
    """Return the scenario of a job that has a system to itself; ``words`` say what is special about that."""
    return Scenario(f"'{job.trace.model}' with {words}", Workload((job,)), system)


@cache
def traces() -> tuple[Trace, ...]:
    """Return the traces: one that looks like training, and some that look like nothing in particular."""
    return (chain(12), *(random_trace(seed) for seed in _SEEDS))


@cache
def scenarios() -> tuple[Scenario, ...]:
    """Every trace with too little GPU memory and much, little or no host memory, and two jobs at once.

    One of them also on a machine whose kernels can use host memory in place, and on one whose CPU can run
    the optimizer.
    """
    found = []
    for trace in traces():
        footprint, tight = footprint_bytes(trace), _tight(trace)
        for words, host in (("much", 2 * footprint), ("little", footprint // 8), ("no", 0)):
            found.append(_alone(Job(trace), f"{words} host memory", _system(tight, host)))
    first, second = traces()[:2]
    ample = 2 * footprint_bytes(first)
    coherent = _system(_tight(first), ample, kernel_access={})
    found.append(_alone(Job(first), "host memory that kernels can access", coherent))
    with_cpu = _system(ample, ample).model_dump(mode="json") | {"cpu": {"optimizer_rate": "1 G/s"}}
    found.append(_alone(Job(first), "a CPU for the optimizer", load_system(with_cpu)))
    tight = max(_tight(first), _tight(second))
    both = Workload((Job(first), Job(second, gpu=1, arrival_cycles=100_000)))
    system = _system(tight, footprint_bytes(first), gpus=2)
    return (*found, Scenario(f"'{first.model}' and '{second.model}' on two GPUs", both, system))


@cache
def roomy() -> tuple[Scenario, ...]:
    """Every trace with GPU memory for everything, and for half more than is alive; three iterations."""
    found = []
    for trace in traces():
        job, pages = Job(trace, iterations=3), _PAGE_BYTES * len(trace.tensors)
        everything, alive = 2 * footprint_bytes(trace) + pages, peak_live_bytes(trace) * 3 // 2 + pages
        for words, size in (("everything", everything), ("all that is alive", alive)):
            found.append(_alone(job, f"room for {words}", _system(size, everything)))
    return tuple(found)
