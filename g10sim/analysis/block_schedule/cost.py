"""FlexGen's cost model: seconds that a layer takes in closed form (Sheng et al., ICML 2023, appendix A.2)."""

from __future__ import annotations

from dataclasses import dataclass
from math import log2

_GIB = 2**30


@dataclass(frozen=True)
class Block:
    """Prompts that are decoded together: ``batches`` of ``gpu_batch``.

    Each has ``prompt`` tokens and gets ``output`` new ones. The model has ``layers`` of width ``hidden`` with
    an MLP four times as wide, in 16 bits.
    """

    layers: int
    hidden: int
    prompt: int
    output: int
    gpu_batch: int
    batches: int

    @property
    def size(self) -> int:
        """Prompts of the block."""
        return self.gpu_batch * self.batches

    @property
    def weight_bytes(self) -> int:
        """Bytes of a layer's weights."""
        return 2 * 12 * self.hidden**2

    @property
    def cache_bytes(self) -> int:
        """Bytes of one token's keys and values in a layer, of the whole block."""
        return 4 * self.hidden * self.size

    @property
    def hidden_bytes(self) -> int:
        """Bytes of one token's hidden state, of the whole block."""
        return 2 * self.hidden * self.size

    @property
    def mean_context(self) -> float:
        """Tokens that attention reads, on average over the new ones."""
        return self.prompt + self.output / 2


@dataclass(frozen=True)
class Shares:
    """Shares of one kind of data on the GPU and in host memory; the rest lies on the drive."""

    gpu: float
    host: float

    @property
    def drive(self) -> float:
        """Share on the drive."""
        return 1 - self.gpu - self.host


@dataclass(frozen=True)
class Placement:
    """Shares of weights, of keys and values, and of hidden states."""

    weights: Shares
    cache: Shares
    hidden: Shares


@dataclass(frozen=True)
class Rates:
    """Rates of a machine: bytes/second between memories, operations/second of matrix products.

    The defaults are those of the authors' program for a T4 with a cloud drive. ``projection`` and
    ``attention`` are rates of the GPU; those with ``prompt`` are for all tokens of a prompt at once.
    ``cpu_attention`` is the CPU's, for batches of 64 and widths of at least 4096.
    """

    host_to_gpu: float = 12.89 * _GIB
    cache_to_host: float = 0.97 * _GIB
    hidden_to_host: float = 4.82 * _GIB
    drive_to_host: float = 0.473 * _GIB
    prompt_cache_to_drive: float = 0.746 * _GIB
    to_drive: float = 2.015 * _GIB
    prompt_projection: float = 21.24e12
    prompt_attention: float = 9.97e12
    projection: float = 4.3e12
    attention: float = 0.079e12
    cpu_attention: float = 0.0123e12

    def cpu_attention_of(self, block: Block) -> float:
        """Return the CPU's rate for small batches and narrow layers (the authors' fit)."""
        x, y = max(0.0, log2(64 / block.gpu_batch)), max(0.0, log2(4096 / block.hidden))
        return self.cpu_attention * max(0.1, 1 + 0.0168 * x * y - 0.0328 * x - 0.0621 * y)


@dataclass(frozen=True)
class Times:
    """Seconds that a layer needs of every resource, for the whole block and one step."""

    host_to_gpu: float
    gpu_to_host: float
    drive_to_host: float
    host_to_drive: float
    gpu: float
    cpu: float

    @property
    def computing(self) -> float:
        """Seconds of both processors, one after the other."""
        return self.gpu + self.cpu


@dataclass(frozen=True)
class Cost:
    """Times of a layer while prompts are read, and for one further token of each."""

    block: Block
    prefill: Times
    decode: Times

    @property
    def prefill_sums(self) -> tuple[float, ...]:
        """Seconds of a layer for the prompts, of which the largest counts: transfers, one after another."""
        times = self.prefill
        into, out = times.host_to_gpu + times.drive_to_host, times.gpu_to_host + times.host_to_drive
        return into, out, times.computing

    @property
    def decode_sums(self) -> tuple[float, ...]:
        """Seconds of a layer for one token of each prompt, of which the largest counts."""
        times = self.decode
        others = times.gpu_to_host, times.drive_to_host, times.host_to_drive, times.computing
        return tuple(times.host_to_gpu + other for other in others)

    @property
    def seconds(self) -> float:
        """Seconds of the block."""
        block = self.block
        return block.layers * (max(self.prefill_sums) + (block.output - 1) * max(self.decode_sums))

    @property
    def tokens_per_second(self) -> float:
        """New tokens in a second."""
        return self.block.size * self.block.output / self.seconds


def cost(block: Block, placement: Placement, rates: Rates) -> Cost:
    """Return the times of a block's layers with data placed so.

    Weights and hidden states come to the GPU from host memory, what lies on the drive through it. Keys and
    values below the GPU never come to it except for the prompt: the CPU computes the attention of new tokens.
    """
    return Cost(block, _prefill(block, placement, rates), _decode(block, placement, rates))


def _prefill(block: Block, placement: Placement, rates: Rates) -> Times:
    weights, cache, hidden = placement.weights, placement.cache, placement.hidden
    states, width, tokens = block.prompt * block.hidden_bytes, block.hidden, block.size * block.prompt
    keys = (block.prompt + 1) * block.cache_bytes
    return Times(
        host_to_gpu=(block.weight_bytes * (1 - weights.gpu) + states * (1 - hidden.gpu)) / rates.host_to_gpu,
        gpu_to_host=keys * (1 - cache.gpu) / rates.cache_to_host
        + states * (1 - hidden.gpu) / rates.hidden_to_host,
        drive_to_host=(block.weight_bytes * weights.drive + states * hidden.drive) / rates.drive_to_host,
        host_to_drive=keys * cache.drive / rates.prompt_cache_to_drive
        + states * hidden.drive / rates.to_drive,
        gpu=24 * tokens * width**2 / rates.prompt_projection
        + 4 * tokens * block.prompt * width / rates.prompt_attention,
        cpu=0.0,
    )


def _decode(block: Block, placement: Placement, rates: Rates) -> Times:
    weights, cache, hidden = placement.weights, placement.cache, placement.hidden
    states, read = block.hidden_bytes, block.mean_context * block.cache_bytes
    from_drive = block.weight_bytes * weights.drive + states * hidden.drive + read * cache.drive
    return Times(
        host_to_gpu=(block.weight_bytes * (1 - weights.gpu) + states * (1 - hidden.gpu)) / rates.host_to_gpu,
        gpu_to_host=states * (1 - hidden.gpu) / rates.hidden_to_host,
        drive_to_host=from_drive / rates.drive_to_host,
        host_to_drive=(block.cache_bytes * cache.drive + states * hidden.drive) / rates.to_drive,
        gpu=24 * block.size * block.hidden**2 / rates.projection + read * cache.gpu / rates.attention,
        cpu=read * (1 - cache.gpu) / rates.cpu_attention_of(block),
    )
