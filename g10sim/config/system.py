"""Description of a machine: GPUs, host memory, SSD, and the PCIe links that join them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from g10sim.config import quantities
from g10sim.config.effects import LINKS, Effect
from g10sim.config.flash_ssd import AnySsdSpec
from g10sim.config.host import CpuSpec, HostSpec
from g10sim.config.links import NvlinkSpec, PcieSpec
from g10sim.config.ssd import SsdSpec
from g10sim.config.tiers import MemoryTierSpec, Tier, TierEntry, located, sections_of_tiers, ssd_tier
from g10sim.display import Displayed, rounded_bytes
from g10sim.errors import ConfigError, InvariantError, choices_text, nearest
from g10sim.records import Tiers
from g10sim.units import format_rate


class CopyContentionSpec(quantities.Spec):
    """Copies that take bandwidth of GPU memory from kernels.

    The default is the middle of the 5 to 7 % by which kernels on an RTX 3090 and an RTX 5090 got slower while
    copies ran (measured; dataflowml, docs/throughput.md, 2025).
    """

    share: quantities.Number = Field(default=0.06, gt=0, lt=1)
    """of a kernel's speed, while copies fill the link both ways"""


_GPUS = Effect(lambda run, _: run.last_gpu > 0, "with replicas, or jobs on several GPUs", "one GPU has jobs")


class GpuSpec(quantities.Spec):
    """The GPUs of a machine, all alike.

    ``name`` says which GPU it is, as the descriptions in ``configs/gpus`` do: kernel times of a trace that
    are another's are told. ``memory`` is the HBM that traces may fill, less ``context_memory`` and
    ``workspace_memory`` for every job on the GPU (where ``memory`` is given in place of a preset's, these are
    not the preset's, either: it is a budget for tensors), ``clock`` the length of a cycle, ``page_size`` the
    granularity of the unified memory, ``allocation_rate`` the speed of mapping and zeroing new pages.
    """

    name: str = ""
    """which GPU, such as a100-40g: traces timed for another are told; empty: any"""
    count: Annotated[int, _GPUS] = Field(default=1, strict=True, ge=1, le=1024)
    """number of GPUs"""
    memory: quantities.PositiveBytes
    """HBM of one GPU"""
    context_memory: quantities.Bytes = quantities.default_size("0 B")
    """of that, what each job on the GPU takes in addition to its tensors: its CUDA context"""
    workspace_memory: quantities.Bytes = quantities.default_size("0 B")
    """of that, what libraries take for scratch in each job: cuBLAS, cuDNN"""
    clock: quantities.PositiveFrequency
    """clock of the simulated cycles"""
    page_size: quantities.PositiveBytes = quantities.default_size("4 KiB")
    """page of the unified memory"""
    allocation_rate: quantities.PositiveRate
    """speed of mapping new pages"""
    copy_contention: Annotated[CopyContentionSpec | None, LINKS] = None
    """copies slow kernels down; none: they do not"""

    @property
    def beside_tensors(self) -> int:
        """Bytes that each job takes in addition to its tensors."""
        return self.context_memory + self.workspace_memory


_FLUID = Effect(
    lambda run, _: run.is_paged and not run.is_batched,
    "with fluid transfers and a policy that moves pages",
    "no faults are handled one batch after another",
)
_BATCH = Effect(
    lambda run, fault: run.is_paged and not run.is_batched and fault.batch is not None,
    "with a batch, fluid transfers and a policy that moves pages",
    "all faults of a group are handled at once",
)


class PageFaultSpec(quantities.Spec):
    """Demand paging: the GPU waits ``latency`` for each batch of faults that the driver handles.

    A batch holds the faults of at most ``batch`` pages of one ``group``, in order of addresses. Each brings
    in all of its ``leaf`` (of the group, if that is smaller); where more than ``threshold`` of a subtree of
    leaves (2, 4, 8 ... of them, up to the group) is there, the rest of it comes along: the tree prefetcher of
    NVIDIA's open UVM driver (open-gpu-kernel-modules, uvm_perf_prefetch.c). That driver evicts in the course
    of handling faults, and only then fetches (``serial``); Kim et al. (Batch-aware unified memory management
    in GPUs, ASPLOS 2020) propose to do both at a time (``overlapped``).
    """

    latency: quantities.Latency
    """of handling one batch of faults"""
    batch: Annotated[int | None, _FLUID] = Field(default=None, strict=True, ge=1)
    """most faults of a batch, one per page; null: any number"""
    leaf: Annotated[quantities.PositiveBytes, _BATCH] = quantities.default_size("64 KiB")
    """bytes that a fault brings in at least"""
    threshold: Annotated[quantities.Number, _BATCH] = Field(default=0.51, ge=0.0, le=1.0)
    """share of a subtree above which the rest of it is fetched"""
    group: quantities.PositiveBytes = quantities.default_size("2 MiB")
    """block of addresses beyond which no batch and no subtree reaches"""
    eviction: Annotated[Literal["overlapped", "serial"], _FLUID] = "overlapped"
    """of pages that make room for those that faulted. overlapped: while these arrive; serial: before"""


