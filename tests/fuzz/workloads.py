"""Random workloads on random systems under every policy, with every invariant tested."""

import random
from dataclasses import dataclass

from g10sim.analysis.footprint import footprint_bytes, largest_working_set
from g10sim.config.behaviour import BehaviourSpec
from g10sim.config.sharing import ExchangeSpec, SharingSpec, VariationSpec
from g10sim.config.system import SystemSpec
from g10sim.errors import CapacityError, ConfigError, UnsupportedError
from g10sim.policies.interface.registry import available, create
from g10sim.sim.engine import run
from g10sim.trace.synthetic import chain, random_trace
from g10sim.trace.workload import Job, Workload

PAGE = 4096
NEEDS_A_FILE = {"replay"}
REFUSALS = (CapacityError, ConfigError, UnsupportedError)


@dataclass(frozen=True)
class Case:
    """One simulation, drawn from a seed."""

    seed: int
    workload: Workload
    system: SystemSpec
    policy: str
    behaviour: BehaviourSpec


def draw_case(seed: int) -> Case:
    draw = random.Random(seed)
    gpus = draw.choice([1, 1, 1, 2, 3])
    workload = _workload(draw, gpus)
    behaviour = draw.choice([BehaviourSpec()] * 3 + [BehaviourSpec(transfers="fluid", recency="arrival")])
    if (
        gpus == 1
        and workload.sharing.compute == "exclusive"
        and workload.exchange is None
        and draw.random() < 0.2
    ):
        behaviour = BehaviourSpec(transfers="batched", batch_pages=draw.choice([10, 50]))
    policies = sorted(set(available()) - NEEDS_A_FILE)
    return Case(seed, workload, _system(draw, workload, gpus), draw.choice(policies), behaviour)


def _workload(draw: random.Random, gpus: int) -> Workload:
    variation = VariationSpec(magnitude=0.3) if draw.random() < 0.2 else None
    seed = draw.randrange(1000)
    if gpus > 1 and draw.random() < 0.4:
        trace = chain(draw.randint(1, 8), activation_bytes=draw.randint(1, 1 << 18))
        jobs = tuple(Job(trace, gpu=gpu, iterations=draw.choice([1, 2])) for gpu in range(gpus))
        jobs = tuple(Job(trace, gpu=job.gpu, iterations=jobs[0].iterations) for job in jobs)
        exchange = ExchangeSpec(
            method=draw.choice(["ring", "host", "none"]), bucket=f"{draw.choice([1, 10**5])} B"
        )
        return Workload(jobs, variation, seed, exchange=exchange)
    jobs = tuple(_job(draw, gpus) for _ in range(draw.choice([1, 1, 2, 3])))
    compute = draw.choice(["exclusive", "time_sliced", "concurrent"]) if len(jobs) > 1 else "exclusive"
    sharing = SharingSpec(
        compute=compute,
        time_slice=f"{draw.choice([1, 20, 2000])} us",
        slowdown=draw.choice([0.0, 0.4, 1.0]),
        admission=draw.choice(["wait", "refuse"]),
        admission_memory=draw.choice(["working_set", "live", "footprint"]),
    )
    return Workload(jobs, variation, seed, sharing)


def _job(draw: random.Random, gpus: int) -> Job:
    if draw.random() < 0.3:
        trace = chain(draw.randint(1, 8), activation_bytes=draw.randint(1, 1 << 18))
    else:
        trace = random_trace(
            draw.randrange(10**6),
            kernels=draw.randint(1, 15),
            largest_tensor_bytes=1 << 18,
            longest_ticks=200_000,
        )
    return Job(
        trace,
        gpu=draw.randrange(gpus),
        arrival_cycles=draw.choice([0, 0, 1000, 300_000]),
        iterations=draw.choice([1, 2, 3]),
        priority=draw.randint(1, 3),
    )


def _system(draw: random.Random, workload: Workload, gpus: int) -> SystemSpec:
    traces = [job.trace for job in workload.jobs]
    footprint = sum(footprint_bytes(trace) + PAGE * len(trace.tensors) for trace in traces)
    least = max(largest_working_set(trace)[1] + PAGE * len(trace.tensors) for trace in traces)
    memory = draw.choice([least // 2 + PAGE, least, least + footprint // 4, 2 * footprint])
    shared = [{"name": "up", "gpus": list(range(gpus)), "bandwidth": "8 GB/s"}] if draw.random() < 0.5 else []
    host = {"memory": f"{draw.choice([0, footprint // 5, 2 * footprint])} B"}
    if draw.random() < 0.3:
        host["memory_bandwidth"] = "20 GB/s"
    return SystemSpec(
        name="random",
        gpu={"count": gpus, "memory": f"{memory} B", "clock": "1 GHz", "allocation_rate": "1 TB/s"},
        host=host,
        ssd={
            "capacity": f"{draw.choice([footprint, 10 * footprint])} B",
            "read_bandwidth": draw.choice(["3 GB/s", "1 GB/s"]),
            "write_bandwidth": draw.choice(["3 GB/s", "0.7 GB/s"]),
            "latency": draw.choice(["0 s", "20 us"]),
        },
        pcie={
            "bandwidth": draw.choice(["16 GB/s", "12.8 GB/s"]),
            "shared": shared,
            "service": draw.choice(["fair", "first_come", "deadline"]),
        },
        page_fault={"latency": draw.choice(["0 s", "45 us"])},
    )


def outcome(case: Case) -> str:
    """Return what became of a case: ``ran``, or how it was refused. Raises whatever must not happen."""
    try:
        records = run(
            case.workload,
            case.system,
            create(case.policy),
            case.behaviour,
            record=("timeline",),
            check=True,
        )
    except REFUSALS as refusal:
        text = str(refusal)
        assert text
        assert "\n" not in text
        return type(refusal).__name__
    refused = {record.job for record in records.jobs if record.refused}
    for number, job in enumerate(case.workload.jobs):
        done = sum(record.job == number for record in records.iterations)
        expected = 0 if number in refused else job.iterations
        assert done == expected, f"job {number} ran {done} of {expected} iterations"
    for record in records.iterations:
        assert record.end - record.start >= record.ideal_cycles
    return "ran"
