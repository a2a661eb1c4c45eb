"""Links with capacities, and how flows share them."""

from __future__ import annotations

from collections.abc import Sequence

from g10sim.config.system import SystemSpec
from g10sim.records import Location


class Link:
    """One direction of a link (or a device's read or write port); capacity in bytes/second."""

    __slots__ = ("capacity", "left", "name", "shared", "users")

    def __init__(self, name: str, capacity: int, *, shared: bool = False) -> None:
        self.name = name
        self.capacity = capacity
        self.shared = shared
        self.left = capacity
        self.users = 0


class Share:
    """What one flow gets: ``rate`` in bytes/second and the link that limits it (None: its own limit)."""

    __slots__ = ("bottleneck", "limit", "links", "rate")

    def __init__(self, links: Sequence[Link], limit: int) -> None:
        self.links = links
        self.limit = limit
        self.rate = 0
        self.bottleneck: Link | None = None

    def stops_at(self, level: int, bottleneck: Link | None) -> bool:
        """Whether the flow can go no faster than ``level``: by its limit, or by a link that is now full."""
        if bottleneck is None:
            return bool(self.limit) and self.limit <= level
        return bottleneck in self.links


class Topology:
    """The tree of links of a system and the path of every kind of transfer."""

    def __init__(self, system: SystemSpec) -> None:
        gpus = range(system.gpu.count)
        link = system.pcie.bandwidth
        self._read = Link("SSD read", system.ssd.read_bandwidth, shared=True)
        self._write = Link("SSD write", system.ssd.write_bandwidth, shared=True)
        self._inward = [[Link(f"GPU {gpu} in", link)] for gpu in gpus]
        self._outward = [[Link(f"GPU {gpu} out", link)] for gpu in gpus]
        self._mapping = [Link(f"GPU {gpu} page mapping", system.gpu.allocation_rate) for gpu in gpus]
        for spec in system.pcie.shared:
            inward = Link(f"{spec.name} in", spec.bandwidth, shared=True)
            outward = Link(f"{spec.name} out", spec.bandwidth, shared=True)
            for gpu in spec.gpus:
                self._inward[gpu].append(inward)
                self._outward[gpu].append(outward)
        self._place_sockets(system)
        self._place_nvlink(system)
        self._place_ssd(system)
        paths = (link for path in (*self._inward, *self._outward) for link in path)
        beyond = [*self._memories, *self._between, *self._peer_in, *self._peer_out]
        beyond += self._bounce
        self.links = tuple(dict.fromkeys([self._read, self._write, *paths, *self._mapping, *beyond]))

    def _place_sockets(self, system: SystemSpec) -> None:
        """Give every socket's memory a link, which reading and writing share, where it has a limit."""
        host, gpus = system.host, range(system.gpu.count)
        groups = [socket.gpus for socket in host.sockets] or [tuple(gpus)]
        self._socket = {gpu: number for number, group in enumerate(groups) for gpu in group}
        self._memories: list[Link] = []
        if host.memory_bandwidth is not None:
            names = [f"{socket.name} memory" for socket in host.sockets] or ["host memory"]
            self._memories = [Link(name, host.memory_bandwidth, shared=True) for name in names]
        self._between: list[Link] = []
        if host.inter_socket_bandwidth is not None:
            rate = host.inter_socket_bandwidth
            self._between = [Link(f"from {socket.name}", rate, shared=True) for socket in host.sockets]

    def _place_nvlink(self, system: SystemSpec) -> None:
        self._peer_in: list[Link] = []
        self._peer_out: list[Link] = []
        if system.nvlink is not None:
            rate, gpus = system.nvlink.bandwidth, range(system.gpu.count)
            self._peer_in = [Link(f"GPU {gpu} NVLink in", rate) for gpu in gpus]
            self._peer_out = [Link(f"GPU {gpu} NVLink out", rate) for gpu in gpus]

    def _place_ssd(self, system: SystemSpec) -> None:
        """Find the links between every GPU and the SSD, which may hang below a switch of the tree."""
        ssd = system.ssd
        shared = {spec.name: frozenset(spec.gpus) for spec in system.pcie.shared}
        below = shared.get(ssd.behind or "")
        above = [name for name, gpus in shared.items() if below is not None and below <= gpus]
        self._bounce: list[Link] = []
        if ssd.path == "host" and ssd.bounce is not None:
            self._bounce = [Link("bounce buffer", ssd.bounce.bandwidth, shared=True)]
        self._from_ssd: list[list[Link]] = []
        self._to_ssd: list[list[Link]] = []
        for gpu in range(system.gpu.count):
            self._from_ssd.append(self._ssd_path(gpu, above, inward=True))
            self._to_ssd.append(self._ssd_path(gpu, above, inward=False))

    def _ssd_path(self, gpu: int, above: list[str], *, inward: bool) -> list[Link]:
        """Links between a GPU and the SSD, which hangs below the shared links ``above``.

        Peer to peer, links above both are not crossed. Through host memory all are, and bytes are written to
        that memory and read from it again.
        """
        own = self._inward[gpu] if inward else self._outward[gpu]
        port = self._read if inward else self._write
        up, down = (" out", " in") if inward else (" in", " out")
        everywhere = {link.name: link for path in (*self._inward, *self._outward) for link in path}
        names = {link.name for link in own}
        if self._bounce:
            far = [everywhere[name + up] for name in above]
            return [*own, *self._memory(gpu) * 2, *self._bounce, *far, port]
        far = [everywhere[name + up] for name in above if name + down not in names]
        near = [link for link in own if link.name.removesuffix(down) not in above]
        return [*near, *far, port]

    @property
    def ssd_read(self) -> Link:
        """The SSD's port that reads leave by."""
        return self._read

    @property
    def ssd_write(self) -> Link:
        """The SSD's port that writes come in by."""
        return self._write

    def _memory(self, gpu: int) -> list[Link]:
        return [self._memories[self._socket[gpu]]] if self._memories else []

    def between(self, source: int, target: int) -> list[Link]:
        """Links that bytes cross from one GPU to another, over NVLink or up and down the tree of PCIe links.

        Links above both are not crossed: a switch passes peer traffic on (peer-to-peer access).
        """
        if self._peer_out:
            return [self._peer_out[source], self._peer_in[target]]
        up = [link for link in self._outward[source] if link not in self._outward[target]]
        down = [link for link in self._inward[target] if link not in self._inward[source]]
        apart = self._socket[source] != self._socket[target]
        return [*up, *([self._between[self._socket[source]]] if apart and self._between else []), *down]

    def inward(self, gpu: int, source: Location) -> list[Link]:
        """Links that pages cross on their way in; new pages only need mapping."""
        if source is Location.NONE:
            return [self._mapping[gpu]]
        if source is Location.FLASH:
            return self._from_ssd[gpu]
        return [*self._inward[gpu], *self._memory(gpu)]

    def outward(self, gpu: int, target: Location) -> list[Link]:
        """Links that pages cross on their way out; dropped pages cross none."""
        if target is Location.NONE:
            return []
        if target is Location.FLASH:
            return self._to_ssd[gpu]
        return [*self._outward[gpu], *self._memory(gpu)]

    def path_bandwidth(self, gpu: int, source: Location) -> int:
        """Rate of an otherwise idle path into a GPU, in bytes/second."""
        return min(link.capacity for link in self.inward(gpu, source))

    def reset(self) -> None:
        """Give every link its whole capacity back."""
        for link in self.links:
            link.left = link.capacity


