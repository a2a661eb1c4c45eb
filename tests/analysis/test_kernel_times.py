"""Kernel times of a trace on another GPU, and steps that wait for the host, worked out by hand."""

from dataclasses import replace

import pytest

from g10sim.analysis.gpus import load_gpu, retimed
from g10sim.analysis.work_check import check_work, unjudged
from g10sim.errors import ConfigError, TraceError
from g10sim.trace.format import load_trace, save_trace
from g10sim.trace.model import Kernel, Tensor, TensorKind, TimeSource, Trace
from g10sim.trace.repetition import Block, Repeated

ADD = {"operator_class": "elementwise", "number_format": "float16", "time_source": TimeSource.ROOFLINE}
GPU = load_gpu("a100-80g")
HOST_NS = GPU.host_issue // 1000
LAUNCH_NS = GPU.launch_overhead // 1000


def kernels(*facts):
    return tuple(Kernel(number, "add", 1, (0,), (1,), **{**ADD, **one}) for number, one in enumerate(facts))


def trace(made, **origin):
    tensors = Tensor(0, "x", 8, TensorKind.INPUT, True), Tensor(1, "y", 8, TensorKind.ACTIVATION, False)
    return Trace("model", 1, 10**9, tensors, made, origin)


def times(found):
    return [kernel.duration for kernel in found.kernels]


def moving_ns(moved_bytes):
    bandwidth = GPU.bandwidth_efficiency["elementwise"] * GPU.memory_bandwidth
    return -int(-moved_bytes * 1e9 // bandwidth)


def test_short_kernels_wait_for_the_host_that_issues_them_in_order():
    views = {"sizes": (("views", 2),)}
    found = retimed(trace(kernels({}, {}, views)), GPU)
    assert times(found) == [HOST_NS + LAUNCH_NS, HOST_NS, 3 * HOST_NS]


def test_behind_a_long_kernel_the_host_is_ahead():
    large = 10**9
    found = times(retimed(trace(kernels({"moved_bytes": large}, {}, {})), GPU))
    assert found[0] == pytest.approx(HOST_NS + LAUNCH_NS + moving_ns(large), abs=1)
    assert found[1:] == [LAUNCH_NS, LAUNCH_NS]


def test_no_kernel_of_a_graph_waits_for_the_host():
    found = retimed(trace(kernels({}, {}), cuda_graph="True"), GPU)
    assert times(found) == [1700, 1700]  # graph_overhead of the A100
    v100 = load_gpu("v100")  # without one
    assert times(retimed(trace(kernels({}), cuda_graph="True"), v100)) == [v100.launch_overhead // 1000]


def numbered(*blocks):
    """Repeat each block of kernels so many times, with ids that count on."""
    first, found = 0, []
    for made, repeats in blocks:
        found.append(Block(tuple(replace(k, id=first + n) for n, k in enumerate(made)), repeats))
        first += len(made) * repeats
    return Repeated(found)


def test_repeated_blocks_take_the_times_of_later_ones():
    made = numbered((kernels({}), 1), (kernels({}, {"moved_bytes": 10**8}), 1000))
    found = retimed(trace(made), GPU)
    assert times(found)[:4] == [HOST_NS + LAUNCH_NS, LAUNCH_NS, times(found)[2], LAUNCH_NS]
    assert times(found)[2] == pytest.approx(LAUNCH_NS + moving_ns(10**8), abs=1)
    assert len(found.kernels.blocks[1].items) == 2


@pytest.mark.parametrize("repeats", [2, 3, 1000])
def test_what_follows_repeated_blocks_waits_as_if_each_had_been_issued_by_itself(repeats):
    short, large = kernels({}), kernels({"moved_bytes": 10**8})
    for block in (short, large, short + large):
        spelled = retimed(trace(numbered(*[(block, 1)] * repeats, (short, 1), (large, 1), (short, 1))), GPU)
        repeated = retimed(trace(numbered((block, repeats), (short, 1), (large, 1), (short, 1))), GPU)
        assert times(repeated)[-3:] == times(spelled)[-3:]


def test_there_and_back_times_are_the_same_to_the_tick(tmp_path):
    sizes = (("products", 64), ("views", 1))
    product = {"operator_class": "matmul", "flops": 10**9, "moved_bytes": 10**6, "sizes": sizes}
    given = retimed(trace(kernels(product, {"moved_bytes": 10**6}, {}), command="g10sim ... --gpu x"), GPU)
    other = retimed(given, load_gpu("h100"))
    assert times(other) != times(given)
    back = retimed(other, GPU)
    assert back == given
    save_trace(given, tmp_path / "given.g10t")
    save_trace(retimed(load_trace(tmp_path / "given.g10t"), GPU), tmp_path / "back.g10t")
    assert (tmp_path / "given.g10t").read_bytes() == (tmp_path / "back.g10t").read_bytes()
    assert given.origin["command"] == "g10sim ... --gpu a100-80g"


@pytest.mark.parametrize(
    ("facts", "gpu", "error", "message"),
    [
        (
            {"number_format": ""},
            "h100",
            TraceError,
            r"^old: kernel 0 \(add\): found no number_format; al",
        ),
        ({"operator_class": ""}, "h100", TraceError, r"^old: kernel 0 \(add\): found no operator_class"),
        ({"operator_class": "magic"}, "h100", TraceError, "found operator_class 'magic'"),
        (
            {"operator_class": "matmul", "number_format": "bfloat16", "flops": 1},
            "v100",
            ConfigError,
            "'v100': found an operator in bfloat16, which has no peak rate",
        ),
    ],
)
def test_a_trace_without_the_work_of_its_kernels_is_refused(facts, gpu, error, message):
    with pytest.raises(error, match=message):
        retimed(trace(kernels(facts)), load_gpu(gpu), "old")


def test_kernels_that_beat_their_gpu_are_named():
    product = {"operator_class": "matmul", "flops": 10**12, "sizes": (("products", 10**12),)}
    given = retimed(trace(kernels({}, product)), GPU)
    check_work(given)
    fast = replace(given.kernels[1], duration=3 * 10**6)
    with pytest.raises(TraceError, match=r"^trace: kernel 1 \(add\): found 3.00 ms for 1000000000000 FLOPs"):
        check_work(replace(given, kernels=(given.kernels[0], fast)))
    check_work(replace(given, kernels=(given.kernels[0], replace(fast, time_source=TimeSource.MEASURED))))


def test_flops_that_disagree_with_shapes_are_named():
    product = {"operator_class": "matmul", "flops": 10**12, "sizes": (("products", 1),)}
    with pytest.raises(TraceError, match="with 1 products for each element of 8 bytes; allowed: at most 32"):
        check_work(trace(kernels(product)))
    forward, gradient = (
        Kernel(number, name, 1, (0,), (1,), layer="conv", flops=flops)
        for number, (name, flops) in enumerate([("convolution", 100), ("convolution_backward_weight", 800)])
    )
    with pytest.raises(TraceError, match="found flops 800; allowed: those of the convolution of its layer"):
        check_work(trace((forward, gradient)))


def test_modelled_kernels_that_do_not_say_their_work_are_not_judged():
    said = retimed(trace(kernels({"operator_class": "matmul", "flops": 10**12})), GPU)
    fast = replace(said.kernels[0], duration=1)
    assert not unjudged(said)
    with pytest.raises(TraceError, match="for 1000000000000 FLOPs"):
        check_work(replace(said, kernels=(fast,)))
    old = replace(said, kernels=(replace(fast, number_format=""),))
    check_work(old)
    assert "without the work" in unjudged(old)
