"""Memory tiers below GPU memory, described in any number and order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, Discriminator, Field, Tag

from g10sim.config import ssd as parts
from g10sim.config.flash_ssd import AnySsdSpec, FlashSsdSpec
from g10sim.config.host import ACCESSED, KernelAccessSpec
from g10sim.config.quantities import Bytes, Duration, Latency, Number, PositiveRate, Spec, required
from g10sim.config.ssd import SsdSpec
from g10sim.errors import nearest, not_found, shown
from g10sim.places import place, tier_word
from g10sim.records import Location

Section = Literal["host", "ssd"]


def _free_name(name: str) -> str:
    if name in ("gpu", "none"):
        raise ValueError(f"found '{name}'; allowed: a name that stands for nothing else")
    return name


TierName = Annotated[
    str,
    Field(pattern=r"^[a-z][a-z0-9_]*$", max_length=32, description="name in plans and columns"),
    AfterValidator(_free_name),
]
_SHORT_KEYS = {"read": "read_bandwidth", "write": "write_bandwidth", "at": "behind"}


class MemoryTierSpec(Spec):
    """Memory that is written in place: DRAM of a processor, or behind a CXL link.

    Every GPU's tensors may lie in it. ``at`` is where it hangs: a processor (its name in ``host.sockets``, or
    socket0, socket1, ...), a link of ``pcie.shared``, or a GPU (gpu0, gpu1, ...).
    """

    name: TierName
    kind: Literal["memory"] = "memory"
    capacity: Bytes
    """space for tensors"""
    read: PositiveRate | None = None
    """from it; none: as fast as its path"""
    write: PositiveRate | None = None
    """to it; none: as fast as its path"""
    latency: Latency = Field(default=0, validate_default=False)
    """of one access"""
    at: str | None = None
    """socket, shared link or GPU; none: the root complex"""
    kernel_access: Annotated[KernelAccessSpec | None, ACCESSED] = None
    """kernels can use tensors where they lie; none: they cannot"""


_OF_THE_DRIVE = replace(parts.IS_USED_UP, counts=lambda run, ssd: parts.IS_USED_UP.counts(run, ssd.drive))


class SsdTierSpec(Spec):
    """An SSD at link fidelity as one of several tiers; ``at`` is as for memory."""

    name: TierName
    kind: Literal["ssd"]
    model: Literal["link"] = "link"
    """fidelity of the flash model"""
    capacity: Bytes
    """flash space for tensors, of one drive"""
    read: PositiveRate
    """from one drive"""
    write: PositiveRate
    """to one drive"""
    latency: Latency
    """of one access"""
    write_latency: Annotated[Duration | None, parts.WRITES_WAIT] = None
    """of one write; none: that of any access"""
    at: str | None = None
    """socket, shared link or GPU; none: the root complex"""
    drives: int = Field(default=1, strict=True, ge=1, le=256)
    """drives, striped"""
    stripe_efficiency: Number | None = Field(default=None, gt=0, le=1)
    """share of the drives' rates that a stripe reaches; none: all"""
    requests: parts.RequestsSpec | None = None
    """the host's part in each I/O"""
    write_cache: Annotated[parts.WriteCacheSpec | None, _OF_THE_DRIVE] = None
    """cache that takes writes first"""
    path: Literal["direct", "host"] = "direct"
    """between GPU and SSD, as in the section `ssd`"""
    bounce: Annotated[parts.BounceSpec | None, parts.STOPS_OVER] = None
    """the buffer in host memory"""

    @property
    def drive(self) -> SsdSpec:
        """The drive as the section ``ssd`` describes one. Raises ValueError for a path without a buffer."""
        given = {_SHORT_KEYS.get(key, key): value for key, value in self if key not in ("name", "kind")}
        return SsdSpec.model_construct(**given)

    _stripes_have_drives = required(parts.flaws_of_stripes)
    _has_a_buffer = required(parts.flaws_of_buffer)


class FlashTierSpec(FlashSsdSpec):
    """An SSD of flash as one of several tiers; ``at`` is as for memory."""

    name: TierName
    kind: Literal["ssd"]
    at: str | None = None
    """socket, shared link or GPU; none: the root complex"""

    @property
    def drive(self) -> FlashSsdSpec:
        """The drive itself."""
        return self


