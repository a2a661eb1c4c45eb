"""FLOPs, classes and formats of operators that an execution trace names, beside those of a capture."""

import json

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'g10sim[capture]'")

from torch.profiler import ExecutionTraceObserver  # noqa: E402

from g10sim.analysis.gpus import load_gpu, retimed  # noqa: E402
from g10sim.capture import capture_step  # noqa: E402
from g10sim.importers.execution_nodes import Node, Reference  # noqa: E402
from g10sim.importers.execution_trace import import_execution_trace  # noqa: E402
from g10sim.importers.operations import Operation  # noqa: E402
from g10sim.importers.work import work_of  # noqa: E402
from g10sim.trace.model import Phase, TimeSource  # noqa: E402

BATCH, WIDTH, HEADS, SIDE = 2, 16, 4, 8
A100 = load_gpu("a100-40g")


class Mixed(torch.nn.Module):
    """A grouped convolution with a stride, two batched products and a layer."""

    def __init__(self):
        super().__init__()
        self.convolution = torch.nn.Conv2d(WIDTH, 2 * WIDTH, 3, stride=2, padding=1, groups=4)
        self.layer = torch.nn.Linear(2 * WIDTH, 10)

    def forward(self, x):
        found = self.convolution(x).flatten(2).transpose(1, 2)
        return self.layer(torch.bmm(found, found.transpose(1, 2)) @ found)


def build():
    return Mixed(), torch.randn(BATCH, WIDTH, SIDE, SIDE)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    path = tmp_path_factory.mktemp("work") / "execution.json"
    network, x = build()
    observer = ExecutionTraceObserver().register_callback(str(path))
    observer.start()
    network(x).sum().backward()
    observer.stop()
    observer.unregister_callback()
    return path


@pytest.fixture(scope="module")
def imported(recorded):
    return import_execution_trace(recorded, price=A100.duration_ns, batch_size=BATCH)


def flops(trace, kind):
    return sum(kernel.flops for kernel in trace.kernels if kernel.operator_class == kind)


@pytest.mark.parametrize("kind", ["matmul", "batched_matmul", "convolution"])
def test_flops_are_those_of_a_capture(imported, kind):
    captured = capture_step(build, optimizer="sgd")
    assert flops(imported, kind) == flops(captured, kind) > 0


