"""Small machines of every kind, by name, and how they behave, for the tables of recorded results."""

from collections.abc import Mapping

from recorded_workloads import WORKLOADS

from g10sim.analysis.footprint import footprint_bytes
from g10sim.config.behaviour import GPG, BehaviourSpec
from g10sim.config.system import SystemSpec
from g10sim.units import parse_bytes

OWN = {"addresses": "own"}
FLASH = {
    "model": "flash",
    "interface": "4 GB/s",
    "channels": 4,
    "dies": 2,
    "planes": 2,
    "blocks": 64,
    "pages": 64,
    "page_size": "16 KiB",
    "bus": "1200 MB/s",
    "read": "40 us",
    "program": "300 us",
    "erase": "2 ms",
    "controller_latency": "5 us",
    "write_buffer": "0 B",
    "queue_depth": 16,
    "request_size": "512 KiB",
    "overprovisioning": 0.15,
    "collection": {"start": 0.08, "urgent": 0.04},
    "rating": {"cycles": 3000, "written": "600 TB", "years": 5},
}
PLAIN = {
    "gpu": {"count": 2, "clock": "1.3 GHz", "page_size": "64 KiB", "allocation_rate": "200 GB/s"},
    "host": {
        "memory": "4 GiB",
        "compression": {"workers": 3, "compression_rate": "4 GB/s", "decompression_rate": "6 GB/s"},
    },
    "ssd": {
        "capacity": "64 GiB",
        "read_bandwidth": "2.5 GB/s",
        "write_bandwidth": "1.2 GB/s",
        "latency": "20 us",
    },
    "pcie": {"bandwidth": "6 GB/s"},
    "page_fault": {"latency": "30 us"},
}
SHARED = [{"name": "switch", "gpus": [0, 1], "bandwidth": "7 GB/s"}]
CXL = {"name": "cxl", "capacity": "200 MiB", "read": "4 GB/s", "write": "3 GB/s", "latency": "400 ns"}
SOCKETS = [{"name": "near", "gpus": [0]}, {"name": "far", "gpus": [1]}]

# What is other than in PLAIN; GPU memory and host memory as a share of the largest footprint of the jobs.
MACHINES = {
    "plain": (0.35, {}, {}),
    "roomy": (1.3, {}, OWN),
    "tight": (0.0, {}, {"planner": "published", "planner_gigabyte": "binary"}),
    "no_host": (0.3, {"host": {"memory": "0 B"}}, {}),
    "little_host": (0.25, {"host": {"memory": 0.25}}, OWN),
    "three_tiers": (0.25, {"host": {"memory": 0.2}, "tiers": ["host", CXL, "ssd"]}, {}),
    "in_place": (
        0.2,
        {
            "host": {"memory": 0.4, "kernel_access": {"read": "5 GB/s"}},
            "tiers": ["host", {**CXL, "kernel_access": {}}, "ssd"],
        },
        {},
    ),
    "one_tier": (0.2, {"host": {"kernel_access": {"write": "2 GB/s"}}, "tiers": ["host"], "ssd": None}, OWN),
    "duplex": (
        0.25,
        {
            "pcie": {
                "bandwidth": None,
                "to_device": "7 GB/s",
                "from_device": "4 GB/s",
                "duplex": "8 GB/s",
                "per_copy": "3 us",
            },
            "ssd": {"drives": 2, "stripe_efficiency": 0.9, "write_latency": "90 us"},
        },
        {},
    ),
    "deadlines": (
        0.3,
        {"pcie": {"shared": SHARED, "service": "deadline"}, "ssd": {"behind": "switch"}},
        {**OWN, "copy_gigabyte": "binary"},
    ),
    "first_come": (
        0.35,
        {
            "host": {"memory": 0.3},
            "pcie": {"shared": SHARED, "service": "first_come"},
            "ssd": {"path": "host", "bounce": {"bandwidth": "3 GB/s", "latency": "12 us"}},
        },
        {},
    ),
    "gpg": (0.3, {"gpu": {"count": 1}, "host": {"memory": 0.5}}, GPG.model_dump()),
    "batched": (
        0.3,
        {"gpu": {"count": 1}, "host": {"memory": 0.3}},
        {"transfers": "batched", "batch_pages": 30},
    ),
    "by_arrival": (
        0.25,
        {"gpu": {"page_size": "4 KiB"}, "host": {"memory": 0.4}},
        {"running_tensors": "evictable"},
    ),
    "kept": (
        0.3,
        {"host": {"memory": 0.3}},
        {
            **OWN,
            "dead_tensors": "kept",
            "recency": "use",
            "tensor_order": "trace",
            "compute_overlap": "while_arriving",
            "breakdown": "in_flight",
            "reported_iteration": "fastest",
            "reported_digits": "six",
            "unread_tensors": "skipped",
            "absent_weights": "ignored",
        },
    ),
    "fault_batches": (
        0.25,
        {
            "gpu": {"page_size": "16 KiB"},
            "page_fault": {
                "latency": "9 us",
                "batch": 16,
                "leaf": "64 KiB",
                "group": "1 MiB",
                "threshold": 0.3,
                "eviction": "serial",
            },
        },
        {"recency": "use"},
    ),
    "flash": (0.3, {"host": {"memory": "0 B"}, "ssd": {**FLASH, "occupied": 0.4, "condition": "random"}}, {}),
    "streams": (
        0.3,
        {
            "host": {"memory": 0.1},
            "ssd": {
                **FLASH,
                "streams": 3,
                "write_buffer": "1 MiB",
                "slc": {"capacity": "24 MiB", "program": "60 us"},
                "condition": "sequential",
                "trim": False,
                "occupied": 0.2,
                "blocks": 96,
            },
        },
        OWN,
    ),
    "overwritten": (
        0.25,
        {"host": {"memory": 0.1}, "ssd": {**FLASH, "in_place": True, "drives": 2, "erase": "0 ns"}},
        {},
    ),
    "pinned": (
        0.25,
        {
            "host": {
                "pinned": {
                    "limit": "40 MiB",
                    "pin_latency": "20 us",
                    "pin_rate": "5 GB/s",
                    "unpin_latency": "10 us",
                    "beyond_limit": "pageable",
                    "pageable_bandwidth": "3 GB/s",
                }
            }
        },
        {},
    ),
    "sockets": (
        0.3,
        {
            "gpu": {"copy_contention": {"share": 0.1}},
            "host": {
                "memory": 0.6,
                "memory_bandwidth": "9 GB/s",
                "sockets": SOCKETS,
                "inter_socket_bandwidth": "4 GB/s",
            },
            "cpu": {"optimizer_rate": "1e9/s", "memory_bandwidth": "12 GB/s"},
            "nvlink": {"bandwidth": "40 GB/s"},
        },
        OWN,
    ),
}

