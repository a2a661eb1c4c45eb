"""Machines and traces small enough to work out by hand.

A cycle is a nanosecond, a page 1000 bytes, and links carry a byte per cycle: a page crosses PCIe in 1000
cycles, comes from flash in 2000, goes to flash in 4000, and is mapped in 1000. A page fault waits 1000
cycles (a flash page 2000 more), each page by itself.
"""

from memories import FLASH, GPU, HOST, NONE

from g10sim.config.behaviour import GPG, BehaviourSpec
from g10sim.config.system import SystemSpec
from g10sim.policies.interface.moves import Drop, Evict, Fetch, Free
from g10sim.policies.interface.plan import MigrationPlan, Planned
from g10sim.policies.interface.policy import Policy
from g10sim.sim.engine import run
from g10sim.trace.model import TensorKind
from g10sim.trace.synthetic import TraceBuilder
from g10sim.trace.workload import Job, Workload

PAGE = 1000

# Batches of 10 pages every 10,000 cycles: 10 in, 10 out, of those 5 from and 2 to flash.
GPG10 = GPG.model_copy(update={"batch_pages": 10})

# What is worked out by hand here is worked out for tensors with addresses of their own.
OWN = BehaviourSpec(addresses="own", recency="use", initial_tier="last")

# Weights come from the SSD in the first iteration.
FROM_SSD = BehaviourSpec(initial_tier="last")


def machine(
    gpu_pages=1000,
    host_pages=1000,
    *,
    gpus=1,
    flash_pages=100_000,
    read="0.5 GB/s",
    write="0.25 GB/s",
    pcie="1 GB/s",
    mapping="1 GB/s",
    fault="1 us",
    flash_latency="2 us",
    group_pages=1,
    shared=(),
    page=PAGE,
    kernel_access=None,
    duplex=None,
):
    """A machine; ``shared`` holds (name, GPUs, bandwidth). With ``kernel_access`` it has no SSD."""
    return SystemSpec(
        name="tiny",
        gpu={
            "count": gpus,
            "memory": f"{gpu_pages * page} B",
            "clock": "1 GHz",
            "page_size": f"{page} B",
            "allocation_rate": mapping,
        },
        host={"memory": f"{host_pages * page} B", "kernel_access": kernel_access},
        tiers=None if kernel_access is None else ["host"],
        ssd=None
        if kernel_access is not None
        else {
            "capacity": f"{flash_pages * page} B",
            "read_bandwidth": read,
            "write_bandwidth": write,
            "latency": flash_latency,
        },
        pcie={
            "bandwidth": pcie,
            "duplex": duplex,
            "shared": [{"name": name, "gpus": list(who), "bandwidth": rate} for name, who, rate in shared],
        },
        page_fault={"latency": fault, "group": f"{group_pages * page} B"},
    )


def trace_of(tensors, kernels, name="tiny", page=PAGE):
    """A trace from {name: pages} ("*" behind a name: persistent) and (duration, inputs, outputs).

    Behind outputs there may be how often each input is read.
    """
    builder = TraceBuilder(name)
    ids = {}
    for key, pages in tensors.items():
        persistent = key.endswith("*")
        kind = TensorKind.WEIGHT if persistent else TensorKind.ACTIVATION
        ids[key.rstrip("*")] = builder.tensor(key.rstrip("*"), pages * page, kind, persistent=persistent)
    for number, (duration, inputs, outputs, *times) in enumerate(kernels):
        read, written = ([ids[key] for key in keys.split()] for keys in (inputs, outputs))
        builder.kernel(f"Kernel{number}", duration, read, written, reads=times)
    return builder.build()


def planned(kernel, tensor, target, *, drops=False, delay=0):
    """A planned move of a tensor to a place: GPU, HOST, FLASH, or NONE (freed, or dropped)."""
    moves = {
        GPU: Fetch(tensor),
        HOST: Evict(tensor, "host"),
        FLASH: Evict(tensor, "ssd"),
        NONE: Drop(tensor) if drops else Free(tensor),
    }
    return Planned(kernel, moves[target], delay)


def place_of(move):
    """Return the place that a planned move takes a tensor to."""
    if isinstance(move, Evict):
        return FLASH if move.target == "ssd" else HOST
    return GPU if isinstance(move, Fetch) else NONE


def as_tuples(plan):
    """A plan's moves of tensors as (kernel, tensor, target)."""
    return [(entry.kernel, entry.move.tensor, place_of(entry.move)) for entry in plan.moves]


class FollowPlan(Policy):
    """Carries out moves given as (kernel, tensor, target), with the trace's own ids."""

    name = "follow_plan"

    def __init__(self, *, moves=()):
        self.moves = moves

    def plan_job(self, job, system, behaviour):
        moves = MigrationPlan.ordered(planned(*move) for move in self.moves)
        return moves.with_ids(job.trace.ids_of_given)


def simulate(trace, system, policy, behaviour=None, *, iterations=2, record=("kernels",), check=True):
    """Run one job with every check on."""
    workload = Workload((Job(trace, iterations=iterations),))
    return run(workload, system, policy, behaviour or OWN, record=record, check=check)


def iteration_times(records):
    """Cycles of each iteration."""
    return [iteration.end - iteration.start for iteration in records.iterations]


def kernel_times(records, iteration=0):
    """Cycles of each kernel of an iteration."""
    return [kernel.end - kernel.start for kernel in records.kernels if kernel.iteration == iteration]
