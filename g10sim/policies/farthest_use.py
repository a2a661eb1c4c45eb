"""Victims for designs without unified memory that have run out of GPU memory."""

from __future__ import annotations

from g10sim.policies.base import PolicyView


def farthest_idle(view: PolicyView) -> int | None:
    """Return the tensor on the GPU whose next use is farthest away (Belady), of equal ones the largest.

    None where every tensor on the GPU is in use or in transfer.
    """
    idle = [
        tensor.id
        for tensor in view.trace.tensors
        if view.is_whole(tensor.id) and not view.is_needed(tensor.id)
    ]
    return max(
        idle, key=lambda tensor: (view.next_use(tensor), view.size_bytes(tensor), -tensor), default=None
    )