def share_max_min(shares: Sequence[Share]) -> None:
    """Give flows of equal rank max-min fair rates of what their links have left, and use it up.

    Progressive filling (Bertsekas and Gallager, Data Networks, 6.5.2): all rates rise together; a flow
    stops at its own limit or when one of its links is full. Rates are whole bytes/second, rounded down.
    """
    active = list(shares)
    if len(active) == 1:
        _take_all(active[0])
        return
    while active:
        _count_users(active)
        level, bottleneck = _lowest_level(active)
        still: list[Share] = []
        for share in active:
            if share.stops_at(level, bottleneck):
                share.rate, share.bottleneck = level, bottleneck
                for link in share.links:
                    link.left -= level
            else:
                still.append(share)
        active = still


def _count_users(active: Sequence[Share]) -> None:
    for share in active:
        for link in share.links:
            link.users = 0
    for share in active:
        for link in share.links:
            link.users += 1


def _take_all(share: Share) -> None:
    """Give a flow without rivals the least of what its links have left, at most its limit."""
    narrowest = min(share.links, key=lambda link: link.left // share.links.count(link), default=None)
    level = None if narrowest is None else narrowest.left // share.links.count(narrowest)
    if level is None or (share.limit and share.limit <= level):
        share.rate, share.bottleneck = share.limit, None
    else:
        share.rate, share.bottleneck = level, narrowest
    for link in share.links:
        link.left -= share.rate


def share_in_order(shares: Sequence[Share]) -> None:
    """Serve flows one after another: each takes all that its links have left for it."""
    for share in shares:
        _take_all(share)


def _lowest_level(active: Sequence[Share]) -> tuple[int, Link | None]:
    """Return the rate at which the first flow stops, and the link that stops it (None: its limit)."""
    level, bottleneck = -1, None
    for share in active:
        if share.limit and (level < 0 or share.limit < level):
            level, bottleneck = share.limit, None
    for share in active:
        for link in share.links:
            fair = link.left // link.users
            if level < 0 or fair < level:
                level, bottleneck = fair, link
    return level, bottleneck
