"""FLOPs and bytes of operators against counts by hand, on shapes without symmetries."""

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'g10sim[capture]'")

from g10sim.capture import capture_step

pytestmark = pytest.mark.slow

N, C, H = 4, 48, 20
ROWS, WIDTH = 96, 80
F = 4


class Called(torch.nn.Module):
    """Calls a function on a product with a weight, so that a gradient flows back into it."""

    def __init__(self, function, shape):
        super().__init__()
        self.function = function
        self.weight = torch.nn.Parameter(torch.randn(shape))

    def forward(self, x):
        return self.function(self.weight * 1.0) * x


def step(function, shape):
    return lambda: (Called(function, shape), torch.randn(1))


def layer(module, *shape):
    return lambda: (module(), torch.randn(shape, requires_grad=True))


def captured(build, **options):
    return capture_step(build, optimizer="sgd", **options).kernels


def one(kernels, name):
    (found,) = [kernel for kernel in kernels if kernel.name == name]
    return found


@pytest.mark.parametrize("groups", [1, 8, C])
@pytest.mark.parametrize("kind", ["Conv2d", "ConvTranspose2d"])
def test_gradients_of_convolutions_take_as_many_flops_as_the_convolution(kind, groups):
    make = lambda: getattr(torch.nn, kind)(C, 2 * C, 3, stride=2, groups=groups, bias=False)  # noqa: E731
    kernels = captured(layer(make, N, C, H, H))
    side = ((H - 3) // 2 + 1) ** 2 * 2 * C if kind == "Conv2d" else H * H * C
    met = C if kind == "Conv2d" else 2 * C
    flops = 2 * N * side * met // groups * 9
    gradient = [f"convolution_backward_{part}" for part in ("input", "weight")]
    assert [one(kernels, name).flops for name in ("convolution", *gradient)] == [flops] * 3
    assert dict(one(kernels, gradient[1]).sizes)["groups"] == groups


IMAGE = N * C * H * H * F
TOKENS = ROWS * WIDTH * F


BATCH = layer(lambda: torch.nn.BatchNorm2d(C), N, C, H, H)


@pytest.mark.parametrize(
    ("build", "name", "passes"),
    [
        (BATCH, "native_batch_norm", (3, 5)),
        (layer(lambda: torch.nn.GroupNorm(4, C), N, C, H, H), "native_group_norm", (3, 5)),
        (layer(lambda: torch.nn.LayerNorm(WIDTH), ROWS, WIDTH), "native_layer_norm", (2, 5)),
        (layer(lambda: torch.nn.RMSNorm(WIDTH), ROWS, WIDTH), "rms_norm", (2, 5)),
        (layer(torch.nn.GELU, ROWS, WIDTH), "gelu", (2, 3)),
    ],
)
def test_passes_over_what_operators_normalize(build, name, passes):
    inputs = build()[1]
    size = inputs.numel() * F
    kernels = captured(_through_weight(build))
    for operator, times in zip((name, f"{name}_backward"), passes, strict=True):
        assert one(kernels, operator).moved_bytes == pytest.approx(times * size, rel=0.06)


def _through_weight(build):
    class Scaled(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.module, example = build()
            self.scale = torch.nn.Parameter(torch.randn(example.shape[-1]))

        def forward(self, x):
            return self.module(x * self.scale) * 2.0

    return lambda: (Scaled(), build()[1].detach())


def test_batch_normalization_in_evaluation_passes_twice():
    kernels = capture_step(BATCH, inference=True).kernels
    assert one(kernels, "native_batch_norm").moved_bytes == pytest.approx(2 * IMAGE, rel=0.01)


def test_gradients_of_losses_and_pooling_read_no_tensor_for_its_shape():
    targets = torch.zeros(ROWS, dtype=torch.int64)
    build = step(lambda x: torch.nn.functional.nll_loss(x, targets.clone()), (ROWS, WIDTH))
    found = one(captured(build), "nll_loss_backward")
    assert found.moved_bytes == pytest.approx(TOKENS + ROWS * 8, rel=0.01)
    build = step(lambda x: torch.nn.functional.max_pool2d(x, 2), (N, C, H, H))
    found = one(captured(build), "max_pool2d_with_indices_backward")
    assert found.moved_bytes == IMAGE + IMAGE // 4 + IMAGE // 2  # all, gradients, indices of 8 bytes


@pytest.mark.parametrize(
    ("look_up", "name", "rows"),
    [
        (lambda x: x.index_select(0, torch.zeros(5, dtype=torch.int64)), "index_add", 5),
        (lambda x: x.gather(0, torch.zeros((5, WIDTH), dtype=torch.int64)), "scatter_add", 5),
        (lambda x: x[torch.zeros(5, dtype=torch.int64)], "index_put", 5),
        (lambda x: x.topk(5, 0)[0], "scatter", 5),
        (lambda x: x.max(0)[0], "scatter", 1),
    ],
)
def test_gradients_of_look_ups_change_the_rows_they_are_given(look_up, name, rows):
    kernels = captured(step(look_up, (ROWS, WIDTH)))
    given = rows * WIDTH * F
    assert one(kernels, name).moved_bytes <= 5 * given < TOKENS  # read, changed, added, indices of 8 bytes
    zeros = one(kernels, "new_zeros")
    assert zeros.moved_bytes == TOKENS
    assert zeros.outputs == one(kernels, name).outputs


ROWS_PUT = 5


@pytest.mark.parametrize(
    ("put", "name", "passes"),
    [
        (lambda x, at, new: x.index_put_((at,), new), "index_put_", 2),
        (lambda x, at, new: x.index_put_((at,), new, accumulate=True), "index_put_", 3),
        (lambda x, at, new: x.index_copy_(0, at, new), "index_copy_", 2),
        (lambda x, at, new: x.index_add_(0, at, new), "index_add_", 3),
        (lambda x, at, new: x.scatter_(0, at.view(-1, 1).expand_as(new), new), "scatter_", 2),
        (lambda x, at, new: x.scatter_(0, at.view(-1, 1).expand_as(new), new, reduce="add"), "scatter_", 3),
        (lambda x, at, new: x.scatter_add_(0, at.view(-1, 1).expand_as(new), new), "scatter_add_", 3),
    ],
)
def test_a_scatter_reads_the_rows_it_changes_only_to_add_to_them(put, name, passes):
    class Put(torch.nn.Module):
        def forward(self, x):
            y = x * 2
            put(y, torch.arange(ROWS_PUT), x[:ROWS_PUT] * 3)
            return y * 2

    kernels = capture_step(lambda: (Put(), torch.randn(ROWS, WIDTH)), inference=True).kernels
    found = one(kernels, name)
    indices = ROWS_PUT * 8
    assert found.moved_bytes == passes * ROWS_PUT * WIDTH * F + indices
    assert kernels[0].outputs[0] in found.inputs  # the other rows stay as they are


@pytest.mark.parametrize(("kind", "gates"), [("LSTM", 4), ("GRU", 3), ("RNN", 1)])
def test_recurrent_layers_are_one_call_each_way(kind, gates):
    class Layers(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = getattr(torch.nn, kind)(WIDTH, 2 * WIDTH, num_layers=2, bias=False)

        def forward(self, x):
            return self.layers(x)[0]

    kernels = captured(lambda: (Layers(), torch.randn(7, N, WIDTH)))
    weights = gates * 2 * WIDTH * (WIDTH + 3 * 2 * WIDTH)
    forward, backward = one(kernels, "recurrent"), one(kernels, "recurrent_backward")
    assert (forward.flops, backward.flops) == (2 * 7 * N * weights, 2 * 2 * 7 * N * weights)
    assert dict(forward.sizes)["steps"] == 2 * 7
    again = 6 * 2 * gates * (2 * WIDTH) ** 2 * F  # of each layer the weights of states, at each later step
    assert forward.moved_bytes > again + weights * F


@pytest.mark.parametrize("kind", ["LSTMCell", "GRUCell"])
def test_cells_are_one_kernel_beside_their_products(kind):
    class Cell(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.cell = getattr(torch.nn, kind)(16, 24)

        def forward(self, x):
            found = self.cell(x)
            return found[0] if isinstance(found, tuple) else found

    names = [kernel.name for kernel in captured(lambda: (Cell(), torch.randn(N, 16)))]
    assert sum("fused" in name and "cell" in name for name in names) == 2
    assert names.count("mm") == 4


def test_sorting_passes_once_for_each_8_bits_of_a_key():
    kernels = captured(step(lambda x: x.sort()[0], (ROWS, WIDTH)))
    once = ROWS * WIDTH * (F + 8)
    assert one(kernels, "sort").moved_bytes == pytest.approx(4 * 2 * once, rel=0.2)


def test_channels_last_is_told_and_kept():
    def first(**options):
        build = layer(lambda: torch.nn.Conv2d(C, C, 3), N, C, H, H)
        return dict(one(capture_step(build, inference=True, **options).kernels, "convolution").sizes)

    assert first()["channels_first"] == 1
    assert "channels_first" not in first(channels_last=True)


def test_products_of_float32_are_rounded_to_tf32_if_asked_to():
    build = lambda: (torch.nn.Linear(16, 24), torch.randn(N, 16))  # noqa: E731
    formats = [
        one(capture_step(build, inference=True, **options).kernels, "addmm").number_format
        for options in ({}, {"tf32": True})
    ]
    assert formats == ["float32", "tf32"]


def test_a_captured_and_a_retimed_trace_agree_exactly():
    from g10sim.analysis.gpus import load_gpu, retimed

    build = layer(lambda: torch.nn.Sequential(torch.nn.Conv2d(C, C, 3), torch.nn.ReLU()), N, C, H, H)
    first, second = (capture_step(build, gpu=name, autocast="float16") for name in ("a100-40g", "h100"))
    assert retimed(first, load_gpu("h100")) == second
    assert retimed(second, load_gpu("a100-40g")) == first


def sizes(function, *tensors, name, dtype="float32"):
    class Called(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.held = torch.nn.ParameterList(torch.nn.Parameter(torch.randn(shape)) for shape in tensors)

        def forward(self, x):
            return function(*self.held)

    kernels = capture_step(lambda: (Called(), torch.randn(1)), inference=True, dtype=dtype).kernels
    found = dict(one(kernels, name).sizes)
    return {size: value for size, value in found.items() if size not in ("weight_bytes", "products", "views")}


SQUARE = (ROWS, ROWS)


@pytest.mark.parametrize(
    ("function", "name", "elements"),
    [
        (lambda x, y: x + y, "add", 0),
        (lambda x, y: x + 2.0, "add", 0),
        (lambda x, y: x + y[0], "add", ROWS**2),  # one row for all
        (lambda x, y: x + y.t(), "add", ROWS**2),
        (lambda x, y: x[:, ::2] * y[:, ::2], "mul", ROWS**2 // 2),
        (lambda x, y: x.t() * y.t(), "mul", 0),  # both lie alike
        (lambda x, y: x.t().contiguous(), "clone", ROWS**2),
        (lambda x, y: x.to(torch.bfloat16), "_to_copy", 0),  # has a kernel that narrows
        (lambda x, y: x.to(torch.float64), "_to_copy", ROWS**2),
        (lambda x, y: torch.cat([x, y]), "cat", 0),
        (lambda x, y: torch.cat([x[:, ::2], y[:, ::2]]), "cat", ROWS**2),
        (lambda x, y: torch.stack([x, y], -1), "stack", 2 * ROWS**2),
        (lambda x, y: torch.roll(x, 1), "roll", ROWS**2),
        (lambda x, y: torch.where(x > y, x, y), "where", 0),
        (lambda x, y: torch.dropout(x, 0.5, True), "native_dropout", 0),
    ],
)
def test_elements_are_handled_one_by_one_where_operands_do_not_lie_alike(function, name, elements):
    assert sizes(function, SQUARE, SQUARE, name=name).get("unvectorized", 0) == elements


@pytest.mark.parametrize(
    ("columns", "dtype", "alignment"),
    [
        (25, "bfloat16", 2),
        (26, "bfloat16", 4),
        (28, "bfloat16", 8),
        (32, "bfloat16", 0),
        (25, "float32", 4),
        (28, "float32", 0),
    ],
)
def test_rows_of_products_are_aligned_as_their_columns_say(columns, dtype, alignment):
    product = lambda x, y: x @ y.t()  # noqa: E731
    found = sizes(product, (64, 32), (columns, 32), name="mm", dtype=dtype)
    assert found.get("alignment", 0) == alignment
    batched = sizes(product_of_batches, (4, 64, 32), (4, columns, 32), name="bmm", dtype=dtype)
    assert batched.get("alignment", 0) == alignment


def product_of_batches(x, y):
    return x @ y.transpose(1, 2)


def test_sums_and_normalizations_tell_what_each_works_through_by_itself():
    shape = (N, C, H, H)
    assert sizes(lambda x: x.sum((0, 2, 3)), shape, name="sum") == {}  # positions lie together
    assert sizes(lambda x: x.sum(0), (ROWS, WIDTH), name="sum") == {"channels": WIDTH}
    assert sizes(lambda x: x.mean(-1), (ROWS, WIDTH), name="mean") == {}
    normalized = lambda x: torch.nn.functional.layer_norm(x, (WIDTH,))  # noqa: E731
    assert sizes(normalized, (ROWS, WIDTH), name="native_layer_norm") == {"channels": WIDTH}
    batch = lambda x, y: torch.nn.functional.batch_norm(x, None, None, training=True)  # noqa: E731
    assert sizes(batch, shape, (1,), name="native_batch_norm") == {"channels": C, "channels_first": 1}


@pytest.mark.parametrize("way", ["causal", "masked", "dropout"])
def test_attention_tells_its_mask_and_its_dropout(way):
    given = {"causal": {"is_causal": True}, "dropout": {"dropout_p": 0.1}}

    def attend(x, mask):
        options = given.get(way, {"attn_mask": mask.detach()})
        return torch.nn.functional.scaled_dot_product_attention(x, x, x, **options)

    found = sizes(attend, (2, 2, 64, 32), (64, 64), name="attention", dtype="bfloat16")
    assert found == {"keys": 64, "head": 32, way: 1}
