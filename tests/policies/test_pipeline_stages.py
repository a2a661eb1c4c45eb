"""Pipelines of stages on GPUs of their own: times worked out by hand. A cycle is a nanosecond."""

import math
import re
from dataclasses import replace

import pytest

from g10sim.config.behaviour import BehaviourSpec
from g10sim.config.system import SystemSpec
from g10sim.errors import ConfigError, TraceError
from g10sim.policies.interface.registry import create
from g10sim.records import StallReason
from g10sim.sim.engine import run
from g10sim.trace.format import load_trace, save_trace
from g10sim.trace.model import Phase, TensorKind
from g10sim.trace.pipeline import pipeline_stages
from g10sim.trace.synthetic import TraceBuilder, chain
from g10sim.trace.workload import Job, Workload

SECOND, GB, PAGE = 10**9, 10**9, 10**6
FORWARD, BACKWARD = SECOND, 2 * SECOND


def step(layers, micro_batches, width=GB, weight=GB, forward=FORWARD, backward=BACKWARD):
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
            builder.kernel("forward", forward, [x, held], [kept, y], Phase.FORWARD, **own)
            saved.append(kept)
            x = y
        for i in reversed(range(layers)):
            dx = tensor(f"{number}.{i}.dx", width, TensorKind.TEMPORARY)
            used = [x, saved[i], weights[i], *([gradients[i]] if number else [])]
            own = {"layer": f"{i}.layer", "micro_batch": number + 1}
            builder.kernel("backward", backward, used, [dx, gradients[i]], Phase.BACKWARD, **own)
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
        "ssd": {
            "capacity": "1 TB",
            "read_bandwidth": "10 GB/s",
            "write_bandwidth": "10 GB/s",
            "latency": "0 s",
        },
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
        expected = (micro_batches + 1) * (FORWARD + BACKWARD) + 2 * math.ceil(
            micro_batches / 2
        ) * SECOND // 10
        assert one.end - one.start == pytest.approx(expected, abs=100)


def two_stages(micro_batches, forward, backward, transfer):
    """Time of a step on two stages, pass by pass: 1F1B, and room for what comes is mapped a pass ahead."""
    numbers = range(1, micro_batches + 1)
    first = [("F", number) for number in numbers[:2]]
    for number in numbers:
        first += [("B", number), *[("F", number + 2)] * (number + 2 in numbers)]
    orders = first, [(kind, number) for number in numbers for kind in "FB"]
    sent_by_other = "B", "F"  # to the first stage, to the second
    starts, ends = [dict[tuple[str, int], int](), {}], [dict[tuple[str, int], int](), {}]
    while len(ends[0]) + len(ends[1]) < 4 * micro_batches:
        for stage, order in enumerate(orders):
            for one in order[len(ends[stage]) :]:
                before = order[len(ends[stage]) - 1] if ends[stage] else None
                start = ends[stage].get(before, 0)
                if one[0] == sent_by_other[stage]:
                    if one not in ends[1 - stage]:
                        break
                    start = max(start, max(ends[1 - stage][one], starts[stage].get(before, 0)) + transfer)
                starts[stage][one] = start
                ends[stage][one] = start + (forward if one[0] == "F" else backward)
    return max(map(max, (found.values() for found in ends)))


@pytest.mark.parametrize(
    ("micro_batches", "forward", "backward", "transfer", "expected"),
    [
        (4, 1_000_000, 300_000, 512_000, 8_760_000),  # by the formula of short transfers 8,548,000
        (2, 1_000_000, 300_000, 512_000, 5_136_000),
        (5, 300_000, 1_000_000, 512_000, 10_872_000),
        (4, 300_000, 300_000, 700_000, 6_200_000),
        (4, 1_000_000, 2_000_000, 100_000, 15_400_000),
    ],
)
def test_time_of_a_step_whose_stages_send_for_long(micro_batches, forward, backward, transfer, expected):
    assert two_stages(micro_batches, forward, backward, transfer) == expected
    trace = step(2, micro_batches, 10**9, forward=forward, backward=backward)
    for one in simulate(trace, ["1"], nvlink=f"{10**12 // transfer} MB/s"):
        assert one.end - one.start == pytest.approx(expected, abs=5000)


def test_every_stage_waits_for_the_others_and_sends():
    # Four micro-batches: (m + 1)(f + b) + 4 c, of which a stage computes m (f + b).
    for one in simulate(step(2, 4), ["1"], nvlink="10 GB/s"):
        assert dict(one.stalls) == {StallReason.BARRIER: 3_400_000_000}
        assert one.exchanged == {"exchanged_bytes": 4 * GB}


@pytest.mark.parametrize("policy", ["base_uvm", "deepum", "g10", "pressure", "stream", "teraio"])
def test_memory_of_each_stage_is_managed(policy):
    # A stage has at most 15 GB alive, and 9 GB of memory; run() checks what is where.
    for one in simulate(step(4, 4), ["2"], policy, nvlink="10 GB/s", memory="9 GB", link="10 GB/s"):
        assert one.exchanged == {"exchanged_bytes": 4 * GB}
        assert 30.4 * SECOND <= one.end - one.start < 36 * SECOND


