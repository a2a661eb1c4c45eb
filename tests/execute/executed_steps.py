"""Training steps to execute, and a helper that runs them under a guide; imported only where PyTorch is."""

import warnings
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import g10sim
from g10sim.analysis.footprint import peak_live_bytes
from g10sim.capture.fused import attention_kernels
from g10sim.capture.options import step_options
from g10sim.capture.own import OwnStep, Steps
from g10sim.capture.source import make_torchvision_importable
from g10sim.config.presets import load_behaviour
from g10sim.execute.executor import Executor
from g10sim.execute.memory import Memory
from g10sim.execute.moving import Guide
from g10sim.execute.running import guided, values_of
from g10sim.execute.script import record_script

HOW = step_options({})
BEHAVIOUR = load_behaviour({"addresses": "own"})
SECOND = 10**9


class Convolutional(nn.Module):
    def __init__(self):
        super().__init__()
        widths = [3, 8, 16, 16]
        self.blocks = nn.Sequential(
            *(
                nn.Sequential(
                    nn.Conv2d(a, b, 3, padding=1, bias=False),
                    nn.BatchNorm2d(b),
                    nn.ReLU(inplace=True),
                    nn.MaxPool2d(2),
                )
                for a, b in pairwise(widths)
            )
        )
        self.head = nn.Linear(16, 10)

    def forward(self, images):
        return self.head(self.blocks(images).mean((2, 3)))


class Transformer(nn.Module):
    def __init__(self, dropout=0.0, is_checkpointed=False, layers=3, width=32):
        super().__init__()
        self.embed = nn.Embedding(64, width)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=dropout, batch_first=True)
            for _ in range(layers)
        )
        self.head = nn.Linear(width, 64)
        self.is_checkpointed = is_checkpointed

    def forward(self, ids):
        x = self.embed(ids)
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if self.is_checkpointed else layer(x)
        return functional.cross_entropy(self.head(x).flatten(0, 1), ids.flatten())


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.middle = nn.Embedding(128, 64), nn.Linear(64, 64)
        self.out = nn.Linear(64, 128, bias=False)
        self.out.weight = self.embed.weight

    def forward(self, ids):
        one, other = self.middle(self.embed(ids)).chunk(2, -1)
        return functional.cross_entropy(self.out(torch.cat([other, one], -1)).flatten(0, 1), ids.flatten())


def perceptron():
    parts = (part for _ in range(6) for part in (nn.Linear(64, 64), nn.GELU()))
    return nn.Sequential(*parts, nn.Linear(64, 10)), torch.randn(256, 64)


def convolutional():
    return Convolutional(), torch.randn(8, 3, 32, 32)


def transformer(**options):
    return Transformer(**options), torch.randint(0, 64, (4, 32))


def tied():
    return Tied(), torch.randint(0, 128, (8, 32))


def hugging_face(kind, **config):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        make_torchvision_importable()
        import transformers

        made = transformers.AutoConfig.for_model(kind, vocab_size=64, **config)
        made.use_cache = False
        heads = "AutoModelForMaskedLM" if kind == "bert" else "AutoModelForCausalLM"
        model = getattr(transformers, heads).from_config(made)
    ids = torch.randint(0, 64, (2, 32))
    return model, {"input_ids": ids, "labels": ids}


class Loop:
    """A model, its optimizer and a batch; a call is a training step, which keeps its loss."""

    def __init__(
        self, make, *, optimizer="AdamW", micro_batches=1, clips=False, keeps=False, looks=False, **how
    ):
        torch.manual_seed(0)
        self.model, self.batch = make()
        settings = {"momentum": 0.9} if optimizer == "SGD" else {}
        made = getattr(torch.optim, optimizer)
        self.optimizer = made(self.model.parameters(), lr=1e-3, **settings, **(how or {"foreach": True}))
        self.micro_batches, self.clips, self.keeps, self.looks = micro_batches, clips, keeps, looks
        self.losses = []

    def __call__(self):
        if self.keeps:
            self.optimizer.zero_grad()
        for _ in range(self.micro_batches):
            out = self.model(**self.batch) if isinstance(self.batch, dict) else self.model(self.batch)
            out = getattr(out, "loss", out)
            loss = (out if out.dim() == 0 else out.square().mean()) / self.micro_batches
            loss.backward()
        if self.clips:
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0, foreach=True)
        self.optimizer.step()
        if not self.keeps:
            self.optimizer.zero_grad()
        self.loss = loss.detach()
        if self.looks:
            self.losses.append(loss.item())


