"""The table of moves and the kinds of GPU memory that can do them, in the page of policies."""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

from tables import table

from g10sim.config.presets import load_system
from g10sim.errors import PolicyError
from g10sim.policies.interface.contract import MemoryKind, Move, registered_moves
from g10sim.policies.interface.moves import (
    Access,
    Await,
    Drop,
    Evict,
    Fetch,
    Free,
    KeepUncompressed,
    Protect,
    Store,
)
from g10sim.policies.interface.plan import MigrationPlan, Planned
from g10sim.policies.interface.policy import Policy, Requirements
from g10sim.sim.engine import run
from g10sim.trace.model import Device, TensorKind
from g10sim.trace.synthetic import TraceBuilder
from g10sim.trace.workload import Job, Workload

Addresses: TypeAlias = Literal["pooled", "own"]
_BEGIN, _END = "<!-- moves -->\n", "<!-- end of moves -->\n"
_KERNEL, _READER, _TENSOR, _DEAD, _CLEAN = 2, 3, 0, 1, 2
_EXAMPLES = {
    "Fetch(tensor)": Fetch(_TENSOR),
    "Evict(tensor, target)": Evict(_TENSOR, "ssd"),
    "Evict(tensor, size_bytes=n)": Evict(_TENSOR, size_bytes=4096),
    "Evict(tensor, until=kernel)": Evict(_TENSOR, until=_KERNEL),
    "Evict(tensor, density=d)": Evict(_TENSOR, density=0.5),
    "Evict(tensor, is_clean=True)": Evict(_CLEAN, is_clean=True),
    "Free(tensor)": Free(_DEAD),
    "Drop(tensor)": Drop(_TENSOR),
    "Access(tensor, tier)": Access(_TENSOR),
    "Protect(tensors)": Protect(frozenset({_TENSOR})),
    "Await(tensors)": Await(),
    "Store(tensor, tier)": Store(_CLEAN),
    "KeepUncompressed()": KeepUncompressed(),
}


class _Does(Policy):
    """Carries out one move."""

    name = "does"

    def __init__(self, move: Move, memory: MemoryKind, addresses: Addresses) -> None:
        self._move = move
        self.requirements = Requirements(placement=memory, addresses=addresses)

    requirements = Requirements()

    def plan_job(self, job: Job, *_: object) -> MigrationPlan:
        """Return a plan of the move."""
        kernel = _READER if isinstance(self._move, Access) else _KERNEL
        return MigrationPlan((Planned(kernel, self._move),))


def page(text: str) -> str:
    """Return the page with the table as it is now: each move is tried on each kind of memory."""
    before, _, rest = text.partition(_BEGIN)
    _, _, after = rest.partition(_END)
    own = {move for move in registered_moves().values() if move.__module__ == Fetch.__module__}
    missing = own - {type(move) for move in _EXAMPLES.values()}
    if missing:
        raise ValueError(f"found no example of {missing}; allowed: one for every move")
    kinds = get_args(MemoryKind)
    rows = [
        [f"`{text}`", f"`{move.name}`", *(_answer(move, kind) for kind in kinds)]
        for text, move in _EXAMPLES.items()
    ]
    return before + _BEGIN + "\n" + table(("move", "in plan files", *kinds), (), rows) + "\n" + _END + after


def _answer(move: Move, memory: MemoryKind) -> str:
    if _runs(move, memory, "pooled"):
        return "yes"
    return "with own addresses" if _runs(move, memory, "own") else "refused"


def _runs(move: Move, memory: MemoryKind, addresses: Addresses) -> bool:
    builder = TraceBuilder("moves")
    kept, dead = (builder.tensor(name, 4096, TensorKind.ACTIVATION) for name in ("kept", "dead"))
    for number, (reads, writes) in enumerate(([[], [kept, dead]], [[dead], []], [[], []], [[kept], []])):
        builder.kernel(f"Kernel{number}", 1000, reads, writes)
    clean = builder.tensor("clean", 4096, TensorKind.WEIGHT, persistent=True)
    if isinstance(move, Store) and memory in move.memories:
        builder.kernel("Step", 1000, [clean], [clean], device=Device.CPU)
    workload = Workload((Job(builder.build()),))
    cpu = {"optimizer_rate": "1 G/s"}
    system = load_system({"preset": "a100-40g-pcie3-znand", "host": {"kernel_access": {}}, "cpu": cpu})
    try:
        run(workload, system, _Does(move, memory, addresses))
    except PolicyError:
        return False
    return True
