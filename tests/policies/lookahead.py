"""A policy as an outsider writes one."""

from g10sim.policies.interface.moves import Fetch
from g10sim.policies.interface.policy import Policy


class LookAhead(Policy):
    """Prefetch the next kernels' tensors; evict what is used again last."""

    name = "lookahead"
    label = "Look-ahead"

    def __init__(self, *, depth: int = 2) -> None:
        self.depth = depth

    def on_kernel_start(self, view):
        kernels = view.trace.kernels
        coming = kernels[view.kernel + 1 : view.kernel + 1 + self.depth]
        return [Fetch(tensor) for kernel in coming for tensor in kernel.tensors]

    def choose_victims(self, view):
        resident = [
            t.id for t in view.trace.tensors if view.resident_bytes(t.id) and not view.is_needed(t.id)
        ]
        return sorted(resident, key=view.next_use, reverse=True)


class NotAPolicy:
    """Has a name and nothing else."""

    name = "not_a_policy"


class Picky(Policy):
    """Refuses its parameter."""

    name = "picky"

    def __init__(self, *, level: int = 1) -> None:
        if level > 3:
            raise ValueError(f"level: found {level}; allowed: at most 3")
        self.level = level
