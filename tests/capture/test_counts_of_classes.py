"""FLOPs and bytes of operators of every class against counts by hand, on shapes without symmetries."""

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'g10sim[capture]'")

from torch.nn import functional

from g10sim.capture import capture_step

pytestmark = pytest.mark.slow

ROWS, WIDTH, OUT, BATCH = 96, 80, 112, 5
N, C, H, W = 3, 8, 12, 10
F, INDEX, SECTOR = 4, 8, 32
LOOKED_UP = 7

TOKENS = ROWS * WIDTH
IMAGE = N * C * H * W
HEADS, LENGTH, HEAD = 4, 96, 16
QUERY = N * HEADS * LENGTH * HEAD


def some(*shape):
    return torch.randn(shape)


def places(count):
    return torch.zeros(count, dtype=torch.int64)


def mask():
    return torch.zeros((ROWS, WIDTH), dtype=torch.bool)


def attention(x):
    shape = N, HEADS, LENGTH, HEAD
    return functional.scaled_dot_product_attention(x.view(shape), some(*shape), some(*shape))


def copied(x):
    return torch.empty_like(x).copy_(x)


# Shape of x, what is computed, the operator, its FLOPs, elements of 4 bytes and other bytes that it moves.
FORWARD = [
    (
        (ROWS, WIDTH),
        lambda x: x @ some(WIDTH, OUT),
        "mm",
        2 * TOKENS * OUT,
        TOKENS + WIDTH * OUT + ROWS * OUT,
        0,
    ),
    (
        (ROWS, WIDTH),
        lambda x: torch.addmm(some(OUT), x, some(WIDTH, OUT)),
        "addmm",
        2 * TOKENS * OUT,
        TOKENS + WIDTH * OUT + ROWS * OUT + OUT,
        0,
    ),
    (
        (ROWS, WIDTH),
        lambda x: some(ROWS, OUT).addmm_(x, some(WIDTH, OUT)),
        "addmm_",
        2 * TOKENS * OUT,
        TOKENS + WIDTH * OUT + 2 * ROWS * OUT,
        0,
    ),
    ((ROWS, WIDTH), lambda x: x @ some(WIDTH), "mv", 2 * TOKENS, TOKENS + WIDTH + ROWS, 0),
    (
        (ROWS, WIDTH),
        lambda x: torch.addmv(some(ROWS), x, some(WIDTH)),
        "addmv",
        2 * TOKENS,
        TOKENS + WIDTH + 2 * ROWS,
        0,
    ),
    ((WIDTH,), lambda x: torch.dot(x, some(WIDTH)), "dot", 2 * WIDTH, 2 * WIDTH + 1, 0),
    (
        (BATCH, ROWS, WIDTH),
        lambda x: torch.bmm(x, some(BATCH, WIDTH, OUT)),
        "bmm",
        2 * BATCH * TOKENS * OUT,
        BATCH * (TOKENS + WIDTH * OUT + ROWS * OUT),
        0,
    ),
    (
        (BATCH, ROWS, WIDTH),
        lambda x: torch.baddbmm(some(BATCH, ROWS, OUT), x, some(BATCH, WIDTH, OUT)),
        "baddbmm",
        2 * BATCH * TOKENS * OUT,
        BATCH * (TOKENS + WIDTH * OUT + 2 * ROWS * OUT),
        0,
    ),
    (
        (BATCH, ROWS, WIDTH),
        lambda x: torch.addbmm(some(ROWS, OUT), x, some(BATCH, WIDTH, OUT)),
        "addbmm",
        2 * BATCH * TOKENS * OUT,
        BATCH * (TOKENS + WIDTH * OUT) + 2 * ROWS * OUT,
        0,
    ),
    (
        (N, C, W),
        lambda x: functional.conv1d(x, some(2 * C, C, 3), dilation=2),
        "convolution",
        2 * N * 2 * C * (W - 4) * C * 3,
        N * C * W + 2 * C * C * 3 + N * 2 * C * (W - 4),
        0,
    ),
    (
        (N, C, 4, H, W),
        lambda x: functional.conv3d(x, some(2 * C, C, 1, 3, 3), some(2 * C)),
        "convolution",
        2 * N * 2 * C * 4 * (H - 2) * (W - 2) * C * 9,
        4 * IMAGE + 2 * C * C * 9 + 2 * C + N * 2 * C * 4 * (H - 2) * (W - 2),
        0,
    ),
    ((QUERY,), attention, "attention", 2 * 2 * QUERY * LENGTH, 4 * QUERY + QUERY // HEAD, 0),
    ((ROWS, WIDTH), lambda x: x + some(ROWS, WIDTH), "add", 0, 3 * TOKENS, 0),
    ((ROWS, WIDTH), lambda x: x + some(WIDTH), "add", 0, 2 * TOKENS + WIDTH, 0),
    ((ROWS, WIDTH), lambda x: x * 2, "mul", 0, 2 * TOKENS, 0),
    ((ROWS, WIDTH), lambda x: copied(x).relu_(), "relu_", 0, 2 * TOKENS, 0),
    ((ROWS, WIDTH), lambda x: x > 0, "gt", 0, TOKENS, TOKENS),
    ((ROWS, WIDTH), lambda x: torch.where(mask(), x, some(ROWS, WIDTH)), "where", 0, 3 * TOKENS, TOKENS),
    ((ROWS, WIDTH), lambda x: x.masked_fill(mask(), 0.0), "masked_fill", 0, 2 * TOKENS, TOKENS),
    ((ROWS, WIDTH), lambda x: functional.dropout(x, 0.1), "native_dropout", 0, 2 * TOKENS, TOKENS),
    ((ROWS, WIDTH), lambda x: functional.glu(x), "glu", 0, TOKENS + TOKENS // 2, 0),
    ((ROWS, WIDTH), lambda x: torch.rand_like(x), "rand_like", 0, TOKENS, 0),
    (
        (N, C, H, W),
        lambda x: functional.interpolate(x, scale_factor=2),
        "upsample_nearest2d",
        0,
        5 * IMAGE,
        0,
    ),
    (
        (N, C, H, W),
        lambda x: functional.interpolate(x, scale_factor=2, mode="bilinear"),
        "upsample_bilinear2d",
        0,
        5 * IMAGE,
        0,
    ),
    ((ROWS, WIDTH), lambda x: x.sum(), "sum", 0, TOKENS + 1, 0),
    ((ROWS, WIDTH), lambda x: x.mean(0), "mean", 0, TOKENS + WIDTH, 0),
    ((ROWS, WIDTH), lambda x: x.amax(1), "amax", 0, TOKENS + ROWS, 0),
    ((ROWS, WIDTH), lambda x: x.argmax(1), "argmax", 0, TOKENS, ROWS * INDEX),
    ((ROWS, WIDTH), lambda x: x.cumsum(1), "cumsum", 0, 2 * TOKENS, 0),
    ((ROWS, WIDTH), lambda x: x.norm(), "linalg_vector_norm", 0, TOKENS + 1, 0),
    ((ROWS, WIDTH), lambda x: torch.var_mean(x, 1)[0], "var_mean", 0, TOKENS + 2 * ROWS, 0),
    ((ROWS, WIDTH), lambda x: functional.mse_loss(x, some(ROWS, WIDTH)), "mse_loss", 0, 2 * TOKENS + 1, 0),
    (
        (N, C, H, W),
        lambda x: functional.max_pool2d(x, 2),
        "max_pool2d_with_indices",
        0,
        IMAGE + IMAGE // 4,
        IMAGE // 4 * INDEX,
    ),
    ((N, C, H, W), lambda x: functional.avg_pool2d(x, 2), "avg_pool2d", 0, IMAGE + IMAGE // 4, 0),
    ((N, C, H, W), lambda x: functional.adaptive_avg_pool2d(x, 1), "mean", 0, IMAGE + N * C, 0),
    ((ROWS, WIDTH), lambda x: x.softmax(1), "_softmax", 0, 2 * TOKENS, 0),
    ((ROWS, WIDTH), lambda x: x.log_softmax(1), "_log_softmax", 0, 2 * TOKENS, 0),
    (
        (ROWS, WIDTH),
        lambda x: functional.nll_loss(x, places(ROWS)),
        "nll_loss_forward",
        0,
        2,  # the mean, and the weight of all rows
        ROWS * (SECTOR + INDEX),
    ),
    (
        (ROWS, WIDTH),
        lambda x: functional.embedding(places(LOOKED_UP), x),
        "embedding",
        0,
        2 * LOOKED_UP * WIDTH,
        LOOKED_UP * INDEX,
    ),
    ((ROWS, WIDTH), lambda x: x[places(LOOKED_UP)], "index", 0, 2 * LOOKED_UP * WIDTH, LOOKED_UP * INDEX),
    (
        (ROWS, WIDTH),
        lambda x: copied(x).index_add_(0, places(LOOKED_UP), some(LOOKED_UP, WIDTH)),
        "index_add_",
        0,
        3 * LOOKED_UP * WIDTH,
        LOOKED_UP * INDEX,
    ),
    ((ROWS, WIDTH), lambda x: x.clone(), "clone", 0, 2 * TOKENS, 0),
    ((ROWS, WIDTH), lambda x: x.t().contiguous(), "clone", 0, 2 * TOKENS, 0),
    ((ROWS, WIDTH), lambda x: x.half(), "_to_copy", 0, TOKENS, 2 * TOKENS),
    ((ROWS, WIDTH), copied, "copy_", 0, 2 * TOKENS, 0),
    ((ROWS, WIDTH), lambda x: torch.cat([x, some(ROWS, WIDTH)]), "cat", 0, 4 * TOKENS, 0),
    ((ROWS, WIDTH), lambda x: torch.zeros_like(x), "zeros_like", 0, TOKENS, 0),
    ((ROWS, WIDTH), lambda x: functional.pad(x, (1, 1)), "constant_pad_nd", 0, 2 * TOKENS + 2 * ROWS, 0),
    ((ROWS, WIDTH), lambda x: x.tril(), "tril", 0, 2 * TOKENS, 0),
    ((ROWS, WIDTH), lambda x: x.repeat(3, 1), "repeat", 0, 4 * TOKENS, 0),
]


class Called(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


def found(kernels, name):
    last = [
        kernel
        for kernel in kernels
        if kernel.name == name or (name.startswith("attention") and name in kernel.name)
    ]
    assert last, [kernel.name for kernel in kernels]
    return last[-1]


# Where x has a gradient: what flows back, and elements and other bytes that its operator moves.
BACKWARD = [
    ((ROWS, WIDTH), lambda x: functional.gelu(x), "gelu_backward", 0, 3 * TOKENS, 0),
    ((ROWS, WIDTH), lambda x: functional.relu(x), "threshold_backward", 0, 3 * TOKENS, 0),
    ((ROWS, WIDTH), lambda x: x.softmax(1), "_softmax_backward_data", 0, 3 * TOKENS, 0),
    ((ROWS, WIDTH), lambda x: x.log_softmax(1), "_log_softmax_backward_data", 0, 3 * TOKENS, 0),
    ((ROWS, WIDTH), lambda x: functional.dropout(x, 0.1), "native_dropout_backward", 0, 2 * TOKENS, TOKENS),
    ((N, C, H, W), lambda x: functional.avg_pool2d(x, 2), "avg_pool2d_backward", 0, IMAGE + IMAGE // 4, 0),
    (
        (ROWS, WIDTH),
        lambda x: functional.embedding(places(LOOKED_UP), x),
        "embedding_dense_backward",
        0,
        TOKENS + LOOKED_UP * WIDTH,
        LOOKED_UP * INDEX,
    ),
    ((QUERY,), attention, "attention_backward", 5 * 2 * QUERY * LENGTH, 8 * QUERY + QUERY // HEAD, 0),
    (
        (ROWS, WIDTH),
        lambda x: x @ some(WIDTH, OUT),
        "mm",
        2 * TOKENS * OUT,
        TOKENS + WIDTH * OUT + ROWS * OUT,
        0,
    ),
]


@pytest.mark.parametrize(
    ("shape", "function", "name", "flops", "elements", "others"),
    FORWARD,
    ids=[f"{number}-{row[2]}" for number, row in enumerate(FORWARD)],
)
def test_work_of_an_operator(shape, function, name, flops, elements, others):
    kernel = found(capture_step(lambda: (Called(function), some(*shape)), inference=True).kernels, name)
    assert (kernel.flops, kernel.moved_bytes) == (flops, F * elements + others)


class Weighted(torch.nn.Module):
    def __init__(self, function, shape):
        super().__init__()
        self.function, self.weight = function, torch.nn.Parameter(some(*shape))

    def forward(self, x):
        return self.function(self.weight * 1.0) * x


@pytest.mark.parametrize(
    ("shape", "function", "name", "flops", "elements", "others"),
    BACKWARD,
    ids=[f"{number}-{row[2]}" for number, row in enumerate(BACKWARD)],
)
def test_work_of_a_gradient(shape, function, name, flops, elements, others):
    kernels = capture_step(lambda: (Weighted(function, shape), some(1)), optimizer="sgd").kernels
    kernel = found(kernels, name)
    assert (kernel.flops, kernel.moved_bytes) == (flops, F * elements + others)


# Elements that an update of one weight moves for each parameter: read, and written.
@pytest.mark.parametrize(
    ("optimizer", "name", "passes"),
    [("adamw", "_fused_adamw_", 4 + 3), ("adam", "_fused_adam_", 4 + 3), ("sgd", "_fused_sgd_", 2 + 1)],
)
def test_work_of_an_update(optimizer, name, passes):
    kernels = capture_step(
        lambda: (Weighted(torch.relu, (ROWS, WIDTH)), some(1)), optimizer=optimizer, optimizer_form="fused"
    ).kernels
    step_count = 0 if optimizer == "sgd" else F
    assert found(kernels, name).moved_bytes == F * passes * TOKENS + step_count