def test_kernels_that_compute_take_the_time_of_their_work(imported):
    (product,) = [kernel for kernel in imported.kernels if kernel.name in ("addmm", "linear")]
    assert product.time_source is TimeSource.ROOFLINE
    assert product.flops == 2 * BATCH * (SIDE // 2) ** 2 * 2 * WIDTH * 10
    sizes = dict(next(kernel for kernel in imported.kernels if "convolution" in kernel.name).sizes)
    assert (sizes["groups"], sizes["window"], sizes["stride"], sizes["channels"]) == (4, 9, 2, WIDTH)
    others = {kernel.time_source for kernel in imported.kernels if not kernel.flops}
    assert others == {TimeSource.BYTES}
    assert imported.origin["time_source"] == "bytes, roofline"


def test_what_was_imported_for_one_gpu_takes_the_times_of_another(recorded, imported):
    h100 = load_gpu("h100")
    again = import_execution_trace(recorded, price=h100.duration_ns, batch_size=BATCH)
    assert [kernel.duration for kernel in again.kernels] != [kernel.duration for kernel in imported.kernels]
    other = retimed(imported, h100)
    assert [kernel.flops for kernel in other.kernels] == [kernel.flops for kernel in again.kernels]


def test_a_format_without_a_rate_is_priced_by_bytes(tmp_path, recorded):
    values = json.loads(recorded.read_text())
    text = json.dumps(values).replace("Tensor(float)", "Tensor(c10::Float8_e8m0fnu)")
    path = tmp_path / "execution.json"
    path.write_text(text)
    trace = import_execution_trace(path, price=A100.duration_ns, batch_size=BATCH)
    assert {kernel.time_source for kernel in trace.kernels} == {TimeSource.BYTES}


def work(name, shapes, made=(), **arguments):
    """The work that is counted for an operator with tensors of some shapes."""
    schema = (
        "f(" + ", ".join(["Tensor t"] * len(shapes) + [f"int {given}" for given in arguments]) + ") -> Tensor"
    )
    tensors = [
        Reference(n, n, 0, "cuda:0", 2, "c10::BFloat16", shape, (9, 9)) for n, shape in enumerate(shapes)
    ]
    outputs = [tensors[0]._replace(shape=shape) for shape in made]
    values = [[]] * len(shapes) + list(arguments.values())
    node = Node(1, f"aten::{name}", 0, schema, 0, 1, "", [(one,) for one in tensors], outputs, values)
    return work_of(node, Operation(name, Phase.FORWARD))


@pytest.mark.parametrize("transposed", [False, True])
def test_the_smaller_side_of_a_convolution_meets_the_weights(transposed):
    small, large = (BATCH, 6, 5, 5), (BATCH, 10, 9, 9)
    image, output = (small, large) if transposed else (large, small)
    weight = (image[1], output[1] // 2, 3, 3) if transposed else (output[1], image[1] // 2, 3, 3)
    once = 2 * BATCH * 6 * 25 * 10 // 2 * 9
    found = work("convolution", [image, weight], [output], transposed=transposed, groups=2)
    assert (found.flops, found.groups) == (once, 2)
    both = work(
        "convolution_backward", [output, image, weight], [image, weight], transposed=transposed, groups=2
    )
    assert both.flops == 2 * once


def test_both_gradients_of_a_convolution_of_as_large_a_weight_count():
    image, output = (4, 4, 3, 3), (4, 4, 1, 1)
    once = work("convolution", [image, image], [output], groups=1).flops
    assert once == 2 * 4 * 4 * 4 * 9
    for made in (1, 2):
        both = work("convolution_backward", [output, image, image], [image] * made, groups=1)
        assert both.flops == made * once


@pytest.mark.parametrize(("columns", "alignment"), [(8, 0), (4, 8), (7, 2)])
def test_rows_of_a_product_that_are_no_multiple_of_16_bytes_say_so(columns, alignment):
    shapes = [(32, columns), (columns, 64), (32, 64)]
    left, right, made = (
        Reference(n, n, 0, "cuda:0", 2, "c10::BFloat16", shape, (shape[1], 1))
        for n, shape in enumerate(shapes)
    )
    node = Node(1, "aten::mm", 0, "f(Tensor a, Tensor b) -> Tensor", 0, 1, "", [(left,), (right,)], [made])
    assert work_of(node, Operation("mm", Phase.FORWARD)).alignment == alignment


def attention(name, shapes, *, is_causal):
    return work(name, shapes, is_causal=is_causal)


HEAD, LENGTH = 64, 128
SHAPE, INNER = (BATCH, HEADS, LENGTH, HEAD), (BATCH, LENGTH, HEADS, HEAD)


@pytest.mark.parametrize("shape", [SHAPE, INNER])
def test_fused_attention_is_two_products_forward_and_five_backward(shape):
    inner = shape == INNER
    forward, backward = (
        (f"_flash_attention_{way}" if inner else f"_scaled_dot_product_flash_attention{end}")
        for way, end in (("forward", ""), ("backward", "_backward"))
    )
    once = 2 * BATCH * HEADS * LENGTH**2 * HEAD
    found = attention(forward, [shape] * 3, is_causal=False)
    assert (found.flops, found.keys, found.head, found.number_format) == (2 * once, LENGTH, HEAD, "bfloat16")
    assert attention(backward, [shape] * 4, is_causal=False).flops == 5 * once
    causal = attention(forward, [shape] * 3, is_causal=True)
    assert (causal.flops, causal.causal) == (2 * once * (LENGTH + 1) // (2 * LENGTH), 1)


@pytest.mark.parametrize(("dropout", "mask"), [(0.0, False), (0.1, False), (0.0, True)])
def test_attention_says_whether_it_has_a_mask_and_dropout(dropout, mask):
    one = Reference(0, 0, 0, "cuda:0", 2, "c10::BFloat16", SHAPE, (9, 9, 9, 9))
    schema = "f(Tensor query, Tensor key, Tensor value, Tensor? attn_bias, float dropout_p) -> Tensor"
    inputs = [(one,), (one,), (one,), (one,) if mask else (), ()]
    name = "_scaled_dot_product_efficient_attention"
    node = Node(1, f"aten::{name}", 0, schema, 0, 1, "", inputs, [], [[], [], [], [], dropout])
    found = work_of(node, Operation(name, Phase.FORWARD))
    assert (found.dropout, found.masked) == (int(dropout > 0), int(mask))


def test_attention_over_sequences_of_several_lengths_is_priced_by_bytes():
    found = attention("_flash_attention_forward", [(BATCH * LENGTH, HEADS, HEAD)] * 3, is_causal=True)
    assert (found.flops, found.operator_class) == (0, "other")
