"""Description of a machine: GPUs, host memory, SSD, and the PCIe links that join them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from g10sim.config.host import HostSpec
from g10sim.config.quantities import (
    Duration,
    PositiveBytes,
    PositiveFrequency,
    PositiveRate,
    Spec,
)
from g10sim.config.ssd import AnySsdSpec
from g10sim.registry import choices_text, nearest
from g10sim.units import parse_bytes


class GpuSpec(Spec):
    """The GPUs of a machine, all alike.

    ``memory`` is the HBM that traces may fill, ``clock`` the length of a cycle, ``page_size`` the
    granularity of the unified memory, ``allocation_rate`` the speed of mapping and zeroing new pages.
    """

    count: int = Field(default=1, strict=True, ge=1, le=1024, description="number of GPUs")
    memory: PositiveBytes = Field(description="HBM of one GPU")
    clock: PositiveFrequency = Field(description="clock of the simulated cycles")
    page_size: PositiveBytes = Field(
        default=parse_bytes("4 KiB"),
        validate_default=False,
        json_schema_extra={"default": "4 KiB"},
        description="page of the unified memory",
    )
    allocation_rate: PositiveRate = Field(description="speed of mapping new pages")


class SharedLinkSpec(Spec):
    """A link that several GPUs cross on their way to host memory and SSD (switch uplink, root complex)."""

    name: str = Field(min_length=1)
    gpus: tuple[Annotated[int, Field(strict=True)], ...] = Field(
        min_length=1, description="GPUs whose traffic crosses it"
    )
    bandwidth: PositiveRate = Field(description="in each direction")


class NvlinkSpec(Spec):
    """Links between GPUs, all to all through switches."""

    bandwidth: PositiveRate = Field(description="of one GPU to and from all others, in each direction")


class PcieSpec(Spec):
    """The tree of PCIe links: every GPU's own link and the links that GPUs share."""

    bandwidth: PositiveRate = Field(description="of each GPU's own link, in each direction")
    shared: tuple[SharedLinkSpec, ...] = Field(default=(), description="links that GPUs share")
    service: Literal["fair", "first_come", "deadline"] = Field(
        default="fair",
        description="how transfers of equal rank share links. fair: max-min fair, all at once; first_come:"
        " one after another at full rate, the oldest first; deadline: what is needed first",
    )


class PageFaultSpec(Spec):
    """Demand paging: the GPU waits ``latency`` for each group of at most ``group`` bytes of one tensor."""

    latency: Duration = Field(description="of handling one group of faults")
    group: PositiveBytes = Field(
        default=parse_bytes("2 MiB"),
        validate_default=False,
        json_schema_extra={"default": "2 MiB"},
        description="most bytes that one handling brings in",
    )


class SystemSpec(Spec):
    """One machine. ``sources`` says for every number (by dotted key) where it comes from."""

    name: str = Field(min_length=1)
    description: str = ""
    gpu: GpuSpec
    host: HostSpec
    ssd: AnySsdSpec
    pcie: PcieSpec
    nvlink: NvlinkSpec | None = Field(default=None, description="links between GPUs; none: over PCIe")
    page_fault: PageFaultSpec
    sources: dict[str, str] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _links_form_a_tree(self) -> SystemSpec:
        seen: list[SharedLinkSpec] = []
        for link in self.pcie.shared:
            unknown = [gpu for gpu in link.gpus if not 0 <= gpu < self.gpu.count]
            if unknown:
                raise ValueError(
                    f"pcie.shared: link '{link.name}' names GPU {unknown[0]}; "
                    f"allowed: 0 to {self.gpu.count - 1} (gpu.count is {self.gpu.count})"
                )
            for other in seen:
                common = set(link.gpus) & set(other.gpus)
                if common and common not in (set(link.gpus), set(other.gpus)):
                    raise ValueError(
                        f"pcie.shared: links '{other.name}' and '{link.name}' overlap without one "
                        "containing the other; allowed: a tree"
                    )
            if any(other.name == link.name for other in seen):
                raise ValueError(f"pcie.shared: two links are called '{link.name}'; allowed: unique names")
            seen.append(link)
        return self

    @model_validator(mode="after")
    def _ssd_hangs_below_a_switch(self) -> SystemSpec:
        names = [link.name for link in self.pcie.shared]
        if self.ssd.behind is not None and self.ssd.behind not in names:
            raise ValueError(
                f"ssd.behind: found '{self.ssd.behind}'{nearest(self.ssd.behind, names)}; allowed: "
                f"{choices_text(names) or 'none, as there are no shared links'}"
            )
        return self

    @model_validator(mode="after")
    def _every_gpu_hangs_on_one_socket(self) -> SystemSpec:
        hung = [gpu for socket in self.host.sockets for gpu in socket.gpus]
        if hung and sorted(hung) != list(range(self.gpu.count)):
            raise ValueError(
                f"host.sockets: found GPUs {sorted(hung)}; allowed: each of 0 to {self.gpu.count - 1} once "
                f"(gpu.count is {self.gpu.count})"
            )
        if self.host.inter_socket_bandwidth is not None and len(self.host.sockets) < 2:
            raise ValueError("host.inter_socket_bandwidth: found without several sockets; allowed: with them")
        return self
