"""Cases and altered copies of them of which it is known how the time of an iteration must compare."""

import math
import random
from dataclasses import dataclass, replace

from g10sim.analysis.footprint import footprint_bytes, largest_working_set, peak_live_bytes
from g10sim.analysis.reported import averaged, reported
from g10sim.config.behaviour import BehaviourSpec
from g10sim.config.system import SystemSpec
from g10sim.errors import CapacityError, UnsupportedError
from g10sim.policies.interface.registry import create
from g10sim.sim.engine import run
from g10sim.trace.model import Tensor, TensorKind, Trace
from g10sim.trace.synthetic import chain, random_trace
from g10sim.trace.workload import Job, Workload
from g10sim.units import parse_bytes

PAGE = 4096
BEHAVIOURS = {
    "own addresses": BehaviourSpec(addresses="own", recency="use"),
    "pooled addresses": BehaviourSpec(addresses="pooled", recency="arrival"),
}
"""Both ways to manage unified memory; designs with contiguous memory know only one."""


@dataclass(frozen=True)
class Case:
    """A trace and a machine, as the keys of a system's description; ``scale`` of sizes that policies know."""

    trace: Trace
    machine: dict
    scale: int = 1

    def policy(self, name):
        """Return a policy that takes as small what is small in the case."""
        design = create(name)
        if "least_tensor" not in design.parameters():
            return design
        least = self.scale * parse_bytes(design.least_tensor)
        return create({"name": name, "least_tensor": f"{least} B"})

    def with_machine(self, **changes):
        """Return the case on a machine with other values of ``section.key``."""
        machine = {section: dict(keys) for section, keys in self.machine.items()}
        for key, value in changes.items():
            section, name = key.split("__")
            machine[section][name] = value
        return replace(self, machine=machine)

    def with_trace(self, **changes):
        """Return the case with another trace."""
        return replace(self, trace=replace(self.trace, **changes))


