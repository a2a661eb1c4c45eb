"""Links with capacities, and how flows share them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from g10sim.config.links import LinkSpec
from g10sim.config.system import SystemSpec
from g10sim.config.tiers import Tier
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
    """Share of one flow: ``rate`` in bytes/second and the link that limits it (None: its own limit)."""

    __slots__ = ("bottleneck", "limit", "links", "rate")

    def __init__(self, links: list[Link], limit: int) -> None:
        self.links = links
        self.limit = limit
        self.rate = 0
        self.bottleneck: Link | None = None

    def use_links(self) -> None:
        """Take the flow's rate from its links."""
        for link in self.links:
            link.left -= self.rate

    def take_more(self) -> None:
        """Let the flow have what its links have left, up to its limit."""
        more = min((max(0, link.left) // self.links.count(link) for link in self.links), default=0)
        if self.limit:
            more = min(more, self.limit - self.rate)
        self.rate += more
        for link in self.links:
            link.left -= more


class Message(Share):
    """Bytes on their way between GPUs, or between a processor and memory, with which no pages move.

    An access is that of a running kernel to tensors where they lie, or of the host's workers to its memory.
    """

    __slots__ = ("is_access", "order", "work")

    def __init__(
        self, links: list[Link], work: int, order: int, limit: int = 0, *, is_access: bool = False
    ) -> None:
        super().__init__(links, limit)
        self.work, self.order, self.is_access = work, order, is_access

    @property
    def is_done(self) -> bool:
        """Return whether all of it has arrived."""
        return self.work <= 0


class _Edge:
    """A link of the tree: what crosses it in each direction, and what starting a copy takes (picoseconds).

    Both directions cross what limits them together.
    """

    def __init__(self, name: str, spec: LinkSpec, *, shared: bool = False) -> None:
        self.both = None if spec.duplex is None else Link(f"{name} both ways", spec.duplex, shared=shared)
        both = [] if self.both is None else [self.both]
        self._inward = [Link(f"{name} in", spec.inward, shared=shared), *both]
        self._outward = [Link(f"{name} out", spec.outward, shared=shared), *both]
        self.directions = self._inward[0], self._outward[0]
        self.per_copy = spec.per_copy or 0

    def way(self, *, inward: bool) -> list[Link]:
        """Links that bytes cross towards the GPUs below, or away from them."""
        return self._inward if inward else self._outward

    def is_on(self, path: list[Link]) -> bool:
        """Return whether a path crosses it in one direction or the other."""
        return any(link in path for link in self.directions)


class _Spot(NamedTuple):
    """A place in the tree: the edges above it, and its socket and its GPU, if it has them."""

    edges: Sequence[_Edge]
    socket: int | None = None
    gpu: int | None = None


def _ways(edges: Iterable[_Edge], *, inward: bool) -> list[Link]:
    return [link for edge in edges for link in edge.way(inward=inward)]


class Topology:
    """The tree of links of a system and the path of every kind of transfer."""

    def __init__(self, system: SystemSpec) -> None:
        gpus = range(system.gpu.count)
        self._below = {spec.name: frozenset(spec.gpus) for spec in system.pcie.shared}
        self._shared = {spec.name: _Edge(spec.name, spec, shared=True) for spec in system.pcie.shared}
        self._edges = [
            [
                _Edge(f"GPU {gpu}", system.pcie),
                *(self._shared[n] for n, below in self._below.items() if gpu in below),
            ]
            for gpu in gpus
        ]
        self._mapping = [Link(f"GPU {gpu} page mapping", system.gpu.allocation_rate) for gpu in gpus]
        self._place_sockets(system)
        nvlink = system.nvlink
        self._peer_in, self._peer_out = (
            [] if nvlink is None else [Link(f"GPU {gpu} NVLink {way}", nvlink.bandwidth) for gpu in gpus]
            for way in ("in", "out")
        )
        self.ports: dict[Location, tuple[Link | None, Link | None]] = {}
        """Ports of every tier that reads leave by, and that writes come in by; None where it has no limit."""
        self._paths: dict[tuple[int, Location, bool], list[Link]] = {}
        self._per_copy: dict[tuple[int, Location], int] = {}
        edges = dict.fromkeys(edge for path in self._edges for edge in path)
        self._duplex = [edge for edge in edges if edge.both is not None]
        self.has_duplex = bool(self._duplex)
        """True if something limits both directions of a link together."""
        self._costly = [edge for edge in edges if edge.per_copy]
        for tier in system.all_tiers:
            self._place_tier(tier)
        trees = [_ways(edges, inward=inward) for inward in (True, False) for edges in self._edges]
        others = self._mapping, self._memories, self._between, self._peer_in, self._peer_out
        paths = [*trees, *others, *self._paths.values()]
        self.links = tuple(dict.fromkeys(link for path in paths for link in path))

    def _place_sockets(self, system: SystemSpec) -> None:
        """Give every socket's memory a link, which reading and writing share, where it has a limit."""
        host = system.host
        names = [socket.name for socket in host.sockets]
        self._sockets = dict(system.sockets)
        groups = [self._sockets[name] for name in names] or [self._sockets["socket0"]]
        self.sockets = {gpu: number for number, group in enumerate(groups) for gpu in group}
        """Socket that each GPU hangs on."""
        self._memories: list[Link] = []
        if host.memory_bandwidth is not None:
            titles = [f"{name} memory" for name in names] or ["host memory"]
            self._memories = [Link(title, host.memory_bandwidth, shared=True) for title in titles]
        self._between: list[Link] = []
        if host.inter_socket_bandwidth is not None:
            rate = host.inter_socket_bandwidth
            self._between = [Link(f"from {name}", rate, shared=True) for name in names]

    def _place_tier(self, tier: Tier) -> None:
        """Find the links between every GPU and a tier, its ports included."""
        rates = (("read", tier.read_bandwidth), ("write", tier.write_bandwidth))
        read, write = (
            Link(f"{tier.title} {way}", rate, shared=True) if rate else None for way, rate in rates
        )
        self.ports[tier.place] = read, write
        bounce = None if tier.drive is None or tier.drive.path != "host" else tier.drive.bounce
        buffer = [Link("bounce buffer", bounce.bandwidth, shared=True)] if bounce is not None else []
        for gpu in range(len(self._mapping)):
            for port, inward in ((read, True), (write, False)):
                path = self._path(gpu, tier, buffer, inward=inward)
                self._paths[gpu, tier.place, inward] = [*path, *([port] if port else [])]
            costs = (edge.per_copy for edge in self._costly if edge.is_on(path))
            self._per_copy[gpu, tier.place] = sum(costs)

    def _path(self, gpu: int, tier: Tier, buffer: list[Link], *, inward: bool) -> list[Link]:
        """Links between a GPU and a tier: to its own socket's memory, or to where the tier hangs.

        Peer to peer, links above both are not crossed. Through a buffer in host memory all are, and bytes are
        written to that memory and read from it again.
        """
        if tier.name == "host":
            return self.to_root(gpu, inward=inward)
        there = self._spot_of(tier)
        if there.gpu == gpu:
            return []
        if there.gpu is not None:
            return self.between(there.gpu, gpu) if inward else self.between(gpu, there.gpu)
        if buffer and there.socket is None:
            beyond = _ways(there.edges, inward=not inward)
            return [*self.to_root(gpu, inward=inward), *self.memory(gpu), *buffer, *beyond]
        return self._way(self._spot(gpu), there, inward=inward)

    def _spot(self, gpu: int) -> _Spot:
        return _Spot(self._edges[gpu], self.sockets[gpu], gpu)

    def _spot_of(self, tier: Tier) -> _Spot:
        """Return where a tier hangs; a link, or the root of the tree, is near every socket."""
        if tier.at is None:
            return _Spot([])
        if tier.at in self._sockets:
            return _Spot([], self.sockets[self._sockets[tier.at][0]])
        if tier.at in self._below:
            below = self._below[tier.at]
            return _Spot([self._shared[name] for name, gpus in self._below.items() if below <= gpus])
        return self._spot(int(tier.at.removeprefix("gpu")))

    def _way(self, near: _Spot, far: _Spot, *, inward: bool) -> list[Link]:
        """Links between two spots, the near one's first, for bytes that go away from it or ``inward``.

        Those above both are not crossed: a switch passes peer traffic on (peer-to-peer access).
        """
        source, target = (far.socket, near.socket) if inward else (near.socket, far.socket)
        up = _ways([edge for edge in near.edges if edge not in far.edges], inward=inward)
        down = _ways([edge for edge in far.edges if edge not in near.edges], inward=not inward)
        if source is None or target is None or source == target:
            return [*up, *down]
        return [*up, *self._between[source : source + 1], *down]

    def memory(self, gpu: int) -> list[Link]:
        """Return the memory of a GPU's socket, where it has a limit."""
        return [self._memories[self.sockets[gpu]]] if self._memories else []

    def to_host(self, gpu: int, tier: Tier, *, back: bool = False) -> list[Link]:
        """Links from a tier to the memory of a GPU's socket, or ``back``: its port, and those above it."""
        port, socket = self.ports[tier.place][back], _Spot([], self.sockets[gpu])
        way = self._way(self._spot_of(tier), socket, inward=back)
        return [*([] if port is None else [port]), *way, *self.memory(gpu)]

    def between(self, source: int, target: int) -> list[Link]:
        """Links that bytes cross from one GPU to another, over NVLink or the tree of PCIe links."""
        if self._peer_out:
            return [self._peer_out[source], self._peer_in[target]]
        return self._way(self._spot(source), self._spot(target), inward=False)

    def own(self, gpu: int) -> tuple[Link, Link]:
        """Both directions of a GPU's own link."""
        return self._edges[gpu][0].directions

    def to_root(self, gpu: int, *, inward: bool) -> list[Link]:
        """Links between a GPU and the memory of its socket."""
        return [*_ways(self._edges[gpu], inward=inward), *self.memory(gpu)]

    def inward(self, gpu: int, source: Location) -> list[Link]:
        """Links that pages cross on their way in; new pages only need mapping."""
        return self._paths[gpu, source, True] if source else [self._mapping[gpu]]

    def outward(self, gpu: int, target: Location) -> list[Link]:
        """Links that pages cross on their way out; dropped pages cross none."""
        return self._paths[gpu, target, False] if target else []

    def restrict(self, place: Location, rates: Callable[[int, bool], Link]) -> None:
        """Let every path to and from a place cross one more link: ``rates(gpu, inward)``."""
        for (gpu, other, inward), path in self._paths.items():
            if other == place:
                path.append(rates(gpu, inward))
                self.links = (*self.links, path[-1])

    def per_copy(self, gpu: int, place: Location) -> int:
        """Picoseconds that starting one copy between a GPU and a place takes, summed over the links."""
        return self._per_copy.get((gpu, place), 0)

    def full_directions(self, rounding: int) -> list[tuple[Link, int]]:
        """Directions of links whose both directions together are full, with the rates used of each."""
        return [
            (link, link.capacity - link.left)
            for edge in self._duplex
            if edge.both is not None and edge.both.left <= rounding
            for link in edge.directions
        ]

    def reset(self) -> None:
        """Give every link its whole capacity back."""
        for link in self.links:
            link.left = link.capacity


def bandwidth_of(path: list[Link]) -> int:
    """Return the rate of an otherwise idle path, in bytes/second."""
    return min([link.capacity for link in path])


def share_max_min(shares: Sequence[Share]) -> None:
    """Give flows of equal rank max-min fair rates of what their links have left, and use it up.

    Progressive filling (Bertsekas and Gallager, Data Networks, 6.5.2): all rates rise together; a flow
    stops at its own limit or when one of its links is full. Rates are whole bytes/second, rounded down.
    """
    active = list(shares)
    if len(active) == 1:
        take_all(active[0])
        return
    while active:
        _count_users(active)
        level, bottleneck = _lowest_level(active)
        still: list[Share] = []
        for share in active:
            at_limit = bottleneck is None and 0 < share.limit <= level
            if at_limit or bottleneck in share.links:
                share.rate, share.bottleneck = level, bottleneck
                share.use_links()
            else:
                still.append(share)
        active = still


def _count_users(active: list[Share]) -> None:
    for share in active:
        for link in share.links:
            link.users = 0
    for share in active:
        for link in share.links:
            link.users += 1


def take_all(share: Share) -> None:
    """Give a flow that is alone, or comes first, all that its links have left, at most its limit."""
    narrowest, level, links = None, 0, share.links
    for link in links:
        left = link.left // links.count(link)
        if narrowest is None or left < level:
            narrowest, level = link, left
    if narrowest is None or (share.limit and share.limit <= level):
        share.rate, share.bottleneck = share.limit, None
    else:
        share.rate, share.bottleneck = level, narrowest
    for link in links:
        link.left -= share.rate


def take_links(share: Share) -> None:
    """Give a flow whose links carry nothing else all of them, at most its limit."""
    for link in share.links:
        link.left = link.capacity
    take_all(share)


def _lowest_level(active: list[Share]) -> tuple[int, Link | None]:
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
