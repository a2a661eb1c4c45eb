"""Description of SSDs: as a link with two rates, or as flash behind a controller."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Annotated, Any, Literal, Self

from pydantic import Discriminator, Field, Tag

from g10sim.config import ssd_parts as parts
from g10sim.config.flash_ssd import FlashSsdSpec
from g10sim.config.quantities import Bytes, Duration, Latency, Number, PositiveRate, Spec, required


class SsdSpec(parts.Attached):
    """Flash at link fidelity: a read and a write rate, and a latency for each batch of page faults.

    Stripes over several ``drives`` have the capacity of all, and ``stripe_efficiency`` of the sum of their
    rates.
    """

    model: Literal["link"] = "link"
    """fidelity of the flash model"""
    capacity: Bytes
    """flash space for tensors, of one drive"""
    read_bandwidth: PositiveRate
    """from one drive"""
    write_bandwidth: PositiveRate
    """to one drive"""
    drives: int = Field(default=1, strict=True, ge=1, le=256)
    """drives, striped"""
    stripe_efficiency: Number | None = Field(default=None, gt=0, le=1)
    """share of the drives' rates that a stripe reaches; none: all"""
    latency: Latency
    """of one access"""
    write_latency: Annotated[Duration | None, parts.WRITES_WAIT] = None
    """of one write; none: that of any access"""
    requests: parts.RequestsSpec | None = None
    """the host's part in each I/O; none: the drive alone limits rates"""
    write_cache: Annotated[parts.WriteCacheSpec | None, parts.IS_USED_UP] = None
    """cache that takes writes first; none: `write_bandwidth` lasts"""

    _stripes_have_drives = required(parts.flaws_of_stripes)

    @property
    def first_write(self) -> int:
        """Picoseconds before the first byte of a write is taken."""
        return self.latency if self.write_latency is None else self.write_latency

    @property
    def all_drives(self) -> tuple[int, int, int]:
        """Capacity (bytes), read and write rates (bytes/second) of the drives together, at first."""
        read, cache = self._together(self.read_bandwidth, self.latency), self.write_cache
        used_up = cache is not None and not cache.capacity
        write = self.sustained_rate if used_up else self._together(self.write_bandwidth, self.first_write)
        return self.capacity * self.drives, read, write

    def times(self, factor: Fraction) -> Self:
        """Return a drive whose rates are multiplied by a factor."""
        update: dict[str, Any] = {
            name: parts.times_rate(getattr(self, name), factor)
            for name in ("read_bandwidth", "write_bandwidth")
        }
        if self.write_cache is not None:
            update["write_cache"] = self.write_cache.times(factor)
        return self.model_copy(update=update)

    @property
    def cached_bytes(self) -> int:
        """Bytes that the drives together write at their own rate; 0 where no others are slower."""
        cache = self.write_cache
        slows = cache is not None and cache.sustained < self.write_bandwidth
        return cache.capacity * self.drives if cache is not None and slows else 0

    @property
    def sustained_rate(self) -> int:
        """Bytes/second that the drives together write in the long run."""
        rate = self.write_bandwidth
        if self.write_cache is not None:
            rate = min(rate, self.write_cache.sustained)
        return self._together(rate, self.first_write)

    def _together(self, rate: int, latency: int) -> int:
        """Return the bytes/second of all drives, each with a rate and a latency (picoseconds)."""
        share = 1.0 if self.stripe_efficiency is None else self.stripe_efficiency
        found = max(1, round(rate * self.drives * share))
        return found if self.requests is None else self.requests.rate(found, latency, self.drives)


def _model(data: Any) -> str | None:
    """Return the model that a description names, by default link."""
    found = data.get("model", "link") if isinstance(data, Mapping) else getattr(data, "model", "link")
    return found if isinstance(found, str) else None


AnySsdSpec = Annotated[
    Annotated[SsdSpec, Tag("link")] | Annotated[FlashSsdSpec, Tag("flash")], Discriminator(_model)
]
"""An SSD of either model; ``model`` says which."""


class SsdPreset(Spec):
    """An SSD by name. ``sources`` says for every number (by dotted key) where it comes from."""

    name: str
    description: str
    ssd: AnySsdSpec
    sources: dict[str, str]
