"""One case, simulated by the package and by the slow model, and how far apart they are."""

from slow_paging import SlowModel, StuckError

from g10sim.errors import CapacityError
from g10sim.policies.designs.base_uvm import BaseUvm
from g10sim.policies.designs.deepum import DeepUm
from g10sim.policies.interface.moves import Evict, Fetch, Free
from g10sim.policies.interface.policy import Policy
from g10sim.policies.planning.hash_order import hash_order
from g10sim.sim.engine import run
from g10sim.trace.workload import Job, Workload

STUCK = "a kernel waits indefinitely"
TIERS = ("host", "ssd")


class Scripted(Policy):
    """Asks for moves given by kernel."""

    name = "scripted"

    def __init__(self, *, moves):
        self.moves = moves

    def on_kernel_start(self, view):
        for name, *rest in self.moves.get(view.kernel, ()):
            yield {"fetch": Fetch, "evict": Evict, "free": Free}[name](*rest)


def moves_of(plan):
    """Moves that a plan without delays asks for, by kernel."""
    moves = {}
    for planned in plan.moves:
        assert not planned.delay_cycles
        move = planned.move
        target = [move.target] if isinstance(move, Evict) else []
        moves.setdefault(planned.kernel, []).append((move.name, move.tensor, *target))
    return moves


def simulated(case, iterations=2):
    """Cycles, faults and moved pages of every iteration by the package, with every invariant tested."""
    policy = {
        "base_uvm": BaseUvm,
        "deepum": lambda: DeepUm(look_ahead=case.look_ahead),
        "scripted": lambda: Scripted(moves=case.moves),
    }[case.policy]()
    workload = Workload((Job(case.trace, iterations=iterations),))
    try:
        records = run(workload, case.system, policy, case.behaviour, check=True)
    except CapacityError:
        return STUCK
    return [_row(record, case.system.gpu.page_size) for record in records.iterations]


def _row(record, page):
    row = {"cycles": record.end - record.start, "faults": record.page_faults}
    for tier in TIERS:
        row["gpu", tier] = record.traffic[f"gpu_to_{tier}_bytes"] // page
        row[tier, "gpu"] = record.traffic[f"{tier}_to_gpu_bytes"] // page
    return row


def modelled(case, iterations=2):
    """The same by the slow model."""
    moves = {
        "base_uvm": lambda kernel: (),
        "deepum": _deepum(case),
        "scripted": lambda k: case.moves.get(k, ()),
    }
    model = SlowModel(
        case.trace, case.system, case.behaviour, moves[case.policy], drops_dead=case.policy == "deepum"
    )
    try:
        return model.run(iterations)
    except StuckError:
        return STUCK


def _deepum(case):
    """DeepUM+ fetches for the kernel so many later, and protects what the kernels before that one use."""
    kernels, ahead = case.trace.kernels, case.look_ahead

    def moves(now):
        window = {
            tensor
            for later in range(min(ahead, len(kernels)))
            for tensor in kernels[(now + later) % len(kernels)].tensors
        }
        yield "protect", window
        for tensor in hash_order(kernels[(now + ahead) % len(kernels)].tensors):
            yield "fetch", tensor

    return moves


def gap(case, iterations=2):
    """Largest relative difference of any iteration's time, faults, or pages moved in a direction.

    Counts of pages may differ by two, which for few pages is more than a share.
    """
    found, expected = simulated(case, iterations), modelled(case, iterations)
    if STUCK in (found, expected):
        return 0.0 if found == expected else 1.0
    worst = 0.0
    for ours, theirs in zip(found, expected, strict=True):
        for column, value in theirs.items():
            slack = 0 if column == "cycles" else 2
            worst = max(worst, (abs(ours[column] - value) - slack) / max(1, value))
    return worst