def _entry_kind(data: Any) -> str:
    """Tell which description an entry of ``tiers`` follows that has been checked."""
    if isinstance(data, str):
        return "section"
    given = data if isinstance(data, Mapping) else dict(data)
    if given.get("kind", "memory") == "memory":
        return "memory"
    return "flash" if given.get("model") == "flash" else "ssd"


TierEntry = Annotated[
    Annotated[Section, Tag("section")]
    | Annotated[MemoryTierSpec, Tag("memory")]
    | Annotated[SsdTierSpec, Tag("ssd")]
    | Annotated[FlashTierSpec, Tag("flash")],
    Discriminator(_entry_kind),
]
"""An entry of ``tiers``: the section ``host`` or ``ssd`` of the same system, or its own tier."""


@dataclass(frozen=True, slots=True)
class Tier:
    """A memory tier as the simulator sees it, whichever section of a system describes it.

    ``latency`` and ``write_latency`` (picoseconds) are those of one read and one write, a stop-over in host
    memory included; a rate of None means no limit beyond the path. ``drive`` describes the SSD of a tier of
    kind ``ssd``. Kernels can use tensors where they lie if there is ``kernel_access``.
    """

    place: Location
    name: str
    kind: Literal["memory", "ssd"]
    capacity: int
    read_bandwidth: int | None = None
    write_bandwidth: int | None = None
    latency: int = 0
    write_latency: int = 0
    at: str | None = None
    drive: SsdSpec | FlashSsdSpec | None = None
    kernel_access: KernelAccessSpec | None = None

    @property
    def key(self) -> str:
        """Name in stall reasons and tables."""
        return tier_word(self.name)

    @property
    def words(self) -> str:
        """Name in messages."""
        return place(self.name).words

    @property
    def title(self) -> str:
        """Name in lists and of its ports."""
        return self.words.removeprefix("the ")


def located(index: int, name: str) -> Location:
    """Return the place of the tier at a position (0: the fastest)."""
    return Location(index + 2, tier_word(name).upper())


def ssd_tier(place: Location, name: str, drive: AnySsdSpec, at: str | None = None) -> Tier:
    """Return the tier that a drive makes up."""
    read, write = drive.latency + drive.bounce_latency, drive.first_write + drive.bounce_latency
    return Tier(place, name, "ssd", *drive.all_drives, read, write, at or drive.behind, drive)


def sections_of_tiers(data: Mapping[str, Any]) -> dict[str, Any]:
    """Turn the entries of ``tiers`` named ``host`` and ``ssd`` into the sections of these names.

    Sections that no entry stands for may be left out.
    """
    found, entries = dict(data), []
    for number, entry in enumerate(data["tiers"]):
        _check_entry(entry, f"tiers.{number}")
        given = dict(entry) if isinstance(entry, Mapping) else {}
        name, kind = given.pop("name", None), given.pop("kind", None)
        if name == "host" and kind in (None, "memory"):
            own = {"memory" if key == "capacity" else key: value for key, value in given.items()}
            found["host"] = {**(found.get("host") or {}), **own}
            entries.append(name)
        elif name == "ssd" and kind == "ssd":
            # At flash fidelity ``read`` is a time.
            short = _SHORT_KEYS if given.get("model", "link") == "link" else {"at": "behind"}
            found["ssd"] = {short.get(key, key): value for key, value in given.items()}
            entries.append(name)
        else:
            entries.append(entry)
    found.setdefault("host", {"memory": "0 B"})
    found.setdefault("ssd", None)
    return {**found, "tiers": entries}


def _check_entry(entry: object, path: str) -> None:
    """Raise ValueError for an entry of which it is unclear what it describes."""
    if isinstance(entry, Mapping):
        kind, model = entry.get("kind", "memory"), entry.get("model", "link")
        if kind not in ("memory", "ssd"):
            raise ValueError(f"{path}.kind: found {shown(kind)}; allowed: memory, ssd")
        if kind == "ssd" and model not in ("link", "flash"):
            raise ValueError(f"{path}.model: found {shown(model)}{not_found(model, ('link', 'flash'))}")
    elif entry not in get_args(Section) and not isinstance(entry, Spec):
        near = nearest(str(entry), get_args(Section))
        raise ValueError(f"{path}: found {shown(entry)}{near}; allowed: host, ssd, or a mapping")