def test_what_crosses_has_a_tensor_on_both_sides():
    first, second = pipeline_stages(step(2, 1), ["1"])
    names = [[tensor.name for tensor in one.tensors if "output" in tensor.name] for one in (first, second)]
    assert names == [["0.0.output"], ["0.0.output", "0.1.output"]]
    assert [kernel.name for kernel in first.kernels if kernel.duration] == ["forward", "backward", "update"]
    assert [kernel.name for kernel in first.link_kernels] == [
        "Transfer 1 from stage 1 to 0",
        "Transfer 0 from stage 0 to 1",
    ]


def test_stages_in_order():
    trace = pipeline_stages(step(3, 4), ["1", "2"])[0]
    passes = [(kernel.name[0], kernel.micro_batch) for kernel in trace.kernels if kernel.micro_batch]
    order = [("f", 1), ("f", 2), ("f", 3), ("b", 1), ("f", 4), ("b", 2), ("b", 3), ("b", 4)]
    assert passes == order


def test_gradients_that_the_next_step_drops_last_to_the_end_of_their_stages():
    """As captures have it: the last kernel of the step has them among its inputs, and moves none of them."""
    plain = step(3, 2)
    *others, last = plain.kernels
    gradients = {tensor.id for tensor in plain.tensors if tensor.kind is TensorKind.GRADIENT}
    held = replace(last, inputs=(*last.inputs, *sorted(gradients - {*last.inputs})), moved_bytes=3 * GB)
    cut = pipeline_stages(replace(plain, kernels=(*others, held)), ["2"])
    for stage, wanted in zip(cut, pipeline_stages(plain, ["2"]), strict=True):
        assert stage.kernels[:-1] == wanted.kernels[:-1]
    assert [[one.tensors[tensor].name for tensor in one.kernels[-1].inputs] for one in cut] == [
        ["1.weight", "1.gradient", "0.gradient"],
        ["2.weight", "2.gradient"],
    ]


def tied(**changes):
    """A step of two layers with one more kernel."""
    trace = step(2, 2)
    kernels = list(trace.kernels)
    number = changes.pop("after", len(kernels))
    kernels.insert(number, replace(kernels[number - 1], **changes))
    return replace(trace, kernels=tuple(one.again(number, 0, 0) for number, one in enumerate(kernels)))


@pytest.mark.parametrize(
    ("trace", "begin", "message"),
    [
        (step(2, 2), ["5"], "found no block '5' in the forward pass of micro-batch 1; allowed: 0, 1"),
        (
            step(3, 2),
            ["2", "1"],
            "found stages that begin with '2', '1'; allowed: blocks in the order of the",
        ),
        (chain(2), ["1"], "found no micro-batches; allowed: kernels with micro_batch"),
        (
            tied(inputs=(0, 1)),
            ["1"],
            "(update), of no micro-batch, with tensors of 2 stages; allowed: an opt",
        ),
        (tied(after=2, inputs=(0, 1)), ["1"], "found '0.weight', which lasts, is written, and is used by 2"),
        (tied(after=7, outputs=(9,)), ["1"], "found '0.1.dx', which a stage has sent and uses with other"),
    ],
)
def test_what_cannot_be_cut(trace, begin, message):
    with pytest.raises(TraceError, match=re.escape(message)):
        pipeline_stages(trace, begin, "step.g10t")


def test_stages_run_together_each_on_a_gpu():
    first, second = (Job(one, gpu=number) for number, one in enumerate(pipeline_stages(step(2, 2), ["1"])))
    doubled = tuple(replace(one, size_bytes=2 * one.size_bytes) for one in second.trace.tensors)
    larger = replace(second.trace, tensors=doubled)
    for jobs, message in [
        ((first,), "found no job that"),
        ((first, first, second), "found two jobs that"),
        ((first, replace(second, trace=larger)), "found no job that"),
        ((first, replace(second, gpu=0)), "found stages that share a GPU"),
        ((first, replace(second, iterations=3)), "run different numbers of iterations"),
    ]:
        with pytest.raises(ConfigError, match=message):
            run(Workload(jobs), machine(2), create("ideal"))
    together, batched = Workload((first, replace(second, gpu=0))), BehaviourSpec(transfers="batched")
    with pytest.raises(ConfigError, match=r"stages of a pipeline with compat\.transfers 'batched'"):
        run(together, machine(1, link="10 GB/s"), create("g10"), batched)


def test_a_stage_in_a_file_is_as_it_was(tmp_path):
    trace = pipeline_stages(step(2, 2), ["1"])[0]
    save_trace(trace, tmp_path / "stage0.g10t")
    assert load_trace(tmp_path / "stage0.g10t") == trace
