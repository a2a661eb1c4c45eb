"""Rates of flows on links, and the cost of page faults, written from docs/model.md alone."""

import math
from functools import cache

EPSILON = 1e-9


@cache
def fair_rates(capacities, ranks):
    """Rates of flows that share links max-min fair, one rank after another, each getting what is left.

    ``capacities`` are (link, bytes/second); each of ``ranks`` holds (links, limit) of its flows.
    """
    left = dict(capacities)
    return [_fill(flows, left, dict(capacities)) for flows in ranks]


def _fill(flows, left, sizes):
    """Let all rates rise together; a flow stops at its limit or when one of its links is full."""
    rates = [0.0] * len(flows)
    rising = set(range(len(flows)))
    while rising:
        users = {}
        for flow in rising:
            for link in flows[flow][0]:
                users[link] = users.get(link, 0) + 1
        rise = min(flows[flow][1] - rates[flow] for flow in rising)
        rise = min([rise, *(left[link] / count for link, count in users.items())])
        for flow in rising:
            rates[flow] += rise
        for link, count in users.items():
            left[link] -= rise * count
        full = {link for link in users if left[link] <= EPSILON * sizes[link]}
        rising -= {
            flow
            for flow in rising
            if rates[flow] >= flows[flow][1] * (1 - EPSILON) or full.intersection(flows[flow][0])
        }
    return rates


@cache
def rates_in_order(capacities, ranks):
    """Rates of flows of which each takes all that its links have left for it, in the order given."""
    left = dict(capacities)
    found = []
    for flows in ranks:
        rates = []
        for links, limit in flows:
            rate = max(0.0, min([limit, *(left[link] / links.count(link) for link in links)]))
            for link in links:
                left[link] -= rate
            rates.append(rate)
        found.append(rates)
    return found


@cache
def fault_batches(pages, group, leaf, batch, threshold):
    """Batches of faults in which a range of so many pages comes in; all arguments but the last in pages."""
    if batch is None:
        return math.ceil(pages / group)
    whole, rest = divmod(pages, group)
    return whole * _block_batches(group, group, leaf, batch, threshold) + _block_batches(
        rest, group, leaf, batch, threshold
    )


@cache
def _block_batches(pages, group, leaf, batch, threshold):
    """Batches for the first pages of one group: every page is looked at by itself."""
    here, batches = set(), 0
    while not here.issuperset(range(pages)):
        missing = [page for page in range(group) if page not in here]
        for fault in missing[:batch]:
            first = fault // leaf * leaf
            here.update(range(first, first + leaf))
        size = 2 * leaf
        while size <= group:
            for first in range(0, group, size):
                subtree = range(first, first + size)
                if sum(page in here for page in subtree) > threshold * size:
                    here.update(subtree)
            size *= 2
        batches += 1
    return batches
