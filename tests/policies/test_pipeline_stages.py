"""Pipelines of stages on GPUs of their own: times worked out by hand. A cycle is a nanosecond."""

import math

import pytest

from g10sim.config.system import SystemSpec
from g10sim.errors import ConfigError, UnsupportedError
from g10sim.policies.registry import create
from g10sim.records import StallReason
from g10sim.sim.engine import run
from g10sim.trace.model import Phase, TensorKind
from g10sim.trace.pipeline import pipeline_stages
from g10sim.trace.synthetic import TraceBuilder
from g10sim.trace.workload import Job, Workload

SECOND, GB, PAGE = 10**9, 10**9, 10**6
FORWARD, BACKWARD = SECOND, 2 * SECOND


def step(layers, micro_batches, width=GB, weight=GB):
    """A step of equal layers that pass on ``width`` bytes, and keep as many for the backward pass."""
    builder = TraceBuilder("layers", micro_batches)

    def tensor(name, size, kind, *, persistent=False):
        return builder.tensor(name, size, kind, persistent=persistent)

    weights = [tensor(f"{i}.weight", weight, TensorKind.WEIGHT, persistent=True) for i in range(layers)]
    gradients = [tensor(f"{i}.gradient", weight, TensorKind.GRADIENT) for i in range(layers)]
    for number in range(micro_batches):
        x = tensor(f"{number}.input", width, TensorKind.INPUT)
        saved = []
        for i, held in enumerate(weights):
            kept = tensor(f"{number}.{i}.saved", width, TensorKind.ACTIVATION)
            y = tensor(f"{number}.{i}.output", width, TensorKind.ACTIVATION)
            own = {"layer": f"{i}.layer", "micro_batch": number + 1}
            builder.kernel("forward", FORWARD, [x, held], [kept, y], Phase.FORWARD, **own)
            saved.append(kept)
            x = y
        for i in reversed(range(layers)):
            dx = tensor(f"{number}.{i}.dx", width, TensorKind.TEMPORARY)
            used = [x, saved[i], weights[i], *([gradients[i]] if number else [])]
            own = {"layer": f"{i}.layer", "micro_batch": number + 1}
            builder.kernel("backward", BACKWARD, used, [dx, gradients[i]], Phase.BACKWARD, **own)
            x = dx
    for held, gradient in zip(weights, gradients, strict=True):
        builder.kernel("update", 1, [held, gradient], [held], Phase.OPTIMIZER)
    return builder.build()


def machine(gpus, *, nvlink="1000 TB/s", memory="100 GB", link="100 TB/s", **changes):
    plain = {
        "name": "stages",
        "gpu": {
            "memory": memory,
            "clock": "1 GHz",
            "page_size": "1 MB",
            "count": gpus,
            "allocation_rate": "1000 TB/s",
        },
        "host": {"memory": "1 TB"},
        "ssd": {"capacity": "1 TB", "read_bandwidth": "10 GB/s", "write_bandwidth": "10 GB/s", "latency": "0 s"},
        "pcie": {"bandwidth": link},
        "nvlink": {"bandwidth": nvlink},
        "page_fault": {"latency": "0 s"},
    }
    return SystemSpec(**plain | changes)


def simulate(trace, begin, policy="ideal", iterations=3, **machine_changes):
    """The last iteration of every stage."""
    traces = pipeline_stages(trace, begin)
    jobs = tuple(Job(one, gpu=number, iterations=iterations) for number, one in enumerate(traces))
    records = run(Workload(jobs), machine(len(jobs), **machine_changes), create(policy), check=True)
    return sorted(records.iterations, key=lambda one: (one.iteration, one.job))[-len(jobs) :]


@pytest.mark.parametrize("stages", [2, 3, 4])
@pytest.mark.parametrize("micro_batches", [1, 2, 5])
def test_time_of_a_step_with_fast_links(stages, micro_batches):
    # A micro-batch takes a stage f + b, and p - 1 of them fill and drain the pipeline.
    trace = step(stages, micro_batches, width=1)
    for one in simulate(trace, [str(i) for i in range(1, stages)]):
        expected = (micro_batches + stages - 1) * (FORWARD + BACKWARD)
        assert one.end - one.start == pytest.approx(expected, abs=100)


@pytest.mark.parametrize("micro_batches", [1, 2, 3, 4, 7])
def test_time_of_a_step_whose_stages_send_for_a_while(micro_batches):
    # Stage 0 runs F1 F2 B1 F3 B2 ... and stage 1 F1 B1 F2 B2 ...; a transfer takes c = .1 s. B1 ends at
    # 2f + 2b + 2c. From F3 on, every other micro-batch waits for both transfers of the one before it.
    for one in simulate(step(2, micro_batches), ["1"], nvlink="10 GB/s"):
        expected = (micro_batches + 1) * (FORWARD + BACKWARD) + 2 * math.ceil(micro_batches / 2) * SECOND // 10
        assert one.end - one.start == pytest.approx(expected, abs=100)