def draw_case(seed):
    """A chain of layers or a random trace that fits into host memory and SSD, but rarely into the GPU."""
    draw = random.Random(seed)
    if draw.random() < 0.6:
        trace = chain(
            draw.randint(2, 10),
            activation_bytes=draw.randint(1 << 16, 1 << 23),
            weight_bytes=draw.randint(1 << 12, 1 << 22),
            workspace_bytes=draw.choice([0, 1 << 20]),
            forward_ticks=draw.randint(10_000, 1_000_000),
            backward_ticks=draw.randint(10_000, 2_000_000),
        )
    else:
        trace = random_trace(seed, kernels=draw.randint(4, 20), largest_tensor_bytes=4 << 20)
    rounding = PAGE * len(trace.tensors)
    least, live = largest_working_set(trace)[1] + rounding, peak_live_bytes(trace) + rounding
    everything = footprint_bytes(trace) + rounding
    return Case(
        trace,
        {
            "gpu": {
                "count": 1,
                "memory": max(least, int(draw.uniform(0.3, 0.95) * live)) // PAGE * PAGE + PAGE,
                "clock": 10**9,
                "page_size": PAGE,
                "allocation_rate": draw.choice([1_228_000, 20_000]) * 10**6,
            },
            "host": {"memory": draw.choice([0, everything // 4, 2 * everything]) // PAGE * PAGE},
            "ssd": {
                "capacity": 4 * everything // PAGE * PAGE,
                "read_bandwidth": draw.randint(1000, 7000) * 10**6,
                "write_bandwidth": draw.randint(600, 6000) * 10**6,
                "latency": draw.choice([0, 20, 80]),
            },
            "pcie": {"bandwidth": draw.choice([8000, 15754, 31508]) * 10**6},
            "page_fault": {"latency": draw.choice([0, 20, 45]), "group": 2 << 20, "leaf": 64 << 10},
        },
    )


UNITS = {
    "memory": "B", "capacity": "B", "page_size": "B", "group": "B", "leaf": "B", "clock": "Hz",
    "allocation_rate": "B/s", "read_bandwidth": "B/s", "write_bandwidth": "B/s", "bandwidth": "B/s",
    "latency": "us",
}  # fmt: skip


def system_of(case):
    """The system that a case's machine describes."""
    sections = {
        section: {key: f"{value} {UNITS[key]}" if key in UNITS else value for key, value in keys.items()}
        for section, keys in case.machine.items()
        if section != "tiers"
    }
    tiers = {"tiers": case.machine["tiers"]["all"]} if "tiers" in case.machine else {}
    return SystemSpec(name="altered", **sections, **tiers)


def cycles(case, policy, behaviour):
    """Cycles of an iteration, as results report them; infinite where it is not supported."""
    workload = Workload((Job(case.trace, iterations="auto"),))
    try:
        records = run(workload, system_of(case), case.policy(policy), behaviour, check=True)
    except (UnsupportedError, CapacityError):
        return math.inf
    last = averaged(reported(records.iterations))
    return last.end - last.start


# More of a machine does no harm.


def scaled(section, *keys, unit=1):
    """A change that multiplies values of a machine, in whole units."""

    def change(case, by):
        values = case.machine[section]
        more = {f"{section}__{key}": round(values[key] * by / unit) * unit for key in keys}
        return case.with_machine(**more)

    return change


def quicker(case, by):
    """Less latency of page faults and of the SSD."""
    machine = case.machine
    return case.with_machine(
        ssd__latency=machine["ssd"]["latency"] / by,
        page_fault__latency=machine["page_fault"]["latency"] / by,
    )


BETTER = {
    "more GPU memory": scaled("gpu", "memory", unit=PAGE),
    "more host memory": scaled("host", "memory", unit=PAGE),
    "faster PCIe": scaled("pcie", "bandwidth"),
    "faster SSD": scaled("ssd", "read_bandwidth", "write_bandwidth"),
    "less latency": quicker,
}
FACTORS = (1.1, 2)

# What should change nothing.


def renamed(case):
    """Other names of tensors and kernels."""
    tensors = tuple(replace(tensor, name=f"x{tensor.id}") for tensor in case.trace.tensors)
    kernels = tuple(replace(kernel, name=f"y{kernel.id}") for kernel in case.trace.kernels)
    return case.with_trace(tensors=tensors, kernels=kernels)


def renumbered(case):
    """Other ids of tensors."""
    count = len(case.trace.tensors)
    new = list(range(count))
    random.Random(count).shuffle(new)
    old = {number: place for place, number in enumerate(new)}
    tensors = tuple(replace(case.trace.tensors[old[number]], id=number) for number in range(count))
    kernels = tuple(
        replace(
            kernel,
            inputs=tuple(new[tensor] for tensor in kernel.inputs),
            outputs=tuple(new[tensor] for tensor in kernel.outputs),
        )
        for kernel in case.trace.kernels
    )
    return case.with_trace(tensors=tensors, kernels=kernels)


def with_unused_tensor(case):
    """A further tensor that no kernel uses."""
    more = Tensor(len(case.trace.tensors), "unused", 1 << 30, TensorKind.TEMPORARY, persistent=False)
    return case.with_trace(tensors=(*case.trace.tensors, more))


def with_idle_gpu(case):
    """A second GPU without a job."""
    return case.with_machine(gpu__count=2)


def with_full_tier(case):
    """A further tier that can hold nothing."""
    empty = {"name": "cxl", "kind": "memory", "capacity": "0 B", "read": "1 GB/s", "write": "1 GB/s"}
    return replace(case, machine={**case.machine, "tiers": {"all": ["host", empty, "ssd"]}})


def twice_as_fast(case):
    """All rates and the clock twice as high, all times half as long: as many cycles."""
    machine = case.machine
    return case.with_trace(ticks_per_second=2 * case.trace.ticks_per_second).with_machine(
        gpu__clock=2 * machine["gpu"]["clock"],
        gpu__allocation_rate=2 * machine["gpu"]["allocation_rate"],
        ssd__read_bandwidth=2 * machine["ssd"]["read_bandwidth"],
        ssd__write_bandwidth=2 * machine["ssd"]["write_bandwidth"],
        ssd__latency=machine["ssd"]["latency"] / 2,
        pcie__bandwidth=2 * machine["pcie"]["bandwidth"],
        page_fault__latency=machine["page_fault"]["latency"] / 2,
    )


def twice_as_large(case):
    """All sizes and rates twice as large: as many cycles."""
    machine = case.machine
    tensors = tuple(replace(tensor, size_bytes=2 * tensor.size_bytes) for tensor in case.trace.tensors)
    return (
        replace(case, scale=2)
        .with_trace(tensors=tensors)
        .with_machine(
            gpu__memory=2 * machine["gpu"]["memory"],
            gpu__page_size=2 * PAGE,
            gpu__allocation_rate=2 * machine["gpu"]["allocation_rate"],
            host__memory=2 * machine["host"]["memory"],
            ssd__capacity=2 * machine["ssd"]["capacity"],
            ssd__read_bandwidth=2 * machine["ssd"]["read_bandwidth"],
            ssd__write_bandwidth=2 * machine["ssd"]["write_bandwidth"],
            pcie__bandwidth=2 * machine["pcie"]["bandwidth"],
            page_fault__group=2 * machine["page_fault"]["group"],
            page_fault__leaf=2 * machine["page_fault"]["leaf"],
        )
    )


def split(case):
    """Every kernel in two halves that use the same tensors."""
    return with_halves(case, case.trace.kernels)


def with_longest_cut(case):
    """The longest kernel in two halves."""
    return with_halves(case, [max(case.trace.kernels, key=lambda kernel: kernel.duration)])


def with_halves(case, cut):
    """Kernels in two halves; the second one reads what the first has made."""
    kernels = []
    for kernel in case.trace.kernels:
        half = kernel.duration // 2
        if kernel in cut:
            kernels.append(replace(kernel, id=len(kernels), duration=half))
            inputs = tuple(dict.fromkeys(kernel.inputs + kernel.outputs))
            kernel = replace(kernel, duration=kernel.duration - half, inputs=inputs)
        kernels.append(replace(kernel, id=len(kernels)))
    return case.with_trace(kernels=tuple(kernels))


SAME = {
    "other names": renamed,
    "tensors renumbered": renumbered,
    "an unused tensor": with_unused_tensor,
    "an idle GPU": with_idle_gpu,
    "a tier without room": with_full_tier,
    "all twice as fast": twice_as_fast,
    "all twice as large": twice_as_large,
}
