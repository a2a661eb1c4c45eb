"""Parameters, samples, tokens and FLOPs of traces whose numbers are known."""

from dataclasses import replace

import pytest

from g10sim.analysis.throughput import recomputing_kernels, throughput, utilisation
from g10sim.trace.model import Device, Phase, TensorKind
from g10sim.trace.synthetic import TICKS_PER_SECOND, TraceBuilder


def step(steps=1):
    """A linear layer and its activation, which the backward pass computes again, with an optimizer."""
    builder = TraceBuilder("step", batch_size=4)
    ids = builder.tensor("input.input_ids", 4 * 16 * 8, TensorKind.INPUT, persistent=True)
    weight = builder.tensor("w", 4000, TensorKind.WEIGHT, persistent=True)
    state = builder.tensor("w.exp_avg", 8000, TensorKind.OPTIMIZER_STATE, persistent=True)
    for _ in range(steps):
        out, loss_gradient, again, gradient = (
            builder.tensor(name, 4000, kind)
            for name, kind in (
                ("out", TensorKind.ACTIVATION),
                ("loss.grad", TensorKind.TEMPORARY),
                ("again", TensorKind.TEMPORARY),
                ("w.grad", TensorKind.GRADIENT),
            )
        )
        builder.kernel("mm", 10, [ids, weight], [out], Phase.FORWARD)
        builder.kernel("ones_like", 10, [], [loss_gradient], Phase.BACKWARD)
        builder.kernel("mm", 10, [ids, weight], [again], Phase.BACKWARD)
        builder.kernel("mm", 20, [loss_gradient, again], [gradient], Phase.BACKWARD)
        builder.kernel("adam", 50, [weight, state, gradient], [weight, state], Phase.OPTIMIZER)
    trace = builder.build()
    flops = {"mm": 600}
    kernels = tuple(replace(kernel, flops=flops.get(kernel.name, 0)) for kernel in trace.kernels)
    return replace(trace, kernels=kernels, origin={"dtype": "float32"})


@pytest.mark.parametrize("steps", [1, 3])
def test_the_work_of_a_step(steps):
    trace = step(steps)
    trace = replace(trace, origin=trace.origin | {"steps": str(steps)})
    work = throughput(trace)
    assert work.seconds == steps * 100 / TICKS_PER_SECOND
    assert (work.samples, work.tokens, work.parameters) == (4 * steps, 64 * steps, 1000)
    assert work.bytes_per_parameter == {
        TensorKind.WEIGHT: 4,
        TensorKind.GRADIENT: 4,
        TensorKind.OPTIMIZER_STATE: 8,
    }
    assert (work.model_flops, work.recomputed_flops) == (1200 * steps, 600 * steps)


def test_what_is_computed_again_depends_on_no_gradient():
    assert [kernel.id for kernel in recomputing_kernels(step(2))] == [2, 7]


def test_numbers_of_the_origin_come_first_and_other_text_is_let_be():
    trace = step()
    told = throughput(replace(trace, origin={"parameters": "500", "tokens": "7"}))
    assert (told.parameters, told.tokens) == (500, 7)
    assert told.bytes_per_parameter[TensorKind.WEIGHT] == 8
    generating = throughput(replace(trace, origin={"generate": "32", "tokens": "7"}))
    assert generating.tokens == trace.batch_size * 32
    text = throughput(replace(trace, origin={"parameters": "many", "tokens": "-1", "steps": "\u00b2"}))
    assert (text.parameters, text.tokens, text.samples) == (None, 64, 4)
    assert text.bytes_per_parameter == {}


def test_what_is_computed_again_is_no_work_of_the_model():
    """1,200 of the 1,800 FLOPs that are told by format, in 100 ticks."""
    trace = step()
    told = replace(trace, origin={"gpu": "a100-40g", "flops_by_format": "float16 1200, float32 600"})
    seconds = 100 / TICKS_PER_SECOND
    assert utilisation(told) == pytest.approx((800 / 312e12 + 400 / 19.5e12) / seconds)
    by_option = replace(trace, origin={"gpu": "a100-40g", "autocast": "float16"})
    assert utilisation(by_option) == pytest.approx(1200 / 312e12 / seconds)


def test_kernels_on_the_cpu_take_the_gpu_no_time():
    builder = TraceBuilder("offloaded")
    tensor = builder.tensor("w", 8, TensorKind.WEIGHT, persistent=True)
    builder.kernel("mm", 30, [tensor], [tensor])
    builder.kernel("adam", 70, [tensor], [tensor], device=Device.CPU)
    assert throughput(builder.build()).seconds == 30 / TICKS_PER_SECOND
