"""Description of host memory: how much, what pinning costs, and who compresses what lies there."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from g10sim.config import quantities
from g10sim.config.effects import LINKS, Effect

_PINS = Effect(
    lambda run, _: run.has_policy("copies_to_host") or run.pins_on_use,
    "with a policy that copies whole tensors to the host, or pins on first use",
    "no policy pins buffers when it uses them first",
)
_UNPINS = Effect(
    lambda run, _: run.has_policy("unpins"),
    "with a policy that copies whole tensors to the host, and does not keep their buffers there",
    "no buffer is unpinned",
)
ACCESSED = Effect(
    lambda run, _: run.is_paged and not run.is_batched,
    "with a policy that moves pages, except for batched transfers",
    "no kernel uses tensors where they lie",
)
_LIMITED = Effect(
    lambda run, pinned: run.has_policy("copies_to_host") and pinned.limit is not None,
    "with a limit and a policy that copies whole tensors to the host",
    "there is no limit, or no policy copies whole tensors to the host",
)
_PAGEABLE = Effect(
    lambda run, pinned: run.pins or pinned.limit is not None,
    "with a limit, or a policy that names pageable tensors",
    "there is no limit",
)


class PinnedSpec(quantities.Spec):
    """Page-locked buffers that copies use (designs without unified memory).

    One thread of the host pins and unpins, one buffer after the other: a buffer of S bytes takes its latency
    and S over its rate. Designs that move pages in a framework pin a tensor's buffer when it crosses first,
    and keep it. The defaults cost nothing and have no limit but host memory itself.
    """

    limit: quantities.Bytes | None = None
    """most memory that may be pinned; none: no limit"""
    pin_latency: Annotated[quantities.Duration, _PINS] = Field(default=0, validate_default=False)
    """of pinning one buffer"""
    pin_rate: Annotated[quantities.PositiveRate | None, _PINS] = None
    """of pinning; none: no time but latency"""
    unpin_latency: Annotated[quantities.Duration, _UNPINS] = Field(default=0, validate_default=False)
    """of unpinning one buffer"""
    unpin_rate: Annotated[quantities.PositiveRate | None, _UNPINS] = None
    """of unpinning; none: only latency"""
    beyond_limit: Annotated[Literal["pageable", "stays"], _LIMITED] = "pageable"
    """pageable: copied to and from memory that is not pinned; stays: not moved to the host"""
    pageable_bandwidth: Annotated[quantities.PositiveRate | None, _PAGEABLE] = None
    """most of a copy that uses pageable memory; none: as fast as pinned"""

    @property
    def is_free(self) -> bool:
        """Return whether any buffer is pinned at once, whatever others have pinned."""
        latencies, rates = (self.pin_latency, self.unpin_latency), (self.pin_rate, self.unpin_rate)
        return self.limit is None and not any(latencies) and not any(rates)


class CompressionSpec(quantities.Spec):
    """Workers that compress tensors in host memory, all of them one tensor at a time.

    Zero-value compression: one bit for each element, and the elements that are not zero, kept in
    ``pieces`` equal pieces per worker, of which those are allocated that are filled.
    """

    workers: int = Field(strict=True, ge=1, le=4096)
    """threads"""
    compression_rate: quantities.PositiveRate
    """of one worker, in bytes of the original"""
    decompression_rate: quantities.PositiveRate
    """of one worker, in bytes of the original"""
    pieces: quantities.Count = 8
    """pieces of a worker's share"""
    element: quantities.PositiveBytes = quantities.default_size("4 B")
    """size of an element"""


class CpuSpec(quantities.Spec):
    """The processor of every socket, as far as it computes for training: kernels of traces that run on it."""

    optimizer_rate: quantities.PositiveCountRate
    """parameters that an optimizer step updates in a second"""
    memory_bandwidth: quantities.PositiveRate | None = None
    """most that a kernel reads and writes in host memory; none: all of host.memory_bandwidth"""


class SocketSpec(quantities.Spec):
    """A processor with its own memory, and the GPUs that hang on it."""

    name: str = Field(min_length=1)
    gpus: tuple[Annotated[int, Field(strict=True)], ...] = Field(min_length=1)
    """GPUs whose tensors lie in its memory"""


class KernelAccessSpec(quantities.Spec):
    """Memory that kernels can read and write where it lies, over the path that copies take.

    The rates are those of a kernel by itself on an idle path, where they are below those of copies.
    """

    read: quantities.PositiveRate | None = None
    """of a kernel; none: as fast as its path"""
    write: quantities.PositiveRate | None = None
    """of a kernel; none: as fast as its path"""


_HOST_TIER = Effect(lambda run, _: "host" in run.tiers, "with host among the tiers", "it is no tier")
_SOCKETS = Effect(
    lambda run, host: (
        run.has_links
        and (run.has_tier_at_socket or bool(host.memory_bandwidth or host.inter_socket_bandwidth))
    ),
    "with memory_bandwidth or inter_socket_bandwidth, or a tier at a socket",
    "sockets have neither limits nor tiers",
)
_BETWEEN_SOCKETS = Effect(
    lambda run, _: (
        run.has_links and (run.has_tier_at_socket or (run.joins_gpus and run.config.system.nvlink is None))
    ),
    "with a tier at a socket, or GPUs that send to each other over PCIe",
    "nothing goes from socket to socket",
)
_PINNED = Effect(
    lambda run, _: run.has_policy("copies_to_host") or run.pins or run.pins_on_use,
    "with a policy that copies whole tensors to the host, pins on first use, or names pageable ones",
    "nothing is pinned",
)
_COPIES_TO_HOST = Effect(
    lambda run, _: run.has_policy("copies_to_host"),
    "with a policy that copies whole tensors to host memory",
    "no policy does so",
)


class HostSpec(quantities.Spec):
    """Host memory set aside for the GPUs; 0 where there is none.

    Every GPU's tensors lie in the memory of their socket. Without ``sockets`` there is one for all GPUs.
    """

    memory: Annotated[quantities.Bytes, _HOST_TIER]
    """host memory for tensors"""
    memory_bandwidth: Annotated[quantities.PositiveRate | None, LINKS] = None
    """of one socket's memory, for all that GPUs read and write there; none: no limit"""
    sockets: Annotated[tuple[SocketSpec, ...], _SOCKETS] = ()
    """processors; every GPU hangs on one"""
    inter_socket_bandwidth: Annotated[quantities.PositiveRate | None, _BETWEEN_SOCKETS] = None
    """between sockets, in each direction; none: no limit"""
    pinned: Annotated[PinnedSpec | None, _PINNED] = None
    """page-locked memory; none: pinning costs nothing and has no limit"""
    compression: Annotated[CompressionSpec | None, _COPIES_TO_HOST] = None
    """of tensors in host memory"""
    kernel_access: Annotated[KernelAccessSpec | None, ACCESSED] = None
    """kernels can use tensors where they lie; none: they cannot"""
