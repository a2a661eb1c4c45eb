"""Description of links: PCIe between GPUs and memory, as a tree, and NVLink between GPUs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal, Self

from pydantic import Field

from g10sim.config.effects import Effect
from g10sim.config.quantities import Duration, PositiveRate, Spec, required
from g10sim.errors import InvariantError
from g10sim.units import format_rate

LINK_RATES = ("bandwidth", "to_device", "from_device", "duplex")
"""Keys of a link that are rates."""


class LinkSpec(Spec):
    """A link between GPUs and memory: a rate for both directions, or one for each.

    ``duplex`` is the most that both directions carry together; without it, each has its rate to itself. A
    copy waits for ``per_copy`` before its first byte moves, once for every link that it crosses: S bytes take
    per_copy + S / rate.
    """

    bandwidth: PositiveRate | None = None
    """in each direction"""
    to_device: PositiveRate | None = None
    """towards the GPU, in place of bandwidth"""
    from_device: PositiveRate | None = None
    """away from the GPU, in place of bandwidth"""
    duplex: PositiveRate | None = None
    """most of both directions together; none: their sum"""
    per_copy: Duration | None = None
    """of starting one copy; none: nothing"""

    @required
    def _directions_have_rates(self) -> Iterator[str]:
        named = {"to_device": self.to_device, "from_device": self.from_device}
        if self.bandwidth is None:
            missing = [name for name, rate in named.items() if rate is None]
            if missing:
                found = "nothing (the key is missing)" if len(missing) == 2 else f"no {missing[0]}"
                yield f"bandwidth: found {found}; allowed: bandwidth, or to_device and from_device"
        elif None not in named.values():
            problem = "bandwidth: found with to_device and from_device, which leave it nothing to say"
            yield f"{problem}; allowed: one or the other"
        one, both = self.faster, self.inward + self.outward
        if self.duplex is not None and not one <= self.duplex <= both:
            allowed = f"{format_rate(one)} (one direction) to {format_rate(both)} (both)"
            yield f"duplex: found {format_rate(self.duplex)}; allowed: {allowed}"

    @property
    def inward(self) -> int:
        """Rate towards the GPU in bytes/second."""
        return self._rate(self.to_device)

    @property
    def outward(self) -> int:
        """Rate away from the GPU in bytes/second."""
        return self._rate(self.from_device)

    @property
    def faster(self) -> int:
        """Rate of the faster direction in bytes/second."""
        return max(self.inward, self.outward)

    @property
    def at_once(self) -> tuple[int, int]:
        """Rates towards and away from the GPU in bytes/second while both directions are busy all the time."""
        both = self.inward + self.outward
        most = both if self.duplex is None else self.duplex
        return self.inward * most // both, self.outward * most // both

    def _rate(self, own: int | None) -> int:
        rate = own or self.bandwidth
        if rate is None:
            raise InvariantError("a link without rates was accepted")
        return rate

    def times(self, numerator: int, denominator: int = 1) -> Self:
        """Return the same link with all rates multiplied by a fraction."""
        rates = {name: getattr(self, name) for name in LINK_RATES}
        scaled = {name: rate * numerator // denominator for name, rate in rates.items() if rate is not None}
        return self.model_copy(update=scaled)


class SharedLinkSpec(LinkSpec):
    """A link that several GPUs cross on their way to host memory and SSD (switch uplink, root complex)."""

    name: str = Field(min_length=1)
    gpus: tuple[Annotated[int, Field(strict=True)], ...] = Field(min_length=1)
    """GPUs whose traffic crosses it"""


class NvlinkSpec(Spec):
    """Links between GPUs, all to all through switches."""

    bandwidth: PositiveRate
    """of one GPU to and from all others, in each direction"""


_LINKS_OR_PLANS = Effect(
    lambda run, _: run.has_links or run.has_policy("plans"),
    "with fluid transfers, or a policy that plans or copies whole tensors",
    "batched transfers know one link",
)
_SERVED = Effect(
    lambda run, _: run.has_links and run.has_policy("keeps_service"),
    "with fluid transfers, or a policy that copies whole tensors and does not choose the service",
    "batched transfers know one link, or policies choose the service",
)


class PcieSpec(LinkSpec):
    """The tree of PCIe links: every GPU's own link and the links that GPUs share."""

    shared: Annotated[tuple[SharedLinkSpec, ...], _LINKS_OR_PLANS] = ()
    """links that GPUs share"""
    service: Annotated[Literal["fair", "first_come", "deadline"], _SERVED] = "fair"
    """how transfers of equal rank share links. fair: max-min fair, all at once; first_come: one after another
    at full rate, the oldest first; deadline: what is needed first"""
