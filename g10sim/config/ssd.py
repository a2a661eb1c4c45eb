"""Description of SSDs: their attachment, requests and caches, and a drive as a link with two rates."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from functools import lru_cache
from typing import Annotated, Any, Literal

from pydantic import Field

from g10sim.config import quantities
from g10sim.config.effects import LINKS, Effect
from g10sim.units import PICOSECONDS_PER_SECOND


def times_rate(rate: int, factor: Fraction) -> int:
    """Return a rate multiplied by a factor, at least 1."""
    return max(1, round(rate * factor))


class BounceSpec(quantities.Spec):
    """Copies between GPU and SSD that stop over in host memory (``path: host``)."""

    bandwidth: quantities.PositiveRate
    """of the buffer in host memory, both directions together"""
    latency: quantities.Latency
    """that stopping over adds to an access"""


class RequestsSpec(quantities.Spec):
    """I/O of a drive in requests that the host submits and completes.

    Each of ``threads`` keeps ``depth`` requests of ``size`` bytes under way, and spends ``cpu`` on each. A
    request takes ``host`` on its way through the host, and the drive's latency and its time on the drive.
    """

    size: quantities.PositiveBytes = quantities.default_size("1 MiB")
    """of one request"""
    depth: int = Field(default=32, strict=True, ge=1, le=65_536)
    """requests of a thread at a time"""
    threads: int = Field(default=1, strict=True, ge=1, le=4096)
    """threads that submit; all together at most 1,000,000 requests at a time"""
    host: quantities.Duration = Field(default=0, validate_default=False)
    """of submitting and completing one: its latency"""
    cpu: quantities.Duration = Field(default=0, validate_default=False)
    """of a thread for each of its requests"""

    @quantities.required
    def _are_counted_soon(self) -> Iterator[str]:
        if self.depth * self.threads > quantities.MOST:
            problem = f"depth: found {self.depth} with {self.threads} threads"
            yield f"{problem}; allowed: at most {quantities.MOST} requests under way together"

    @lru_cache(maxsize=256)  # noqa: B019 (a few descriptions, asked again and again)
    def rate(self, bandwidth: int, latency: int, drives: int) -> int:
        """Return the bytes/second of drives with some bandwidth together and a latency (picoseconds).

        A drive serves one request after another, and requests wait in line at N drives: mean value analysis
        of a closed network (Reiser and Lavenberg, JACM 27(2), 1980). With q under way R(q) = S/B * (N +
        Q(q - 1)), X(q) = q / (latency + host + R(q)) and Q(q) = X(q) * R(q). One request alone takes latency
        + host + S over the rate of one drive.
        """
        service = self.size * PICOSECONDS_PER_SECOND / bandwidth
        waiting, rate = 0.0, 0.0
        for under_way in range(1, self.depth * self.threads + 1):
            response = service * (drives + waiting)
            rate = under_way / (latency + self.host + response)
            waiting = rate * response
        most = self.threads / self.cpu if self.cpu else rate
        return max(1, round(min(rate, most) * self.size * PICOSECONDS_PER_SECOND))


class WriteCacheSpec(quantities.Spec):
    """Flash of a drive that is written with one bit per cell: writes are fast until it is used up.

    The first ``capacity`` bytes since time starts are written at the drive's rate, all others at
    ``sustained``. Nothing empties it: makers and reviews say that idle drives do so, but no rate of it.
    """

    capacity: quantities.Bytes
    """bytes that one drive writes at its own rate; 0 B: it is used up"""
    sustained: quantities.PositiveRate
    """to one drive once it is used up"""


WRITES_WAIT = Effect(
    lambda run, ssd: run.has_policy("copies") or run.has_policy("plans") or ssd.requests is not None,
    "with a policy that plans or copies whole tensors, or requests",
    "pages that leave on demand do not wait for it",
)
IS_USED_UP = Effect(
    lambda run, ssd: ssd.write_cache.sustained < ssd.write_bandwidth,
    "with a sustained rate below write_bandwidth",
    "writes are no slower once it is used up",
)
STOPS_OVER = Effect(
    lambda run, ssd: run.has_links and ssd.path == "host",
    "with path host, except for batched transfers",
    "nothing stops over in host memory",
)


def flaws_of_buffer(drive: Any) -> Iterator[str]:
    """Yield what is wrong with a path over host memory: it needs a buffer there."""
    if drive.path == "host" and drive.bounce is None:
        yield "path: found 'host' without 'bounce'; allowed: with bandwidth and latency of the buffer"


def flaws_of_stripes(drive: Any) -> Iterator[str]:
    """Yield what is wrong with stripes: there have to be drives for them."""
    if drive.stripe_efficiency is not None and drive.drives == 1:
        yield "stripe_efficiency: found with one drive; allowed: with drives, 2 or more"


class Attached(quantities.Spec):
    """Attachment of an SSD of either model to the machine."""

    path: Annotated[Literal["direct", "host"], LINKS] = "direct"
    """between GPU and SSD. direct: peer to peer; host: through a buffer in host memory"""
    bounce: Annotated[BounceSpec | None, STOPS_OVER] = None
    """the buffer in host memory"""
    behind: Annotated[str | None, LINKS] = None
    """name of the entry of `pcie.shared` below whose switch the SSD hangs; none: it hangs on the root complex
    """

    _has_a_buffer = quantities.required(flaws_of_buffer)

    @property
    def bounce_latency(self) -> int:
        """Picoseconds that the path through host memory adds to an access."""
        return self.bounce.latency if self.path == "host" and self.bounce is not None else 0


class SsdSpec(Attached):
    """Flash at link fidelity: a read and a write rate, and a latency for each batch of page faults.

    Stripes over several ``drives`` have the capacity of all, and ``stripe_efficiency`` of the sum of their
    rates.
    """

    model: Literal["link"] = "link"
    """fidelity of the flash model"""
    capacity: quantities.Bytes
    """flash space for tensors, of one drive"""
    read_bandwidth: quantities.PositiveRate
    """from one drive"""
    write_bandwidth: quantities.PositiveRate
    """to one drive"""
    drives: int = Field(default=1, strict=True, ge=1, le=256)
    """drives, striped"""
    stripe_efficiency: quantities.Number | None = Field(default=None, gt=0, le=1)
    """share of the drives' rates that a stripe reaches; none: all"""
    latency: quantities.Latency
    """of one access"""
    write_latency: Annotated[quantities.Duration | None, WRITES_WAIT] = None
    """of one write; none: that of any access"""
    requests: RequestsSpec | None = None
    """the host's part in each I/O; none: the drive alone limits rates"""
    write_cache: Annotated[WriteCacheSpec | None, IS_USED_UP] = None
    """cache that takes writes first; none: `write_bandwidth` lasts"""

    _stripes_have_drives = quantities.required(flaws_of_stripes)

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
