"""Random traces, machines, behaviours and policies on which the simulator is compared with the slow model."""

import random
from dataclasses import dataclass

from g10sim.config.behaviour import BehaviourSpec
from g10sim.config.system import SystemSpec
from g10sim.trace.model import TensorKind, Trace
from g10sim.trace.synthetic import TraceBuilder

POLICIES = ("base_uvm", "deepum", "scripted")


@dataclass(frozen=True)
class Case:
    """One simulation, drawn from a seed."""

    seed: int
    trace: Trace
    system: SystemSpec
    behaviour: BehaviourSpec
    policy: str
    look_ahead: int
    moves: dict


def draw_case(seed, largest=100):
    """Tensors have up to about so many pages."""
    draw = random.Random(seed)
    page = draw.choice([16 << 10, 64 << 10])
    trace = _trace(draw, page, largest)
    behaviour = BehaviourSpec(
        addresses=draw.choice(["own", "pooled"]),
        recency=draw.choice(["use", "arrival"]),
        dead_tensors=draw.choice(["released", "released", "kept"]),
        tensor_order="trace",
    )
    policy = draw.choice(POLICIES)
    moves = _moves(draw, trace) if policy == "scripted" else {}
    return Case(seed, trace, _system(draw, trace, page), behaviour, policy, draw.randint(1, 6), moves)


def _trace(draw, page, largest):
    builder = TraceBuilder(f"drawn{draw.random()}")

    def tensor(kind, *, persistent=False):
        size = round(largest ** draw.uniform(0.5, 1)) * page - draw.randrange(page)
        return builder.tensor("", size, kind, persistent=persistent)

    weights = [tensor(TensorKind.WEIGHT, persistent=True) for _ in range(draw.randint(1, 6))]
    readable = list(weights)
    for number in range(draw.randint(4, 16)):
        inputs = draw.sample(readable, min(len(readable), draw.randint(1, 3)))
        outputs = [tensor(TensorKind.ACTIVATION) for _ in range(draw.randint(0, 2))]
        readable += outputs
        if draw.random() < 0.3:
            outputs.append(draw.choice(readable))
        if draw.random() < 0.2:
            outputs.append(tensor(TensorKind.WORKSPACE))
        duration = draw.randint(0, 4_000_000) + (number == 0)
        builder.kernel(f"Kernel{number}", duration, inputs, list(dict.fromkeys(outputs)))
    return builder.build()


def _system(draw, trace, page):
    sizes = [-(-tensor.size_bytes // page) for tensor in trace.tensors]
    working_set = max(sum(sizes[tensor] for tensor in kernel.tensors) for kernel in trace.kernels)
    all_pages = sum(sizes)
    slack = draw.choice([0, 1, draw.uniform(0, 0.5) * (all_pages - working_set), draw.random() * all_pages])
    host = draw.choice([0, draw.uniform(0, 0.3) * all_pages, 2 * all_pages, 2 * all_pages])

    def rate(low, high):
        return f"{int(draw.uniform(low, high) * 1e9)} B/s"

    batch = draw.choice([None, 1, 16, 256])
    return SystemSpec(
        name="drawn",
        gpu={
            "memory": f"{int(working_set + slack) * page} B",
            "clock": draw.choice(["1 GHz", "1.3 GHz"]),
            "page_size": f"{page} B",
            "allocation_rate": draw.choice(["1228 GB/s", rate(5, 200)]),
        },
        host={"memory": f"{int(host) * page} B"},
        ssd={
            "capacity": f"{3 * all_pages * page} B",
            "read_bandwidth": rate(1, 8),
            "write_bandwidth": rate(0.5, 8),
            "latency": f"{draw.randint(5, 100)} us",
        },
        pcie={"bandwidth": rate(4, 32), "service": draw.choice(["fair", "fair", "first_come"])},
        page_fault={
            "latency": f"{draw.choice([0, 5, 20, 45])} us",
            "group": draw.choice(["2 MiB", "2 MiB", "512 KiB"]),
            "batch": batch,
            "threshold": draw.choice([0.51, 0.51, 0.25, 1.0]),
            "eviction": draw.choice(["overlapped", "serial"]),
        },
    )


def _moves(draw, trace):
    """What a plan might ask for at each kernel, of tensors that the kernel does not use but for fetches."""
    moves = {}
    for kernel in trace.kernels:
        for tensor in draw.sample(range(len(trace.tensors)), min(len(trace.tensors), draw.randint(0, 3))):
            asked = moves.setdefault(kernel.id, [])
            is_live = trace.births[tensor] <= kernel.id < trace.deaths[tensor]
            is_live |= trace.tensors[tensor].persistent
            if draw.random() < 0.4:
                asked.append(("fetch", tensor))
            elif tensor not in kernel.tensors and is_live:
                asked.append(("evict", tensor, draw.choice(["host", "ssd"])))
            elif tensor not in kernel.tensors:
                asked.append(draw.choice([("free", tensor), ("evict", tensor, "host")]))
    return moves
