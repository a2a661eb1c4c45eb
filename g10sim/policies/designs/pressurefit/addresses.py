"""Memory that the tensors of a plan span if each has one address as long as it is on the GPU."""

from __future__ import annotations

from collections import defaultdict
from math import gcd

from g10sim.analysis.pools.placement import Block, place_blocks
from g10sim.policies.designs.pressurefit.replay import Replay
from g10sim.policies.designs.pressurefit.tasks import Program


def extent_bytes(program: Program, replay: Replay) -> int:
    """Return the bytes from the first to the last address of a plan that was replayed.

    A tensor takes memory from when its copy in starts, or its task, until it is gone. What one task alone
    needs is one block. The largest blocks come first, each at the lowest free address
    (als244/shadowspill, docs/architecture/physical-admission.md); all addresses are multiples of what all
    sizes are.
    """
    gaps, sizes, period = program.gaps, program.sizes, int(replay.cycles)
    cut = defaultdict[int, list[int]](list)
    for number in sorted(replay.arrivals, key=lambda number: gaps[number].start):
        cut[gaps[number].tensor].append(number)
    spans = [(replay.started[i], replay.ended[i], int(size)) for i, size in enumerate(program.scratch)]
    for tensor, first, last in program.stays:
        own = [number for number in cut[tensor] if first < gaps[number].start <= last]
        starts = [replay.started[first], *(replay.came_at[number] for number in own)]
        ends = [*(replay.gone_at[number] for number in own), replay.ended[last]]
        spans += [(start, end, sizes[tensor]) for start, end in zip(starts, ends, strict=True)]
    for tensor in filter(cut.get, program.lasting):
        own = cut[tensor]
        spans += [
            (replay.came_at[number], replay.gone_at[following], sizes[tensor])
            for number, following in zip(own, own[1:] + own[:1], strict=True)
        ]
    always = sum(sizes[tensor] for tensor in program.lasting if not cut[tensor])
    blocks = [
        Block(int(start), int(start) + ((int(end) - int(start)) % period or period), size)
        for start, end, size in spans
        if size
    ]
    unit = gcd(*(block.size_bytes for block in blocks)) or 1
    return always + place_blocks(blocks, period=period, fit="first", alignment_bytes=unit).footprint_bytes
