"""Description of SSDs: as a link with two rates, or as flash behind a controller."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from fractions import Fraction
from functools import cached_property
from typing import Annotated, Any, Literal, Self

from pydantic import Discriminator, Field, Tag, model_validator

from g10sim.config import ssd_parts as parts
from g10sim.config.effects import LINKS, Effect
from g10sim.config.flash_array import FlashArray, request_rate
from g10sim.config.quantities import (
    MOST,
    Bytes,
    Count,
    Duration,
    Latency,
    PositiveBytes,
    PositiveDuration,
    PositiveRate,
    Spec,
    default_size,
    default_time,
)
from g10sim.units import PICOSECONDS_PER_SECOND, SIZE

_DAYS_PER_YEAR = 365

Share = Annotated[float, Field(ge=0, lt=1)]


_PLANES = Effect(lambda run, ssd: ssd.planes > 1, "with several planes", "a die has one plane")
_ERASED = Effect(lambda run, ssd: not ssd.in_place, "without in_place", "the medium is overwritten in place")


class _Attached(Spec):
    """Attachment of an SSD of either model to the machine."""

    path: Annotated[Literal["direct", "host"], LINKS] = "direct"
    """between GPU and SSD. direct: peer to peer; host: through a buffer in host memory"""
    bounce: Annotated[parts.BounceSpec | None, parts.STOPS_OVER] = None
    """the buffer in host memory"""
    behind: Annotated[str | None, LINKS] = None
    """name of the entry of `pcie.shared` below whose switch the SSD hangs; none: it hangs on the root complex
    """

    @model_validator(mode="after")
    def _has_a_buffer(self) -> _Attached:
        parts.check_buffer(self)
        return self

    @property
    def bounce_latency(self) -> int:
        """Picoseconds that the path through host memory adds to an access."""
        return self.bounce.latency if self.path == "host" and self.bounce is not None else 0


class SsdSpec(_Attached):
    """Flash at link fidelity: a read and a write rate and a latency for each demanded group of pages.

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
    stripe_efficiency: float | None = Field(default=None, gt=0, le=1)
    """share of the drives' rates that a stripe reaches; none: all"""
    latency: Latency
    """of one access"""
    write_latency: Annotated[Duration | None, parts.WRITES_WAIT] = None
    """of one write; none: that of any access"""
    requests: parts.RequestsSpec | None = None
    """the host's part in each I/O; none: the drive alone limits rates"""
    write_cache: Annotated[parts.WriteCacheSpec | None, parts.IS_USED_UP] = None
    """cache that takes writes first; none: `write_bandwidth` lasts"""

    @model_validator(mode="after")
    def _stripes_have_drives(self) -> SsdSpec:
        parts.check_stripes(self)
        return self

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
        found = round(rate * self.drives * share)
        return found if self.requests is None else self.requests.rate(found, latency, self.drives)