_SSD_TIER = Effect(lambda run, _: "ssd" in run.tiers, "with ssd among the tiers", "it is no tier")
_JOINED = Effect(
    lambda run, _: run.joins_gpus,
    "with replicas that exchange gradients around a ring, jobs on several GPUs, or a tier at one",
    "no GPU sends to another",
)


class SystemSpec(Displayed, quantities.Spec):
    """One machine. ``sources`` says for every number (by dotted key) where it comes from."""

    name: str = Field(min_length=1)
    description: str = ""
    gpu: GpuSpec
    host: HostSpec
    cpu: CpuSpec | None = None
    """processors; none: no kernel can use one"""
    ssd: Annotated[AnySsdSpec | None, _SSD_TIER]
    """the drive: two rates and a latency, or flash"""
    tiers: tuple[TierEntry, ...] | None = Field(default=None, min_length=1)
    """memory tiers, fastest first: host and ssd stand for these sections; none: host, ssd"""
    pcie: PcieSpec
    nvlink: Annotated[NvlinkSpec | None, _JOINED] = None
    """links between GPUs; none: over PCIe"""
    page_fault: PageFaultSpec
    sources: dict[str, str] = Field(default_factory=dict)

    def with_gpu_memory(self, size_bytes: int) -> SystemSpec:
        """Return the machine with so much memory on each GPU, all of it for tensors."""
        beside = {"memory": size_bytes, "context_memory": 0, "workspace_memory": 0}
        return self.model_copy(update={"gpu": self.gpu.model_copy(update=beside)})

    def display(self) -> Mapping[str, str]:
        """Return the machine in numbers."""
        count = f"{self.gpu.count} x " if self.gpu.count > 1 else ""
        memory = rounded_bytes(self.gpu.memory)
        rates = dict.fromkeys((format_rate(self.pcie.inward), format_rate(self.pcie.outward)))
        tiers = (f"{tier.name} {rounded_bytes(tier.capacity)}" for tier in self.all_tiers)
        return {
            "name": self.name,
            "GPU": f"{count}{self.gpu.name or 'any'}, {memory}",
            "link": " in, ".join(rates) + (" out" if len(rates) > 1 else ""),
            "tiers": ", ".join(tiers),
        }

    @quantities.required
    def _links_form_a_tree(self) -> Iterator[str]:
        for number, link in enumerate(self.pcie.shared):
            seen, count = self.pcie.shared[:number], self.gpu.count
            for gpu in link.gpus:
                if not 0 <= gpu < count:
                    allowed = f"0 to {count - 1} (gpu.count is {count})"
                    yield f"pcie.shared: link '{link.name}' names GPU {gpu}; allowed: {allowed}"
            for other in seen:
                common = set(link.gpus) & set(other.gpus)
                if common and common not in (set(link.gpus), set(other.gpus)):
                    both = f"pcie.shared: links '{other.name}' and '{link.name}'"
                    yield f"{both} overlap without one containing the other; allowed: a tree"
            if any(other.name == link.name for other in seen):
                yield f"pcie.shared: two links are called '{link.name}'; allowed: unique names"

    @model_validator(mode="before")
    @classmethod
    def _tiers_may_describe_sections(cls, data: Any) -> Any:
        tiers = data.get("tiers") if isinstance(data, Mapping) else None
        return sections_of_tiers(data) if isinstance(tiers, list | tuple) else data

    @quantities.required
    def _tiers_hang_somewhere(self) -> Iterator[str]:
        links = [link.name for link in self.pcie.shared]
        if self.ssd is None and "ssd" in (self.tiers or ("ssd",)):
            yield "ssd: found nothing (the key is missing); allowed: a mapping, or tiers without it"
        behind = None if self.ssd is None else self.ssd.behind
        if behind is not None and behind not in links:
            allowed = choices_text(links) or "none, as there are no shared links"
            yield f"ssd.behind: found '{behind}'{nearest(behind, links)}; allowed: {allowed}"
        points = (*links, *self.sockets, *(f"gpu{gpu}" for gpu in range(self.gpu.count)))
        for number, tier in enumerate(self.all_tiers):
            problem = self._problem(tier, self.all_tiers[:number], points)
            if problem:
                yield f"tiers.{number}.{problem}"

    def _problem(self, tier: Tier, faster: Sequence[Tier], points: Sequence[str]) -> str:
        """Say what is wrong with a tier next to others; ``points`` are the names of where it may hang."""
        at, name = tier.at, tier.name
        if at is not None and at not in points:
            allowed = f"{choices_text(points)}, or nothing for the root complex"
            return f"at: found '{at}'{nearest(at, points)}; allowed: {allowed}"
        if tier.key in [other.key for other in faster]:
            return f"name: found '{name}' again; allowed: another name"
        if name in ("host", "ssd") and (name == "ssd") != (tier.kind == "ssd"):
            return f"name: found '{name}' for a tier of kind '{tier.kind}'; allowed: another name"
        hangs_on_gpu = at in [f"gpu{gpu}" for gpu in range(self.gpu.count)]
        if hangs_on_gpu and not (tier.read_bandwidth and tier.write_bandwidth):
            return "read: found no rates of a tier that hangs on a GPU; allowed: read and write"
        return ""

    @property
    def sockets(self) -> Mapping[str, tuple[int, ...]]:
        """GPUs of every socket by name: its own, and socket0, socket1, ...; without sockets, all on one."""
        groups = [socket.gpus for socket in self.host.sockets] or [tuple(range(self.gpu.count))]
        named = {socket.name: socket.gpus for socket in self.host.sockets}
        return named | {f"socket{number}": gpus for number, gpus in enumerate(groups)}

    @property
    def kinds(self) -> Tiers:
        """Kinds of the memory tiers by name, fastest first."""
        return {tier.name: tier.kind for tier in self.all_tiers}

    @property
    def all_tiers(self) -> tuple[Tier, ...]:
        """The memory tiers below GPU memory, fastest first."""
        return tuple(self._tier(index, entry) for index, entry in enumerate(self.tiers or ("host", "ssd")))

    def _tier(self, index: int, entry: TierEntry) -> Tier:
        name = entry if isinstance(entry, str) else entry.name
        place, host = located(index, name), self.host
        if entry == "host":
            return Tier(place, name, "memory", host.memory, kernel_access=host.kernel_access)
        if isinstance(entry, MemoryTierSpec):
            numbers = entry.capacity, entry.read, entry.write, entry.latency, entry.latency
            return Tier(place, name, "memory", *numbers, entry.at, kernel_access=entry.kernel_access)
        if not isinstance(entry, str):
            return ssd_tier(place, name, entry.drive, entry.at)
        if self.ssd is None:
            raise InvariantError("a system without an SSD has a tier for it")
        return ssd_tier(place, name, self.ssd)

    @quantities.required
    def _every_gpu_hangs_on_one_socket(self) -> Iterator[str]:
        hung = [gpu for socket in self.host.sockets for gpu in socket.gpus]
        count = self.gpu.count
        if hung and sorted(hung) != list(range(count)):
            allowed = f"each of 0 to {count - 1} once (gpu.count is {count})"
            yield f"host.sockets: found GPUs {sorted(hung)}; allowed: {allowed}"
        if self.host.inter_socket_bandwidth is not None and len(self.host.sockets) < 2:
            yield "host.inter_socket_bandwidth: found without several sockets; allowed: with them"

    @quantities.required
    def _places_have_names_of_their_own(self) -> Iterator[str]:
        own = [socket.name for socket in self.host.sockets]
        given = [f"socket{number}" for number, name in enumerate(own or [""]) if name != f"socket{number}"]
        links = [link.name for link in self.pcie.shared]
        names = Counter([*own, *links, *given, *(f"gpu{gpu}" for gpu in range(self.gpu.count))])
        for name in (*own, *links):
            if names[name] > 1:
                section = "host.sockets" if name in own else "pcie.shared"
                problem = f"{section}: found the name '{name}', which another place has"
                places = "socket (also socket0, socket1, ...), shared link or GPU (gpu0, gpu1, ...)"
                yield f"{problem}; allowed: a name that no {places} has"


_PUBLISHED = "with a behaviour of the published simulator"


def published_drive(system: SystemSpec) -> SsdSpec:
    """Return the SSD of a machine like that of the published simulator.

    It has host memory and an SSD's rates as tiers, and links of one bandwidth and no cost of copies. Raises
    ConfigError for any other.
    """
    names = [tier.name for tier in system.all_tiers]
    if names != ["host", "ssd"] or not isinstance(system.ssd, SsdSpec):
        found = f"tiers {', '.join(names)} {_PUBLISHED}"
        raise ConfigError.at("compat", found, "host and an ssd of model 'link'")
    if system.ssd.drives > 1:
        raise ConfigError.at("compat", f"{system.ssd.drives} drives {_PUBLISHED}", 1)
    for name in ("requests", "write_cache"):
        if getattr(system.ssd, name) is not None:
            found = f"{_PUBLISHED}, which knows one rate of the drive"
            raise ConfigError.at(f"system.ssd.{name}", found, "null with it")
    for link in (system.pcie, *system.pcie.shared):
        for name in ("to_device", "from_device", "duplex", "per_copy"):
            if getattr(link, name):
                raise ConfigError.at("compat", f"{name} of a link {_PUBLISHED}", "its bandwidth alone")
    return system.ssd
