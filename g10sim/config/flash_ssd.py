"""Description of SSDs as flash behind a controller, and of SSDs of either model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from g10sim.config import quantities
from g10sim.config.effects import Effect
from g10sim.config.flash_array import FlashArray, request_rate
from g10sim.config.ssd import Attached, SsdSpec
from g10sim.units import PICOSECONDS_PER_SECOND, SIZE

_DAYS_PER_YEAR = 365

PositiveShare = Annotated[quantities.Number, Field(gt=0, lt=1)]
Share = Annotated[quantities.Number, Field(ge=0, lt=1)]


_PLANES = Effect(lambda run, ssd: ssd.planes > 1, "with several planes", "a die has one plane")
_ERASED = Effect(lambda run, ssd: not ssd.in_place, "without in_place", "the medium is overwritten in place")


class CollectionSpec(quantities.Spec):
    """Garbage collection: when it starts, when writes have to wait for it, and what it takes."""

    start: PositiveShare
    """share of erased superblocks below which it starts"""
    urgent: PositiveShare
    """share below which writes go no faster than it makes room"""
    victims: Literal["greedy", "oldest"] = "greedy"
    """greedy: the superblock with the fewest valid bytes; oldest: the one filled first"""
    at_once: quantities.Count = 1
    """superblocks that are chosen at a time at most, one for each that is missing to `start`; what is valid
    in them then is copied, one superblock after the other"""

    @quantities.required
    def _starts_before_it_is_urgent(self) -> Iterator[str]:
        if self.urgent > self.start:
            yield f"urgent: found {self.urgent}; allowed: at most 'start', {self.start}"


class SlcSpec(quantities.Spec):
    """A part of the flash that is written with one bit per cell, and moved to the rest in idle time."""

    capacity: quantities.PositiveBytes
    """that it takes in one drive"""
    program: quantities.PositiveDuration
    """time of a page in it"""


class RatingSpec(quantities.Spec):
    """Promises of the maker."""

    cycles: quantities.Count
    """program/erase cycles of a block"""
    written: quantities.PositiveBytes
    """host writes that one drive endures in its warranty"""
    years: quantities.Number = Field(gt=0, le=100)
    """length of the warranty, in which they may be written"""


_COPY_PLANES = Effect(
    lambda run, ssd: ssd.planes > 1 and not ssd.in_place,
    "with several planes and without in_place",
    "a die has one plane, or there is no garbage",
)
_BUFFERED = Effect(lambda run, ssd: ssd.write_buffer > 0, "with a write_buffer", "there is no write buffer")


class FlashSsdSpec(Attached):
    """An SSD of flash: channels, dies and planes, a translation layer, garbage collection and wear."""

    model: Literal["flash"]
    """fidelity of the flash model"""
    drives: int = Field(default=1, strict=True, ge=1, le=256)
    """drives, striped"""
    interface: quantities.PositiveRate
    """link of one drive, in each direction, packet headers deducted"""
    channels: quantities.Count
    """channels of one drive"""
    dies: quantities.Count
    """dies of one channel"""
    planes: quantities.Count
    """planes of one die"""
    blocks: int = Field(strict=True, ge=8, le=quantities.MOST)
    """blocks of one plane"""
    pages: quantities.Count
    """pages of one block"""
    page_size: quantities.PositiveBytes
    """page of the flash"""
    bus: quantities.PositiveRate
    """of one channel"""
    read: quantities.PositiveDuration
    """time in which a die reads a page"""
    program: quantities.PositiveDuration
    """time in which a die programs a page"""
    erase: Annotated[quantities.Duration, _ERASED]
    """time in which a die erases a block"""
    read_command: quantities.Duration = quantities.default_time("290 ns")
    """on the channel, to one plane (MQSim: ONFI command and address cycles)"""
    read_command_plane: Annotated[quantities.Duration, _PLANES] = quantities.default_time("650 ns")
    """more for each further plane"""
    program_command: quantities.Duration = quantities.default_time("361 ns")
    """on the channel, to one plane (MQSim)"""
    program_command_plane: Annotated[quantities.Duration, _PLANES] = quantities.default_time("816 ns")
    """more for each further plane"""
    channel_order: Literal["pipelined", "rounds"] = "pipelined"
    """pipelined: a channel never waits while a die has data; rounds: all its dies get a read command, then
    all deliver"""
    copy_planes: Annotated[quantities.Count | None, _COPY_PLANES] = None
    """planes that a program command of garbage collection serves; none: all of a die"""
    controller_latency: quantities.Duration
    """of one access, in addition to flash and channel"""
    request_size: quantities.PositiveBytes = quantities.default_size("1 MiB")
    """in which migrations are handed to a drive"""
    queue_depth: int = Field(default=32, strict=True, ge=1, le=65_536)
    """requests that a drive is handed at a time"""
    write_buffer: quantities.Bytes
    """in one drive's memory; 0 B: none"""
    write_window: Annotated[quantities.Count, _BUFFERED] = 2
    """pages per plane that the buffer hands out at a time"""
    slc: SlcSpec | None = None
    """part written with one bit per cell; none: there is none"""
    overprovisioning: PositiveShare
    """share of the flash that is not offered as capacity"""
    collection: Annotated[CollectionSpec, _ERASED]
    """garbage collection: when it starts, and what it takes"""
    in_place: bool = Field(default=False, strict=True)
    """the medium is overwritten in place: no erasing, no garbage"""
    rating: RatingSpec
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

    @quantities.required
    def _leaves_room_to_work(self) -> Iterator[str]:
        if self.physical_bytes > SIZE.most:
            problem = f"found flash of {self.physical_bytes / 1e12:.3g} TB (blocks x pages x ...)"
            yield f"{problem}; allowed: {SIZE.range}"
        if self.in_place:
            return
        spare = self.overprovisioning * self.blocks
        needed = self.urgent_superblocks + self.streams + 2
        if spare < needed:
            found = f"{self.overprovisioning} of {self.blocks} superblocks, {spare:.1f}"
            allowed = f"at least {needed}, for {self.streams} streams and garbage collection"
            yield f"overprovisioning: found {found}; allowed: {allowed}"
        if self.copy_planes is not None and self.copy_planes > self.planes:
            yield f"copy_planes: found {self.copy_planes}; allowed: 1 to {self.planes}, its planes"

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


def _model(data: Any) -> str:
    """Return the model that a description names, by default link."""
    return str(data.get("model", "link") if isinstance(data, Mapping) else getattr(data, "model", "link"))


AnySsdSpec = Annotated[
    Annotated[SsdSpec, Tag("link")] | Annotated[FlashSsdSpec, Tag("flash")], Discriminator(_model)
]
"""An SSD of either model; ``model`` says which."""


class SsdPreset(quantities.Spec):
    """An SSD by name. ``sources`` says for every number (by dotted key) where it comes from."""

    name: str
    description: str
    ssd: AnySsdSpec
    sources: dict[str, str]
