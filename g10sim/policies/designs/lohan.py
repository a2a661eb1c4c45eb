"""LoHan: all lies below the GPU, and the CPU updates during the backward pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import inf
from typing import ClassVar

from g10sim.analysis.recomputation import Recomputability
from g10sim.config.effects import Effect
from g10sim.config.system import SystemSpec
from g10sim.looks import Look
from g10sim.policies.interface import Drop, Evict, Fetch, Move, PlannedMachine, Requirements
from g10sim.policies.interface.parameters import Count, parameter
from g10sim.policies.interface.registry import register_policy
from g10sim.policies.planning.moves import MovesByKernel
from g10sim.policies.planning.offloading.gradients import Gradients, host_bytes
from g10sim.policies.planning.offloading.on_cpu import WeightsBelow, offloaded, read_only
from g10sim.policies.planning.offloading.room import find_tier
from g10sim.policies.planning.offloading.saved import before_module, module_starts, saved_tensors
from g10sim.policies.planning.offloading.takeover import Schedule
from g10sim.policies.planning.offloading.windows import windows
from g10sim.policies.planning.timeline import Absence
from g10sim.trace.model import Phase, Trace

_PIPELINED = Effect(
    lambda run, policy: policy.pipeline,
    "with pipeline true",
    "one step at a time has its states in host memory",
)


_Swapped = Sequence[tuple[Absence, str]]
"""Activations that are swapped, each with its tier."""


@register_policy
class LoHan(WeightsBelow):
    """Weights and optimizer states lie on the SSD; the CPU updates during the backward pass.

    A gradient leaves as soon as it is complete, and its step runs while the GPU computes those of other
    layers (active gradient offloading). The input of every layer is swapped. Of its other activations those
    are swapped that take longest to compute again for their size, as many as leave besides ``swap_ratio`` of
    the forward pass: to host memory as far as it has room, then to the SSD as far as that takes them in. The
    others are dropped and computed again.
    """

    name = "lohan"
    label = "LoHan"
    look = Look("#994455", "--.", "4", "1 1")
    paper = (
        "Liao et al., LoHan: Low-Cost High-Performance Framework to Fine-Tune 100B Model on a Consumer GPU, "
        "ICDE 2025"
    )

    swap_ratio: float = parameter(default=1.0, ge=0, le=10, published="1, authors' program")
    """Share of the forward pass during which activations may leave."""
    pipeline: bool = parameter(default=False, published="true, paper; its measurements are those of false")
    """Read the states of the next steps, and write those of the last ones, during a step; otherwise each step
    reads, updates and writes, one after the other."""
    optimizer_buffers: int = parameter(default=8, ge=1, published="8, authors' program", effect=_PIPELINED)
    """Steps whose states are in host memory at a time."""
    prefetch_parameters: Count = parameter(default=1_200_000_000, published="1200000000, authors' program")
    """Parameters that are fetched ahead of their use."""
    live_parameters: Count = parameter(default=7_200_000_000, published="7200000000, authors' program")
    """Parameters on the GPU beyond which none is fetched ahead: six buffers."""
    modules_ahead: int = parameter(default=1, ge=1)
    """Modules before its own at which a swapped activation is fetched."""
    births: Count = parameter(default=1)
    """Kernels ahead of which new tensors are mapped."""

    _kept: ClassVar[Mapping[str, str]] = {
        "host": "gradients and the states of some steps",
        "ssd": "weights and optimizer states",
    }

    @property
    def requirements(self) -> Requirements:
        """Separate addresses, and buffers for states."""
        return replace(super().requirements, cpu_buffers=self._buffers)

    @property
    def _buffers(self) -> int:
        return self.optimizer_buffers if self.pipeline else 1

    def _schedule(self, trace: Trace) -> Schedule:
        return Schedule(overlap=True, returns=False)

    def _plan_job(self, trace: Trace, machine: PlannedMachine, system: SystemSpec) -> MovesByKernel:
        size, sizes = self._parameter_bytes(trace), machine.sizes(trace)
        on_cpu = trace.used_on_cpu
        away = frozenset(tensor for tensor in on_cpu if trace.lasting[tensor])
        ahead, live = size * self.prefetch_parameters, size * self.live_parameters
        stays = windows(trace, away & read_only(trace), ahead, live, 1)
        cycles = trace.durations_cycles(machine.clock_hz)
        swapped, dropped = _chosen(trace, sizes, cycles, self._room(trace, machine, away))
        if any(tier == "ssd" for _, tier in swapped):
            find_tier(self.name, system, "ssd", "activations")
        starts = module_starts(trace)
        back = [(before_module(starts, one.end, self.modules_ahead), one) for one, _ in swapped]
        back.sort(key=lambda pair: (pair[1].end, pair[1].tensor))
        leaving: list[tuple[int, Move]] = [(one.start - 1, Evict(one.tensor, tier)) for one, tier in swapped]
        leaving += [(one.start - 1, Drop(one.tensor)) for one in dropped]
        returning = ((max(at, one.start), Fetch(one.tensor, recalls=True)) for at, one in back)
        gradients, homes = Gradients(trace, 1, self.births, on_cpu), dict.fromkeys(away, "ssd")
        moves = offloaded(trace, gradients, homes, stays, before=returning, after=leaving)
        return replace(moves, note=_note(swapped, dropped))

    def _room(self, trace: Trace, machine: PlannedMachine, away: frozenset[int]) -> dict[str, float]:
        """Return the bytes that may leave in the forward pass, over the link and into each tier.

        In host memory they lie next to gradients and states.
        """
        needed = host_bytes(trace, machine.sizes(trace), away, self._buffers)
        host = next((tier.capacity_bytes for tier in machine.tiers if tier.name == "host"), 0)
        cycles = trace.durations_cycles(machine.clock_hz)
        forward = sum(cycles[kernel.id] for kernel in trace.kernels if kernel.phase is Phase.FORWARD)
        spell = self.swap_ratio * forward
        ssd = spell * machine.tier("ssd").write_rate
        return {"link": spell * machine.out_rate, "host": host - needed, "ssd": ssd}


def _chosen(
    trace: Trace, sizes: Sequence[int], cycles: Sequence[int], room: dict[str, float]
) -> tuple[_Swapped, Sequence[Absence]]:
    """Swap what cannot be computed again within a layer, then what takes longest to compute for its size.

    It goes to host memory first. Of the second kind what has no ``room`` is dropped.
    """
    rules, swapped, dropped = Recomputability(trace), list[tuple[Absence, str]](), list[Absence]()
    outer, inner = list[tuple[float, Absence]](), list[tuple[float, Absence]]()
    for one in saved_tensors(trace, sizes):
        producer = rules.producer(one.tensor, one.start)
        crosses = len({trace.kernels[use].block for use in trace.uses[one.tensor]}) > 1
        if producer is None or crosses or rules.problem(one.tensor, one.start):
            outer.append((inf, one))
        else:
            inner.append((cycles[producer.id] / one.size_bytes, one))
    for worth, one in [*outer, *sorted(inner, key=lambda pair: (-pair[0], pair[1].tensor))]:
        tier = "host" if one.size_bytes <= room["host"] else "ssd"
        if worth == inf or one.size_bytes <= min(room["link"], room[tier]):
            swapped.append((one, tier))
            room["link"] -= one.size_bytes
            room[tier] -= one.size_bytes
        else:
            dropped.append(one)
    return sorted(swapped, key=lambda pair: (pair[0].start, pair[0].tensor)), dropped


def _note(swapped: _Swapped, dropped: Sequence[Absence]) -> str:
    """Say how much is swapped, and how much computed again."""
    every, on_ssd = ([one for one, tier in swapped if tier in tiers] for tiers in (("host", "ssd"), ("ssd",)))
    sums = (sum(one.size_bytes for one in some) / 1e9 for some in (every, on_ssd, dropped))
    words = "swaps {:.3g} GB of activations, {:.3g} GB of them to the SSD, and computes {:.3g} GB again"
    return words.format(*sums)
