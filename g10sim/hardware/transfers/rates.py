"""Rates of flows and messages: who has how much of which link."""

from __future__ import annotations

from collections.abc import Hashable
from functools import partial
from itertools import count as counter
from typing import Final

from g10sim.hardware.counts import GPU
from g10sim.hardware.flash.pool import CachedPort, SsdPort
from g10sim.hardware.links import Link, Message, Share, Topology, share_max_min, take_all, take_links
from g10sim.hardware.transfers.flows import DEMAND, EVICT, PREFETCH, Flow

_KEPT: Final = 4096
"""Rates of flows together that are kept: few flows share links, and mostly they are as large as others."""


class Rates:
    """Shares links: demanded pages first, planned evictions next, prefetches last.

    ``service`` says how links serve what is of equal rank: fairly, in the order of age, or by deadline.
    """

    def __init__(self, topology: Topology, service: str, gpus: int, ssds: list[SsdPort | CachedPort]) -> None:
        self.topology, self._service, self._ssds = topology, service, ssds
        self.is_fair = service == "fair"
        """True if what is of equal rank shares links evenly."""
        self._turns_per_cycle = 2 * gpus
        self._orders = counter(1)
        self.turns = [0] * gpus
        """Turns that each GPU's copies have taken."""
        self._now = 0
        self._known: dict[Hashable, list[tuple[int, Link | None]]] = {}
        self.are_separable = not ssds and not topology.has_duplex
        """True if flows that share no link have rates that do not depend on each other."""

    def order_of_message(self, now: int) -> int:
        """Return when the turn of a message comes that is sent now."""
        return now * self._turns_per_cycle if self._service == "deadline" else next(self._orders)

    def follow_from_links(self, flows: list[Flow]) -> bool:
        """Return whether rates depend neither on what drives do nor on when flows were seen first."""
        if not self.is_fair or not self._ssds:
            return self.is_fair
        return not any(ssd.serves(flow.source, flow.target) for flow in flows for ssd in self._ssds)

    def share(self, flows: list[Flow], messages: list[Message], now: int) -> None:
        """Give every flow and message its rate."""
        self._now = now
        if not messages and (not flows or self.follow_from_links(flows)):
            for ssd in self._ssds:
                ssd.rest()
            if len(flows) > 1:
                self._share_as_before(flows)
            elif flows:
                take_links(flows[0])
            return
        share = partial(self._share_links, flows, messages)
        for ssd in self._ssds:
            share = partial(ssd.share, share)
        share()

    def _share_as_before(self, flows: list[Flow]) -> None:
        """Give flows the rates of others that shared the same links alike; most of them have come before."""
        alike = tuple([(one.lane.site.job, *one.links, one.rank, one.limit, one.follows) for one in flows])
        known = self._known.get(alike)
        if known is not None:
            for flow, (rate, bottleneck) in zip(flows, known, strict=True):
                flow.rate, flow.bottleneck = rate, bottleneck
            return
        self._share_links(flows, [])
        if len(self._known) == _KEPT:
            self._known.clear()
        self._known[alike] = [(flow.rate, flow.bottleneck) for flow in flows]

    def _share_links(self, flows: list[Flow], messages: list[Message]) -> None:
        """Give every flow its rate: demanded ones first, then planned evictions, then prefetches."""
        if messages or not self.are_separable:
            self._free_links()
        else:
            for flow in flows:
                for link in flow.links:
                    link.left = link.capacity
        if self.topology.has_duplex and self.is_fair:
            self._split_directions(flows, messages)
        accesses = [message for message in messages if message.is_access]
        if accesses:
            self._serve_kernels(accesses, flows, messages)
        ranked: list[list[Flow]] = [[], [], []]
        for flow in flows:
            ranked[flow.rank].append(flow)
        self._share(ranked[DEMAND], [])
        self._share(ranked[EVICT], [message for message in messages if not message.is_access])
        self._limit_followers(ranked[EVICT], [flow for flow in ranked[PREFETCH] if flow.follows])
        self._share(ranked[PREFETCH], [])
        for access in accesses:
            access.take_more()

    def _serve_kernels(self, accesses: list[Message], flows: list[Flow], messages: list[Message]) -> None:
        """Give kernels that use memory where it lies their fair part next to copies of all ranks."""
        shares = [*flows, *messages]
        before = {link: link.left for share in shares for link in share.links}
        share_max_min(shares)
        for link, left in before.items():
            link.left = left
        for access in accesses:
            access.use_links()

    def _free_links(self) -> None:
        self.topology.reset()
        for ssd in self._ssds:
            ssd.limit()

    def _split_directions(self, flows: list[Flow], messages: list[Message]) -> None:
        """Share what limits both directions of a link evenly: ranks order the copies of one direction."""
        share_max_min([*flows, *messages])
        shares = self.topology.full_directions(rounding=len(flows) + len(messages))
        self._free_links()
        for link, used in shares:
            link.left = min(link.left, used)

    def _share(self, flows: list[Flow], messages: list[Message]) -> None:
        """Give flows of equal rank their rates, in the order or fairness that the links serve them in."""
        if not flows and not messages:
            return
        if self.is_fair:
            share_max_min([*flows, *messages])
            return
        orders = self._turns_of(flows)
        ordered: list[tuple[int, int, Share]] = [
            (order, flow.lane.gpu, flow) for order, flow in zip(orders, flows, strict=True)
        ]
        ordered += [(message.order, -1, message) for message in messages]
        for *_, share in sorted(ordered, key=lambda entry: entry[:2]):
            take_all(share)

    def _turns_of(self, flows: list[Flow]) -> list[int]:
        """Return when the turns of flows come; those of one GPU that are due at the same cycle keep order."""
        orders = [self._order(flow) for flow in flows]
        if self._service == "first_come":
            return orders
        cycles = [order // self._turns_per_cycle for order in orders]
        due = [(flow.lane.gpu, cycle) for cycle, flow in zip(cycles, flows, strict=True)]
        turns: dict[tuple[int, int], list[int]] = {}
        for order, key in sorted(zip(orders, due, strict=True), reverse=True):
            turns.setdefault(key, []).append(order)
        return [turns[key].pop() for key in due]

    def _order(self, flow: Flow) -> int:
        """Return when a flow's turn comes: by age, or by when its tensor is needed (what leaves: at once).

        Those that are needed at the same cycle take turns: the first of every GPU in the order of the GPUs,
        the second in the opposite order, and so on; odd ones before even ones. So the turns of some GPUs are
        the same whoever else is there.
        """
        run, due, gpu = flow.run, flow.lane.site.due, flow.lane.gpu
        if not run.stamp:
            if self._service == "first_come":
                run.stamp = next(self._orders)
            else:
                cycle = self._now if due is None or flow.source is GPU else due(run.tensor, self._now)
                turns = self._turns_per_cycle
                run.stamp = max(1, cycle) * turns + (turns - 1 - gpu if self.turns[gpu] % 2 else gpu)
                self.turns[gpu] += 1
        return run.stamp

    @staticmethod
    def _limit_followers(evictions: list[Flow], followers: list[Flow]) -> None:
        """Share the rate of each job's planned evictions among its prefetches that wait for their room."""
        for flow in followers:
            site = flow.lane.site
            emptied = sum(other.rate for other in evictions if other.lane.site is site)
            rivals = sum(other.lane.site is site for other in followers)
            flow.limit = max(1, emptied // rivals)