WITH_CPU = {
    "offloading": (
        1.3,
        {
            "cpu": {"optimizer_rate": "1e9/s", "memory_bandwidth": "12 GB/s"},
            "host": {
                "memory": 0.9,
                "memory_bandwidth": "15 GB/s",
                "pinned": {"limit": "40 MiB", "pageable_bandwidth": "3 GB/s"},
            },
        },
        OWN,
    )
}
"""For designs that let the CPU run the optimizer and need room for it, and these workloads."""
TRAINED = ["training", "until_steady", "varied", "on_both"]


def workloads_on(name, *, copies):
    """Return the names of the workloads that a machine can run; ``copies``: a design copies whole tensors."""
    if name in WITH_CPU:
        return TRAINED
    _, changes, behaviour = MACHINES[name]
    without = set() if "cpu" in changes and not copies else {"on_both"}
    if behaviour.get("transfers") == "batched":
        without |= {"time_sliced", "concurrent", "two_gpus", "ring", "over_the_host"}
    return [workload for workload in WORKLOADS if workload not in without]


def machine_for(name, workload, *, copies):
    """Return the system and the behaviour of a name, with memory in proportion to a workload's needs.

    There is more of it for designs that copy whole tensors, which need it in one piece.
    """
    share, changes, behaviour = {**MACHINES, **WITH_CPU}[name]
    system = _merged(PLAIN, changes)
    page = parse_bytes(system["gpu"]["page_size"])
    largest = max(footprint_bytes(job.trace) for job in workload.jobs)
    least = max(_one_kernel(job.trace, page) for job in workload.jobs)
    memory = least + int((share + 0.4 * copies) * (largest - least))
    system["gpu"]["memory"] = f"{-(-memory // page) * page} B"
    host = system["host"]["memory"]
    if isinstance(host, float):
        system["host"]["memory"] = f"{int(host * largest)} B"
    return SystemSpec(name=name, **system), BehaviourSpec(**behaviour)


def _one_kernel(trace, page):
    """Return the bytes of the kernel that uses most, in whole pages."""
    sizes = trace.page_sizes(page)
    return max(sum(sizes[tensor] for tensor in kernel.tensors) for kernel in trace.kernels) * page


def _merged(base, changes):
    """Return a mapping with changes; another model of SSD replaces the whole section."""
    if changes.get("model"):
        return dict(changes)
    found = dict(base)
    for key, value in changes.items():
        is_section = isinstance(value, Mapping) and isinstance(found.get(key), Mapping)
        found[key] = _merged(found[key], value) if is_section else value
    return {key: dict(value) if isinstance(value, Mapping) else value for key, value in found.items()}
