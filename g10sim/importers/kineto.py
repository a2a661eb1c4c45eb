"""Profiles of PyTorch (Kineto, ``export_chrome_trace``) with shapes and memory events.

A profile names no tensors. It records allocations and releases with their addresses, and the shapes of
operators' inputs, but not the allocation of an input. Births and deaths of tensors are therefore as recorded,
and inputs are matched by size (:mod:`g10sim.importers.kineto_memory`).
"""

from __future__ import annotations

from collections.abc import Sequence

from g10sim.analysis.footprint import peak_live_bytes
from g10sim.display import rounded_bytes
from g10sim.errors import TraceError
from g10sim.importers.account import Account, Reason, accounted
from g10sim.importers.kineto_events import DIMS, Profile
from g10sim.importers.kineto_memory import Memory
from g10sim.importers.kineto_steps import Scope, scope_of
from g10sim.importers.kineto_work import Draft, drafts_of, idle_between
from g10sim.importers.operations import BY_ITSELF, ByHand, Storage, build_trace
from g10sim.trace.model import TensorKind, Trace

_TOLD = 0.01


def import_kineto(
    profile: Profile,
    *,
    model: str | None = None,
    batch_size: int = 1,
    process: str | None = None,
    device: str | None = None,
    step: int | None = None,
    by_hand: ByHand = BY_ITSELF,
    keep_gaps: bool = False,
    partial: bool = False,
) -> Trace:
    """Make a trace of a profile; of several steps (``ProfilerStep#N``) the last whole one, or ``step``.

    With device events the kernels are the operators that launched them, in the order of launches, and take
    the time for which theirs keep the device busy. Without, they are the operators of the CPU and take its
    time. ``keep_gaps`` makes kernels without tensors of the time in which the device waited. ``partial``
    imports a profile without shapes or memory events, too. Raises TraceError naming the file, what was found
    and what is allowed.
    """
    account = Account()
    profile.refuse_without_device()
    scope = scope_of(profile, process, device, step)
    _check_recorded(scope, account, partial=partial)
    drafts = drafts_of(scope, account)
    if not drafts:
        raise TraceError(f"{profile.path}: found no operator that does work; allowed: a profile of a step")
    memory = Memory(drafts, scope)
    memory.follow()
    memory.hold_to_the_end()
    operations = idle_between(_with_outputs(drafts, account), account, keep_gaps=keep_gaps)
    rest = memory.unused_bytes
    unused = [Storage(rest, external=True, role=TensorKind.OTHER)] if rest else []
    origin = {"source": "PyTorch profile (Kineto)", "step": scope.step}
    trace = build_trace(operations, profile.path, model, batch_size, origin, unused=unused, by_hand=by_hand)
    _tell(account, profile, memory, trace, drafts)
    account.facts.append(f"step: {scope.step}")
    return accounted(trace, account, profile.path, partial=partial)


def _check_recorded(scope: Scope, account: Account, *, partial: bool) -> None:
    """Raise TraceError for a profile without shapes or memory events, or note it where that is accepted."""
    lacks = []
    if not any(key in span.args for span in scope.operators for key in DIMS):
        lacks.append(("operator with shapes", "record_shapes=True"))
    if not scope.memory:
        what = "memory events" + (" of the device" if scope.profile.memory else "")
        lacks.append((what, "profile_memory=True"))
    for what, option in lacks:
        if not partial:
            allowed = f"a profile with {option}, or --partial for what is there"
            raise TraceError.at(scope.profile.path, f"no {what}", allowed)
        account.notes.append(f"the file has no {what} ({option}): tensors are not all known")


def _with_outputs(drafts: Sequence[Draft], account: Account) -> list[Draft]:
    """Return the kernels; of operators on the CPU only those that write what the file records, or lists."""
    found = [one for one in drafts if one.events or one.operation.writes or one.span.lacks_lists]
    whole, kept = (sum(one.operation.duration_ns for one in some) for some in (drafts, found))
    account.imported_ns -= whole - kept
    account.leave_out(Reason.OUTPUTS, whole - kept)
    return found


def _tell(account: Account, profile: Profile, memory: Memory, trace: Trace, drafts: Sequence[Draft]) -> None:
    """Compare the memory of the trace with the recorded one, and tell what is not certain."""
    if memory.before_bytes is not None and memory.peak_bytes is not None:
        outside = sum(one.size_bytes for one in memory.from_before) + memory.unused_bytes
        account.compare(
            "allocated before the step", memory.before_bytes, outside,
            "tensors of one size that are used again were counted again, or parts of them as a whole",
        )  # fmt: skip
        account.compare(
            "most allocated in the step", memory.peak_bytes, peak_live_bytes(trace),
            "a profile does not say which allocation an operator uses, and tensors that nothing reads again "
            "count as released",
        )  # fmt: skip
        if memory.unused_bytes:
            unused = rounded_bytes(memory.unused_bytes)
            account.facts.append(f"{unused} from before the step are used by no operator with shapes")
    elif memory.from_before:
        size = rounded_bytes(sum(one.size_bytes for one in memory.from_before))
        account.notes.append(
            f"{len(memory.from_before)} tensors from before the step ({size}) are told by their sizes alone, "
            "and may be more or fewer: the file does not say what was allocated before it (Total Allocated)"
        )
    operations = (draft.operation for draft in drafts)
    bare = sum(one.duration_ns for one in operations if not (one.reads or one.writes))
    if bare > _TOLD * account.imported_ns:
        share = bare / account.imported_ns
        account.notes.append(f"{share:.1%} of the time are kernels whose tensors the file does not name")
    if unlisted := sum(draft.span.lacks_lists for draft in drafts):
        account.notes.append(
            f"{unlisted} kernels use lists of tensors that the file does not have: "
            "PyTorch writes none of more than 30"
        )
    if memory.given_buffers:
        account.facts.append(
            f"{memory.given_buffers} kernels allocate nothing: they write into their last argument (aten) "
            "or their first"
        )
    for kind, count in sorted(profile.unknown_types.items()):
        account.notes.append(f"{count} tensors of type '{kind[:40]}' are left out: its size is not known")
