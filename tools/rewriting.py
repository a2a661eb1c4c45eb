"""A host that rewrites extents as fast as an SSD lets it: write amplification and rate in the long run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, filterfalse, islice, repeat
from random import Random
from typing import Literal

from g10sim.config.flash_ssd import FlashSsdSpec
from g10sim.hardware.flash.device import FlashDevice
from g10sim.hardware.flash.ftl import new_layer

Order = Literal["random", "periodic", "permuted"]

_CLOCK_HZ = 10**9
_MEASURED = 0.4


@dataclass(frozen=True)
class Rewriting:
    """Extents of these sizes, written once and then again and again.

    ``order``: extents at *random*, or each once per round, always in the same order (*periodic*) or in a new
    one (*permuted*). ``together`` extents are written at a time, in turns of ``request_bytes``. In all
    ``rewritten`` times the data is rewritten. ``reads``: as much is read as is written.
    """

    extents: Sequence[int]
    order: Order
    request_bytes: int
    rewritten: float
    together: int = 1
    reads: bool = False
    seed: int = 0


@dataclass(frozen=True)
class LongRun:
    """Results over the last 40 % of the writes, if any (or else all); ``write_rate`` in bytes/second."""

    write_amplification: float
    write_rate: float


def rewrite(spec: FlashSsdSpec, work: Rewriting) -> LongRun:
    """Fill a new drive and rewrite it. The same seed gives the same result."""
    stripe = spec.array.stripe_bytes * spec.drives
    large = [size for size in work.extents if size >= stripe]
    work = replace(work, extents=large + _joined(work.extents, stripe))
    layer = new_layer(spec)
    for extent, size in _turns(iter(range(len(work.extents))), work):
        layer.write(extent, size)
    device = FlashDevice(spec, layer, _CLOCK_HZ)
    total = work.rewritten * sum(work.extents)
    written, cycles = 0, 0
    before: tuple[int, int, int] | None = None
    for extent, size in _turns(_choices(work), work):
        if before is None and written >= (1 - _MEASURED) * total:
            before = written, cycles, layer.copied_bytes
        if written >= total:
            break
        if extent < len(large):
            cycles += _wait_for_copies(device, extent, size)
        layer.discard(extent, size)
        layer.write(extent, size)
        written += size
        cycles += _pass_time(device, size, reads=work.reads)
    start, since, copied = before if before is not None and before[0] < written else (0, 0, 0)
    bytes_written, spent = written - start, cycles - since
    amplification = 1 + (layer.copied_bytes - copied) / bytes_written
    return LongRun(amplification, bytes_written * _CLOCK_HZ / spent)


def _joined(extents: Sequence[int], stripe_bytes: int) -> list[int]:
    """Join extents smaller than a stripe to such of a stripe.

    Each plane has a page, no less, of some of them: its blocks hold as many as of extents of a stripe.
    """
    small = sum(size for size in extents if size < stripe_bytes)
    return [stripe_bytes] * round(small / stripe_bytes)


def _wait_for_copies(device: FlashDevice, extent: int, size: int) -> int:
    """Wait until what is overwritten next is not in line to be copied; returns the cycles.

    Of extents of a stripe or more, those that wait fill the drive's buffer, so that all writes wait. Smaller
    ones are passed by others.
    """
    cycles = 0
    while (superblock := device.layer.awaited(extent, size)) is not None:
        cycles += device.wait_for(superblock)
    return cycles


def _pass_time(device: FlashDevice, size: float, *, reads: bool) -> int:
    """Let a write take its time; returns the cycles."""
    cycles = 0
    while size >= 1:
        rate = device.equal_rates() if reads else min(device.link_rate, device.drain_limit(0))
        read = rate if reads else 0.0
        needed = max(1, round(size / rate * _CLOCK_HZ))
        step = min(needed, device.cycles_to_change(read, rate) or needed)
        device.advance(step, read, rate)
        cycles += step
        size = 0 if step == needed else size - rate * step / _CLOCK_HZ
    return cycles


def _choices(work: Rewriting) -> Iterator[int]:
    """Yield extents in the order in which they are rewritten, without end."""
    random, extents = Random(work.seed), range(len(work.extents))
    if work.order == "random":
        return map(random.choice, repeat(extents))
    if work.order == "periodic":
        return chain.from_iterable(repeat(extents))
    return chain.from_iterable(map(random.sample, repeat(extents), repeat(len(extents))))


def _turns(choices: Iterator[int], work: Rewriting) -> Iterator[tuple[int, int]]:
    """Yield parts of the extents being written, in turns."""
    left: dict[int, int] = {}
    while True:
        fresh = filterfalse(left.__contains__, choices)
        for extent in islice(fresh, work.together - len(left)):
            left[extent] = work.extents[extent]
        if not left:
            return
        for extent in list(left):
            size = min(work.request_bytes, left[extent])
            yield extent, size
            left[extent] -= size
            if not left[extent]:
                del left[extent]
