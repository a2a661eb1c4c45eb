"""The work that published kernels do, told from their names, sizes and shapes."""

import pytest

from g10sim.errors import TraceError
from tools.published_kernels import measured_trace, published_traces

SIZES = {  # bytes of float32 tensors; the second item says whether it is a weight
    "filter": (4 * 3 * 5 * 3 * 3, 1),
    "map": (4 * 2 * 5 * 8 * 8, 0),
    "scale": (4096, 1),
    "normal": (4 * 2 * 5 * 8 * 8, 0),
    "rows": (4 * 32 * 48, 0),
    "weight": (4 * 48 * 16, 1),
    "columns": (4 * 32 * 16, 0),
    "loss": (4 * 32 * 16, 0),
    "filter gradient": (4 * 3 * 5 * 3 * 3, 0),
    "image": (4 * 2 * 3 * 8 * 8, 0),
}
NAMES = list(SIZES)
KERNELS = [
    ("LoadData_A0", "Conv2d", None, [], ["image"]),
    ("Conv2d_Forward", "Conv2d", "(2,3,8,8)", ["filter", "image"], ["map"]),
    ("BatchNorm2d_Forward", "BatchNorm2d", "(2,5,8,8)", ["scale", "map"], ["normal"]),
    ("Linear_Forward", "Linear", None, ["weight", "rows"], ["columns"]),
    ("Linear_Backward_Input", "Linear", None, ["loss", "weight"], ["rows"]),
    ("Conv2d_Backward_Weight", "Conv2d", "(2,3,8,8)", ["image", "map"], ["filter gradient"]),
]


def tensor_line(name):
    size, is_weight = SIZES[name]
    return (
        f"tensor{NAMES.index(name)} Is weight (global)?: {is_weight}, Size in byte: {size}, Range:0--{size}"
    )


def kernel_lines(number, name, kind, shape, inputs, outputs):
    yield f"Kernel ID: {number}, Name: {name}"
    yield f"Parent Layer ID:{['Conv2d', 'BatchNorm2d', 'Linear'].index(kind)}; Name:{kind}"
    yield f"Execution Time: {1200 * (number + 1)}"
    if shape:
        yield shape
    yield "Input Tensors:"
    yield from map(tensor_line, inputs)
    yield "Output Tensors:"
    yield from map(tensor_line, outputs)
    yield "_" * 68


@pytest.fixture
def directory(tmp_path):
    place = tmp_path / "traces" / "Net" / "2"
    place.mkdir(parents=True)
    (place / "tensors.config").write_text("".join(f"{tensor_line(name)}\n" for name in NAMES))
    lines = [line for number, kernel in enumerate(KERNELS) for line in kernel_lines(number, *kernel)]
    (place / "kernels.config").write_text("".join(f"{line}\n" for line in lines))
    return place


@pytest.fixture
def kernels(directory):
    return {kernel.cost.operator: kernel for kernel in measured_trace(directory).kernels}


def test_flops_of_convolutions_follow_from_shapes(kernels):
    flops = 2 * (2 * 5 * 8 * 8) * (3 * 3 * 3)
    forward, gradient = kernels["convolution"].cost, kernels["convolution_backward_weight"].cost
    assert (forward.flops, forward.products) == (flops, 27)
    assert (gradient.flops, gradient.products) == (flops, 2 * 8 * 8)
    assert forward.moved_bytes == sum(SIZES[name][0] for name in ("filter", "image", "map"))


def test_flops_of_linear_layers_follow_from_sizes(kernels):
    forward, gradient = kernels["addmm"].cost, kernels["mm"].cost
    assert forward.flops == gradient.flops == 2 * 32 * 48 * 16
    assert gradient.weight_bytes == SIZES["weight"][0]


def test_a_normalization_reads_and_writes_its_activations(kernels):
    assert kernels["native_batch_norm"].cost.moved_bytes == 2 * SIZES["map"][0]


def test_times_are_in_seconds(kernels):
    assert kernels["convolution"].seconds == 2 * 1200 / 1.2e9


def test_loading_data_is_no_operator(kernels):
    assert len(kernels) == len(KERNELS) - 1


def test_a_directory_without_traces_is_refused(tmp_path):
    with pytest.raises(TraceError, match=r"found no traces/MODEL/BATCH/kernels\.config"):
        published_traces(tmp_path)


def test_traces_are_in_the_order_of_their_batch_sizes(directory):
    other = directory.with_name("16")
    other.mkdir()
    (other / "kernels.config").write_bytes((directory / "kernels.config").read_bytes())
    reference = directory.parents[2]
    assert [path.name for path in published_traces(reference)] == ["2", "16"]
