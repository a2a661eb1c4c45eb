"""Random machines and traces for bounds, and the best that whole blocks can do, by enumeration."""

import random
from dataclasses import dataclass
from itertools import product

import numpy as np

from g10sim.analysis.bound.machine import BoundMachine, BoundTier, RateLimit
from g10sim.config.system import SystemSpec
from g10sim.results.bounds import bound_machine
from g10sim.trace.model import Phase, TensorKind, Trace
from g10sim.trace.synthetic import TraceBuilder

PAGE = 1 << 10
BLOCK = PAGE << 10
CLOCK = 10**9
MOST_STATES = 250


def machine(gpu, stores, rates, *, page=1, clock=CLOCK):
    """A machine from bytes, (name, bytes, limits inward, limits outward) and bytes/second by name."""
    names = list(rates)
    return BoundMachine(
        gpu,
        page,
        clock,
        tuple(RateLimit(name, rate) for name, rate in rates.items()),
        tuple(
            BoundTier(name, size, *(tuple(names.index(one) for one in way.split()) for way in ways))
            for name, size, *ways in stores
        ),
    )


def trace_of(sizes, kernels, unit=10**9, phase=Phase.OTHER):
    """A trace from {name: units} ("*": persistent) and (ticks, tensors read, tensors written)."""
    builder, ids = TraceBuilder("small"), {}
    for name, size in sizes.items():
        lasting = name.endswith("*")
        kind = TensorKind.WEIGHT if lasting else TensorKind.ACTIVATION
        ids[name.rstrip("*")] = builder.tensor(name, size * unit, kind, persistent=lasting)
    for number, (ticks, reads, writes) in enumerate(kernels):
        inputs, outputs = ([ids[name] for name in names.split()] for names in (reads, writes))
        builder.kernel(f"kernel{number}", ticks, inputs, outputs, phase)
    return builder.build()


@dataclass(frozen=True)
class Case:
    """A trace of at most 12 kernels and 8 tensors on a system with room for a part of it."""

    trace: Trace
    system: SystemSpec

    @property
    def machine(self):
        return bound_machine(self.system)


def draw_case(seed):
    """Draw a case in blocks of many pages, small enough to enumerate where they may lie."""
    draw = random.Random(seed)
    while True:
        trace = _draw_trace(draw, frozen=seed % 3 == 2)
        system = _draw_system(draw, trace)
        case = Case(trace, system)
        if largest_working_set(trace) <= system.gpu.memory and Blocks(trace, case.machine).fits:
            return case


def _draw_trace(draw, *, frozen):
    """Draw a trace; with ``frozen`` what lasts and is never written is so."""
    builder = TraceBuilder("drawn")
    kind, phase = (TensorKind.WEIGHT, Phase.FORWARD) if frozen else (TensorKind.ACTIVATION, Phase.OTHER)
    tensors = [
        builder.tensor(
            f"t{number}", draw.choice([1, 1, 2, 2, 3]) * BLOCK, kind, persistent=draw.random() < 0.25
        )
        for number in range(draw.randint(3, 8))
    ]
    known = set()
    for number in range(draw.randint(3, 12)):
        used = draw.sample(tensors, draw.choice([0, 1, 1, 2, 2, 3]))
        cut = draw.randint(0, len(used))
        ticks = draw.choice([0, 4, 4, 8]) * BLOCK or 1
        changed = [tensor for tensor in used[cut:] if tensor in known]  # in place: read, too
        builder.kernel(f"kernel{number}", ticks, used[:cut] + changed, used[cut:], phase)
        known.update(used)
    return builder.build()


def _draw_system(draw, trace):
    memory = max(BLOCK, largest_working_set(trace)) + draw.choice([0, 0, 0, 1, 2]) * BLOCK
    rates = {"read_bandwidth": "0.5 GB/s", "write_bandwidth": draw.choice(["0.5 GB/s", "0.25 GB/s"])}
    host = {"memory": f"{draw.choice([0, 0, 1, 2, 100]) * BLOCK} B"}
    if draw.random() < 0.3:
        host["memory_bandwidth"] = "1 GB/s"
    return SystemSpec(
        name="drawn",
        gpu={
            "memory": f"{memory} B",
            "clock": "1 GHz",
            "page_size": f"{PAGE} B",
            "allocation_rate": "1000 GB/s",
        },
        host=host,
        ssd={"capacity": f"{100 * BLOCK} B", "latency": "0 s", **rates},
        pcie={"bandwidth": "1 GB/s"},
        page_fault={"latency": draw.choice(["0 s", "1 us"]), "group": "2 MiB"},
    )


def largest_working_set(trace):
    return max(sum(trace.tensors[i].size_bytes for i in kernel.tensors) for kernel in trace.kernels)


