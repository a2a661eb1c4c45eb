"""FlexGen's model of offline decoding of a block of prompts, layer by layer (Sheng et al., ICML 2023).

Seconds that a layer takes in closed form (appendix A.2), memory that a block takes (appendix A.3), and the
search for the shares with the lowest cost: a linear program, solved for blocks of many sizes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import log2
from typing import TYPE_CHECKING

import numpy as np
from scipy.optimize import linprog

if TYPE_CHECKING:
    from numpy.typing import NDArray

_GIB = 2**30
_SHARES = 6
_SMALL_BATCHES = 1, 2, 3
_BATCH_STEP, _LARGEST_BATCH = 4, 512
_MOST_BATCHES = 4096
_SLIGHTLY = 1e-6
"""Seconds that all of one kind of data on the drive costs, so that of equal placements least lies there."""


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


@dataclass(frozen=True)
class Room:
    """Bytes of every memory."""

    gpu: int
    host: int
    drive: int


def needed(block: Block, placement: Placement) -> tuple[tuple[float, ...], tuple[float, ...], float]:
    """Return the bytes that a block takes of the GPU and of host memory at several moments, and of the drive.

    The moments are the stages of a layer, of the prompts and of one token: what lies there, and what comes
    through. On the GPU that is the present and the next layer's weights, and hidden states and results of a
    stage for one batch.
    """
    weights, cache, hidden = placement.weights, placement.cache, placement.hidden
    tokens = block.prompt + block.output
    homes = (
        block.layers * block.weight_bytes,
        block.layers * tokens * block.cache_bytes,
        block.prompt * block.hidden_bytes,
    )
    shares = (weights, cache, hidden)
    on_gpu, in_host, on_drive = (
        sum(size * getattr(share, place) for size, share in zip(homes, shares, strict=True))
        for place in ("gpu", "host", "drive")
    )
    moments = [_stages(block, placement, block.prompt, block.prompt), _stages(block, placement, 1, tokens)]
    through = 2 * (1 - weights.gpu) * block.weight_bytes
    gpu = [
        on_gpu + through + (1 - hidden.gpu) * states + stage for states, stages in moments for stage in stages
    ]
    passing = (1 - weights.gpu) * block.weight_bytes
    from_drive = weights.drive * block.weight_bytes + tokens * block.cache_bytes * cache.drive
    host = [in_host + passing + (1 - hidden.gpu) * moments[0][0], in_host + passing + from_drive]
    return tuple(gpu), tuple(host), on_drive


def _stages(block: Block, placement: Placement, new: int, context: int) -> tuple[float, tuple[float, ...]]:
    """Return the bytes of a batch's hidden states, and of what each stage of a layer reads and writes.

    The stages are projections of ``new`` tokens, the MLP, and attention to ``context`` tokens as far as it is
    the GPU's, without a stored matrix of scores.
    """
    states = 2 * new * block.hidden * block.gpu_batch
    attention = placement.cache.gpu * (2 * states + 4 * context * block.hidden * block.gpu_batch)
    return states, (4 * states, 5 * states, attention)


@dataclass(frozen=True)
class Found:
    """The best block and placement that a search has found."""

    placement: Placement
    cost: Cost


def search(block: Block, rates: Rates, room: Room) -> Found | None:
    """Return the batch size, number of batches and shares with most tokens per second; None: nothing fits.

    ``block`` says all but the sizes. For batches of 1, 2, 3, 4, 8, 12 and so on the number of batches is
    doubled until they no longer fit, and the most that fit are found by halving the difference.
    """
    best: Found | None = None
    for size in (*_SMALL_BATCHES, *range(_BATCH_STEP, _LARGEST_BATCH + 1, _BATCH_STEP)):
        tried = list(_numbers_of_batches(replace(block, gpu_batch=size), rates, room))
        if not tried:
            break
        best = max([*([best] if best else []), *tried], key=lambda found: found.cost.tokens_per_second)
    return best


def _numbers_of_batches(block: Block, rates: Rates, room: Room) -> Iterator[Found]:
    """Yield what is found for numbers of batches up to the most that fit."""
    fits, fails = 0, 1
    while fails <= _MOST_BATCHES:
        found = place(replace(block, batches=fails), rates, room)
        if found is None:
            break
        yield found
        fits, fails = fails, 2 * fails
    while fails - fits > 1:
        middle = (fits + fails) // 2
        found = place(replace(block, batches=middle), rates, room)
        if found is None:
            fails = middle
        else:
            fits = middle
            yield found


def place(block: Block, rates: Rates, room: Room) -> Found | None:
    """Return the shares with which a block takes the least time; None: none fit.

    A linear program in the shares on the GPU and in host memory, and the seconds of a layer: these are at
    least each of the sums of which the cost is the maximum, and each memory holds what it needs to.
    """
    origin, *units = (_sums(block, shares, rates, room) for shares in _corners())
    columns = [unit - origin for unit in units]
    times = np.zeros((2, len(origin)))
    times[0, :3] = times[1, 3:7] = -1.0
    matrix = np.array([*columns, *times]).T
    costs = [-_SLIGHTLY] * _SHARES + [1.0, block.output - 1.0]
    bounds = [(0.0, 1.0)] * _SHARES + [(0.0, None)] * 2
    found = linprog(costs, matrix, -origin, bounds=bounds, method="highs")
    if not found.success:
        return None
    placement = _placement(found.x[:_SHARES].clip(0.0, 1.0).tolist())
    return Found(placement, cost(block, placement, rates))


def _corners() -> Iterator[list[float]]:
    """Yield no share of anything, and all of each: what is affine in the shares is known from these."""
    yield [0.0] * _SHARES
    for share in range(_SHARES):
        yield [float(share == one) for one in range(_SHARES)]


def _sums(block: Block, shares: Sequence[float], rates: Rates, room: Room) -> NDArray[np.float64]:
    """Return what may not exceed 0, or a time: three sums of seconds of the prompts, and four of one token.

    Then the bytes beyond each memory, and the shares beyond 1, of which each kind has two.
    """
    placement = _placement(shares)
    found = cost(block, placement, rates)
    gpu, host, drive = needed(block, placement)
    beyond = [*(one - room.gpu for one in gpu), *(one - room.host for one in host), drive - room.drive]
    pairs = [shares[kind] + shares[kind + 1] - 1 for kind in (0, 2, 4)]
    return np.array([*found.prefill_sums, *found.decode_sums, *(one / 1e9 for one in beyond), *pairs])


def _placement(shares: Sequence[float]) -> Placement:
    weights, cache, hidden = (Shares(*shares[kind : kind + 2]) for kind in (0, 2, 4))
    return Placement(weights, cache, hidden)
