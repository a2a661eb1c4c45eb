"""Training steps as people write them; imported only where PyTorch is installed."""

import copy

import torch
from capture_models import Perceptron, language
from torch.nn import functional

MICRO_BATCHES = 4


def accumulating(batch_size=64, width=512):
    """Four micro-batches, loss scaling, clipping, an optimizer that is not the default, an average."""
    model = torch.nn.Sequential(
        torch.nn.Linear(width, width),
        torch.nn.GELU(),
        torch.nn.Linear(width, width),
        torch.nn.LayerNorm(width),
    )
    average = copy.deepcopy(model).requires_grad_(False)
    optimizer = torch.optim.RMSprop(model.parameters(), momentum=0.9)
    scaler = torch.amp.GradScaler("cuda")
    batches = [torch.randn(batch_size, width) for _ in range(MICRO_BATCHES)]

    def step():
        for batch in batches:
            with torch.autocast("cuda", dtype=torch.float16):
                loss = functional.mse_loss(model(batch), batch) / MICRO_BATCHES
            scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        with torch.no_grad():
            for mean, weight in zip(average.parameters(), model.parameters(), strict=True):
                mean.lerp_(weight, 0.01)

    return step


def plain_accumulation(batch_size=16, zeroed=False, before=lambda: None, watch=lambda loss: None):
    """Four micro-batches in full precision; with ``zeroed`` gradients are there from step to step.

    ``before`` is called before each micro-batch, ``watch`` with its loss.
    """
    model, _ = language()
    optimizer = torch.optim.AdamW(model.parameters())
    batches = [torch.zeros(batch_size, 64, dtype=torch.int64) for _ in range(MICRO_BATCHES)]

    def step():
        for batch in batches:
            before()
            loss = model(batch) / MICRO_BATCHES
            watch(loss)
            loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=not zeroed)

    step.model, step.optimizer, step.batches = model, optimizer, batches
    return step


def adversarial(batch_size=32):
    """Two networks that are trained in turn, as a generator of steps."""
    generator, judge = Perceptron(), torch.nn.Linear(32, 1)
    noise, real = torch.randn(batch_size, 64), torch.randn(batch_size, 32)
    of_generator = torch.optim.Adam(generator.parameters())
    of_judge = torch.optim.SGD(judge.parameters(), lr=0.1)
    while True:
        made = generator(noise)
        loss = functional.softplus(judge(made.detach())).mean() + functional.softplus(-judge(real)).mean()
        loss.backward()
        of_judge.step()
        of_judge.zero_grad()
        functional.softplus(-judge(made)).mean().backward()
        of_generator.step()
        of_generator.zero_grad()
        of_judge.zero_grad()
        yield


def by_hand(batch_size=16):
    """Gradient descent without an optimizer."""
    weight = torch.nn.Parameter(torch.randn(64, 64))
    inputs = torch.randn(batch_size, 64)

    def step():
        loss = (inputs @ weight).square().sum()
        (gradient,) = torch.autograd.grad(loss, [weight])
        with torch.no_grad():
            weight.sub_(gradient, alpha=0.1)

    return step


def with_a_closure():
    """An optimizer that asks for the loss itself."""
    model, inputs = Perceptron(), torch.randn(8, 64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def loss():
        optimizer.zero_grad()
        found = model(inputs).sum()
        found.backward()
        return found

    return lambda: optimizer.step(loss)


def trained_with(name):
    """One step of Perceptron, without biases where the optimizer takes matrices only."""

    def build():
        model, inputs = Perceptron(), torch.randn(8, 64)
        weights = [weight for weight in model.parameters() if name != "Muon" or weight.dim() == 2]
        optimizer = getattr(torch.optim, name)(weights)

        def step():
            model(inputs).sum().backward()
            optimizer.step()
            model.zero_grad()

        return step

    return build


def once():
    """A generator that has one step only."""
    Perceptron()(torch.randn(2, 64)).sum().backward()
    yield


def looking():
    """A step that asks for the value of its loss."""
    model = Perceptron()

    def step():
        loss = model(torch.randn(2, 64)).sum()
        assert loss.item()  # the line that a refusal names

    return step


def asking_a_router(experts=4, waits=True):
    """A step that reads a value that a router gives on the host, one kernel after it was made."""

    class Router(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.scores = torch.nn.Linear(16, experts)

        def forward(self, x):
            return self.scores(x).topk(1).indices

    router, batch = Router(), torch.randn(8, 16)
    while True:
        with torch.no_grad():
            highest = router(batch).max()
            doubled = batch.mul(2)
            if waits:
                assert 0 <= highest.item() < experts
            del highest
            doubled.add_(1)
        yield


def dropping_late(width=64):
    """Gradients are there until the next step begins, and so is the loss."""
    model = torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.Linear(width, 8))
    optimizer = torch.optim.SGD(model.parameters())
    batch = torch.randn(4, width)
    while True:
        optimizer.zero_grad()
        loss = model(batch).sum()
        loss.backward()
        optimizer.step()
        yield


def branching():
    model = torch.nn.Linear(8, 8)

    def step():
        loss = model(torch.randn(4, 8)).sum()
        if loss > 3:
            loss = loss * 2
        loss.backward()

    return step


def of_many_lengths():
    model = torch.nn.Linear(8, 8)
    while True:
        for length in (16, 32):
            model(torch.randn(4, length, 8)).sum().backward()
            yield


def compiled():
    return torch.compile(torch.nn.Linear(8, 8)), torch.randn(4, 8)


def plain():
    return torch.nn.Linear(8, 8), torch.randn(4, 8)


def of_a_compiled_function():
    weight, batch = torch.nn.Parameter(torch.randn(8, 8)), torch.randn(4, 8)

    @torch.compile
    def fused(batch, weight):
        return torch.relu(batch @ weight).sum()

    while True:
        fused(batch, weight).backward()
        weight.grad = None
        yield


class DeepSpeedEngine(torch.nn.Module):
    """Has the name of the real one."""

    def __init__(self):
        super().__init__()
        self.module = torch.nn.Linear(8, 8)

    def forward(self, batch):
        return self.module(batch)


DeepSpeedEngine.__module__ = "deepspeed.runtime.engine"


def engine():
    return DeepSpeedEngine(), torch.randn(4, 8)


def of_an_engine():
    wrapped = DeepSpeedEngine()

    def step():
        wrapped(torch.randn(4, 8)).sum().backward()

    return step


def sharded():
    from torch.distributed.fsdp import FullyShardedDataParallel

    return FullyShardedDataParallel(torch.nn.Linear(8, 8)), torch.randn(4, 8)