class Blocks:
    """Every way in which blocks may lie at the start and end of each kernel, and the least time between them.

    A tensor is on the GPU while a kernel computes with it; otherwise its blocks are there or in tiers. Those
    of frozen tensors leave for nothing.
    """

    def __init__(self, trace, machine, block=BLOCK, *, most_states=MOST_STATES):
        self.trace, self.machine = trace, machine
        self.blocks = [tensor.size_bytes // block for tensor in trace.tensors]
        self.block, self.most = block, most_states
        stores, limits = len(machine.stores), machine.limits
        cost = [machine.clock_hz * block / limit.rate for limit in limits]
        self.inward, self.outward = (
            np.array([[way.count(i) * cost[i] for i in range(len(limits))] for way in ways])
            for ways in ([s.inward for s in machine.stores], [s.outward for s in machine.stores])
        )
        self.width = len(trace.tensors) * stores
        moments = [(None, self._lasting())]
        moments += [(kernel, self._alive(kernel)) for kernel in trace.kernels]
        self.states = [self._states(kernel, alive) for kernel, alive in moments]

    @property
    def fits(self):
        """Tell whether states are few enough, and there are some at every moment."""
        return all(found is not None and len(found) for found in self.states)

    def _lasting(self):
        used = self.trace.uses
        return [t.id for t in self.trace.tensors if t.persistent and used[t.id]]

    def _alive(self, kernel):
        trace = self.trace
        alive = {i for i in range(len(trace.tensors)) if trace.births[i] <= kernel.id < trace.deaths[i]}
        alive = {i for i in alive if trace.uses[i] and not trace.tensors[i].persistent}
        return sorted({*alive, *kernel.tensors, *self._lasting()})

    def _states(self, kernel, alive):
        """Return blocks per tensor and tier (rows: states), or None if there are too many."""
        stores = self.machine.stores
        pinned = () if kernel is None else kernel.tensors
        free = [i for i in alive if i not in pinned]
        choices = [list(_shares(self.blocks[i], len(stores))) for i in free]
        if np.prod([len(one) for one in choices], dtype=float) > 50 * self.most:
            return None
        room = self.machine.gpu_bytes // self.block - sum(self.blocks[i] for i in alive)
        found = []
        for shares in product(*choices):
            away = np.zeros((len(self.blocks), len(stores)), dtype=int)
            away[free] = np.reshape(shares, (len(free), len(stores)))
            held = away.sum(axis=0)
            full = any(
                count * self.block > store.capacity_bytes for count, store in zip(held, stores, strict=True)
            )
            if room + held.sum() >= 0 and not full:
                found.append(away.ravel())
        return np.array(found).reshape(-1, self.width) if len(found) <= self.most else None

    def _time(self, before, after):
        """Return the least cycles from every state to every other one."""
        moved = after[None, :, :] - before[:, None, :]
        stores = len(self.machine.stores)
        tensors = self.width // stores
        copied = np.repeat([[tensor not in self.trace.frozen] for tensor in range(tensors)], stores, axis=0)
        outward, inward = np.tile(self.outward, (tensors, 1)) * copied, np.tile(self.inward, (tensors, 1))
        total = np.maximum(moved, 0) @ outward + np.maximum(-moved, 0) @ inward
        return total.max(axis=2) if total.shape[2] else np.zeros(total.shape[:2])

    def _matrices(self):
        """Yield the least cycles of each step of an iteration: waiting and computing, in turn."""
        for number, kernel in enumerate(self.trace.kernels):
            here = self.states[number + 1]
            yield self._time(self.states[number], here)
            cycles = self.trace.duration_cycles(kernel, self.machine.clock_hz)
            yield np.where(self._time(here, here) <= cycles * (1 + 1e-12), float(cycles), np.inf)
        yield self._time(self.states[-1], self.states[0])

    def iteration(self):
        """Least cycles of an iteration that may begin and end in any state."""
        cost = np.zeros(len(self.states[0]))
        for step in self._matrices():
            cost = (cost[:, None] + step).min(axis=0)
        return cost.min()

    def steady(self):
        """Least cycles of an iteration that ends as it began."""
        count = len(self.states[0])
        cost = np.where(np.eye(count, dtype=bool), 0.0, np.inf)
        for step in self._matrices():
            cost = (cost[:, :, None] + step[None, :, :]).min(axis=1)
        return cost.diagonal().min()


def _shares(blocks, stores):
    """Yield all numbers of blocks in each tier, the rest on the GPU."""
    if not stores:
        yield ()
        return
    for first in range(blocks + 1):
        for rest in _shares(blocks - first, stores - 1):
            yield (first, *rest)