class FlashSsdSpec(_Attached):
    """An SSD of flash: channels, dies and planes, a translation layer, garbage collection and wear."""

    model: Literal["flash"]
    """fidelity of the flash model"""
    drives: int = Field(default=1, strict=True, ge=1, le=256)
    """drives, striped"""
    interface: PositiveRate
    """link of one drive, in each direction, packet headers deducted"""
    channels: Count
    """channels of one drive"""
    dies: Count
    """dies of one channel"""
    planes: Count
    """planes of one die"""
    blocks: int = Field(strict=True, ge=8, le=MOST)
    """blocks of one plane"""
    pages: Count
    """pages of one block"""
    page_size: PositiveBytes
    """page of the flash"""
    bus: PositiveRate
    """of one channel"""
    read: PositiveDuration
    """time in which a die reads a page"""
    program: PositiveDuration
    """time in which a die programs a page"""
    erase: Annotated[Duration, _ERASED]
    """time in which a die erases a block"""
    read_command: Duration = default_time("290 ns")
    """on the channel, to one plane (MQSim: ONFI command and address cycles)"""
    read_command_plane: Annotated[Duration, _PLANES] = default_time("650 ns")
    """more for each further plane"""
    program_command: Duration = default_time("361 ns")
    """on the channel, to one plane (MQSim)"""
    program_command_plane: Annotated[Duration, _PLANES] = default_time("816 ns")
    """more for each further plane"""
    channel_order: Literal["pipelined", "rounds"] = "pipelined"
    """pipelined: a channel never waits while a die has data; rounds: all its dies get a read command, then
    all deliver"""
    copy_planes: Annotated[
        Count | None,
        Effect(
            lambda run, ssd: ssd.planes > 1 and not ssd.in_place,
            "with several planes and without in_place",
            "a die has one plane, or there is no garbage",
        ),
    ] = None
    """planes that a program command of garbage collection serves; none: all of a die"""
    controller_latency: Duration
    """of one access, in addition to flash and channel"""
    request_size: PositiveBytes = default_size("1 MiB")
    """in which migrations are handed to a drive"""
    queue_depth: int = Field(default=32, strict=True, ge=1, le=65_536)
    """requests that a drive is handed at a time"""
    write_buffer: Bytes
    """in one drive's memory; 0 B: none"""
    write_window: Annotated[
        Count,
        Effect(lambda run, ssd: ssd.write_buffer > 0, "with a write_buffer", "there is no write buffer"),
    ] = 2
    """pages per plane that the buffer hands out at a time"""
    slc: parts.SlcSpec | None = None
    """part written with one bit per cell; none: there is none"""
    overprovisioning: parts.PositiveShare
    """share of the flash that is not offered as capacity"""
    collection: Annotated[parts.CollectionSpec, _ERASED]
    """garbage collection: when it starts, and what it takes"""
    in_place: bool = Field(default=False, strict=True)
    """the medium is overwritten in place: no erasing, no garbage"""
    rating: parts.RatingSpec
    write_floor: Share = 0.1
    """share of the array that reads leave to writes that wait"""
    trim: Annotated[bool, _ERASED] = Field(default=True, strict=True)
    """whether the drive is told of tensors that are dead or fetched"""
    streams: Annotated[int, _ERASED] = Field(default=1, strict=True, ge=1, le=64)
    """superblocks that are filled side by side, each with tensors that die at a time"""
    occupied: Share = 0
    """share of the capacity that lasting data of others fills"""
    condition: Annotated[Literal["fresh", "sequential", "random"], _ERASED] = "fresh"
    """before time starts. fresh: erased; sequential: written once from end to end; random: overwritten at
    random, so that lasting data is spread over all superblocks"""

    @model_validator(mode="after")
    def _leaves_room_to_work(self) -> FlashSsdSpec:
        if self.physical_bytes > SIZE.most:
            problem = f"found flash of {self.physical_bytes / 1e12:.3g} TB (blocks x pages x ...)"
            raise ValueError(f"{problem}; allowed: {SIZE.range}")
        if self.in_place:
            return self
        spare = self.overprovisioning * self.blocks
        needed = self.urgent_superblocks + self.streams + 2
        if spare < needed:
            raise ValueError(
                f"overprovisioning: found {self.overprovisioning} of {self.blocks} superblocks, {spare:.1f}; "
                f"allowed: at least {needed}, for {self.streams} streams and garbage collection"
            )
        if self.copy_planes is not None and self.copy_planes > self.planes:
            problem = f"copy_planes: found {self.copy_planes}"
            raise ValueError(f"{problem}; allowed: 1 to {self.planes}, its planes")
        return self

    @cached_property
    def array(self) -> FlashArray:
        """Geometry and timing of one drive."""
        return FlashArray(**{field.name: getattr(self, field.name) for field in fields(FlashArray)})

    @property
    def all_drives(self) -> tuple[int, int, int]:
        """Capacity (bytes), read and write rates (bytes/second) of the drives together."""
        return self.capacity, self.read_bandwidth, self.write_bandwidth

    @property
    def physical_bytes(self) -> int:
        """Flash of all drives."""
        return self.array.superblock_bytes * self.blocks * self.drives

    @property
    def logical_bytes(self) -> int:
        """Bytes that all drives offer to the host."""
        return int(self.physical_bytes * (1 - self.overprovisioning))

    @property
    def capacity(self) -> int:
        """Bytes left for tensors."""
        return self.logical_bytes - self.occupied_bytes

    @property
    def occupied_bytes(self) -> int:
        """Bytes that lasting data of others fills."""
        return int(self.logical_bytes * self.occupied)

    @property
    def urgent_superblocks(self) -> int:
        """Erased superblocks at which writes wait for garbage collection."""
        return max(1, round(self.collection.urgent * self.blocks))

    @property
    def start_superblocks(self) -> int:
        """Erased superblocks at which garbage collection starts."""
        return max(self.urgent_superblocks, round(self.collection.start * self.blocks))

    @property
    def buffered_pages(self) -> float:
        """Pages that share a program command as long as nothing is collected."""
        if self.write_buffer:
            return self.array.pages_from_buffer(self.write_window)
        return self.array.pages_together(self.queue_depth * self.request_size)

    @property
    def read_bandwidth(self) -> int:
        """Bytes/second of reads alone, of all drives."""
        return self._request_rate(writes=False)

    @property
    def write_bandwidth(self) -> int:
        """Bytes/second of writes alone that nothing has to be collected for, of all drives."""
        if self.slc is not None or self.write_buffer:
            return round(min(self.interface, self.slc_array.write_rate(self.buffered_pages))) * self.drives
        return self._request_rate(writes=True)

    def _request_rate(self, *, writes: bool) -> int:
        rate = request_rate(self.array, self.interface, self.request_size, self.queue_depth, writes=writes)
        return round(rate) * self.drives

    @property
    def starving_rates(self) -> tuple[float, float]:
        """Bytes/second of reads of all drives above and below which writes get their floor only."""
        above, below = self.array.starving_rates(self.request_size, self.queue_depth * self.request_size)
        return above * self.drives, below * self.drives

    @property
    def slc_array(self) -> FlashArray:
        """The array as it is written with one bit per cell."""
        if self.slc is None:
            return self.array
        return replace(self.array, program=self.slc.program)

    @property
    def latency(self) -> int:
        """Picoseconds until the first page of an access leaves the drive."""
        first = self.array.read_delay() + self.page_size / self.bus * PICOSECONDS_PER_SECOND
        on_link = self.page_size / self.interface * PICOSECONDS_PER_SECOND
        return self.controller_latency + round(first + on_link)

    @property
    def first_write(self) -> int:
        """As long as a read: picoseconds before the first byte of a write is taken."""
        return self.latency

    def rated_daily_writes(self) -> float:
        """Drive writes per day that the warranty covers."""
        capacity = self.logical_bytes / self.drives
        return self.rating.written / capacity / (self.rating.years * _DAYS_PER_YEAR)


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