LOOPS = {
    "foreach": {"make": perceptron},
    "fused": {"make": perceptron, "fused": True},
    "gradients kept": {"make": perceptron, "keeps": True},
    "convolutions": {"make": convolutional, "optimizer": "SGD"},
    "transformer": {"make": transformer},
    "transformer fused": {"make": transformer, "fused": True},
    "dropout": {"make": lambda: transformer(dropout=0.1)},
    "accumulation": {"make": transformer, "micro_batches": 3, "clips": True},
    "checkpointing": {"make": lambda: transformer(is_checkpointed=True)},
    "gpt2": {"make": lambda: hugging_face("gpt2", n_layer=2, n_embd=32, n_head=2, n_positions=32)},
    "bert": {
        "make": lambda: hugging_face(
            "bert", num_hidden_layers=2, hidden_size=32, num_attention_heads=2, intermediate_size=64
        )
    },
    "llama": {
        "make": lambda: hugging_face(
            "llama",
            num_hidden_layers=2,
            hidden_size=32,
            num_attention_heads=2,
            num_key_value_heads=2,
            intermediate_size=64,
        )
    },
}


@dataclass
class Case:
    """A recorded loop, and the values of the plain one after the steps that ``executed`` runs."""

    options: dict
    script: object
    plain: dict

    @property
    def peak(self):
        return peak_live_bytes(self.script.trace)

    def budget(self, share=0.6):
        return int(share * self.peak) // 512 * 512

    def step(self):
        loop = Loop(**self.options)
        loop()
        loop()
        return loop


STEPS = 3


def recorded(options, attention="fused"):
    """Record the second step of a loop, and run the plain one."""
    with attention_kernels(attention):
        step = OwnStep(Steps(Loop(**options)), HOW)
        step.warm_up()
        script = record_script(step, HOW)
        loop = Loop(**options)
        for _ in range(STEPS + 3):
            loop()
    return Case(options, script, values(loop))


def values(loop):
    step = OwnStep(Steps(loop), HOW)
    return {name: value.clone() for name, value in values_of(step).items()} | {"loss": loop.loss.clone()}


def same(found, allowed):
    return found.keys() == allowed.keys() and all(torch.equal(found[name], allowed[name]) for name in found)


def machine(budget):
    gpu = {"memory": f"{budget} B", "page_size": "4 B", "allocation_rate": "100 TB/s"}
    return g10sim.system("a100-40g-pcie3-znand", gpu=gpu, tiers=["host"], ssd=None)


def slow(trace):
    """Return a trace with kernels so long that every copy ends before the next one starts."""
    return replace(trace, kernels=tuple(replace(kernel, duration=SECOND) for kernel in trace.kernels))


def under(case, policy, budget, trace=None):
    """Let a policy guide, told of a trace with other times."""
    return guided(policy, trace or case.script.trace, machine(budget))


def executed(case, budget, guide=None, memory=None, loop=None, step=None):
    """Run a loop's steps under a guide; returns the loop and the executor."""
    loop = loop or case.step()
    guide = guide or Guide(machine(budget))
    executor = Executor(case.script, budget, guide, memory or Memory(), loop.model.parameters())
    with executor:
        for _ in range(STEPS + 1):
            with executor.step():
                (step or loop)()
    return loop, executor


def simulated(case, policy, budget):
    """Simulate with kernels of a second: bytes in, bytes out, and what is on the GPU after each kernel."""
    result = g10sim.simulate(
        slow(case.script.trace), machine(budget), policy, iterations=3, record=("kernels",), compat=BEHAVIOUR
    )
    kernels = result.kernels
    pages = kernels[kernels.iteration == kernels.iteration.max()].gpu_pages
    return (
        result.summary["host_to_gpu_bytes"],
        result.summary["gpu_to_host_bytes"],
        [4 * page for page in pages],
    )
