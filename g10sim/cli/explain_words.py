"""What the records of a cell say, as sentences."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from g10sim.analysis.footprint import peak_live_bytes
from g10sim.cli.text import rounded_bytes, rounded_seconds
from g10sim.experiment.opened import OpenedCell
from g10sim.records import MigrationCause
from g10sim.stats.blame import LinkUse, by_main_reason, link_use, tensor_waits, within
from g10sim.stats.summary import STALL_COLUMNS

if TYPE_CHECKING:
    import pandas as pd

Section = tuple[str, list[str]]
Uses = dict[str, tuple[int, list[LinkUse]]]
"""By column of the reason that kernels stalled for: cycles, and how much links were used meanwhile."""

_SHOWN = 5
_FULL = 0.8
"""From which share of its capacity on a link counts as the limit."""
_NEGLIGIBLE = 0.005

_FAULTS = ("stall_fault_host_cycles", "stall_fault_flash_cycles")

REASONS = {
    "fault_host": "page faults served from host memory",
    "fault_flash": "page faults served from the SSD",
    "first_touch": "first touch: new pages mapped on demand",
    "late_prefetch": "prefetches that had not arrived",
    "eviction": "others had to leave the GPU first",
    "allocation": "no consecutive room in GPU memory",
    "synchronization": "the policy waited for transfers",
    "link_contention": "other GPUs used a shared link",
    "barrier": "other replicas",
    "compute_sharing": "other jobs computed on the GPU",
}
PLACES = {"HOST": "host memory", "FLASH": "the SSD", "NONE": "nowhere (new pages)", "GPU": "the GPU"}


def reason_of(column: str) -> str:
    """Say what a column ``stall_REASON_cycles`` stands for."""
    reason = column.removeprefix("stall_").removesuffix("_cycles")
    return REASONS.get(reason, reason.replace("_", " "))


def seconds(opened: OpenedCell, cycles: float) -> str:
    """Write a number of cycles as a rounded time."""
    return rounded_seconds(cycles / opened.system.gpu.clock)


def time_shares(opened: OpenedCell) -> Iterator[tuple[str, str, str]]:
    """Yield what the time of the iteration went to: name, time, share."""
    row = opened.row
    parts = {
        "computing, nothing in transfer": row["compute_cycles"],
        "computing while pages moved": row["overlap_cycles"],
    }
    parts |= {f"stalled: {reason_of(column)}": row[column] for column in STALL_COLUMNS if row.get(column)}
    for name, cycles in parts.items():
        yield (
            name,
            seconds(opened, cycles),
            f"{cycles / row['exec_cycles']:.1%}" if row["exec_cycles"] else "",
        )


def describe_cell(opened: OpenedCell) -> tuple[str, list[Section]]:
    """Return a heading and sections, each a title and sentences."""
    row = opened.row
    lost = row["exec_cycles"] - row["ideal_cycles"]
    job = f", job {int(row['job'])}" if "job" in row else ""
    heading = (
        f"Cell {int(row['cell'])}{job}: {row['model']}, batch size {row['batch_size']}, policy "
        f"{row['policy']} on {opened.system.name or 'its system'}: {row['performance']:.1%} of ideal, "
        f"{seconds(opened, row['exec_cycles'])} instead of {seconds(opened, row['ideal_cycles'])}"
    )
    if lost <= 0:
        return heading, [("Nothing was lost: no kernel stalled.", [])]
    sections = []
    uses: Uses = {}
    if opened.kernels is not None:
        sections.append(_kernels(opened, opened.kernels))
        if opened.migrations is not None:
            start, end = int(opened.kernels["start"].min()), int(opened.kernels["end"].max())
            moves = within(opened.migrations, start, end)
            uses = {
                reason: (
                    int(waiting["stall_cycles"].sum()),
                    link_use(opened.kernels, moves, opened.system, waiting),
                )
                for reason, waiting in by_main_reason(opened.kernels).items()
            }
            sections += [_tensors(opened, opened.kernels, moves), _links(opened, uses)]
    sections.append(("What may help", [*_help(opened, uses)]))
    if opened.kernels is None or opened.migrations is None:
        missing = "Which kernels, tensors and links are to blame is not in these results."
        sections.append((missing, ["Run it with 'record: [kernels, migrations]' to see."]))
    return heading, sections


def _kernels(opened: OpenedCell, kernels: pd.DataFrame) -> Section:
    stalled = kernels[kernels["stall_cycles"] > 0]
    longest = stalled.nlargest(_SHOWN, "stall_cycles")
    share = longest["stall_cycles"].sum() / stalled["stall_cycles"].sum()
    columns = [column for column in STALL_COLUMNS if column in kernels]
    lines = []
    for number, stall, column in zip(
        longest["kernel"], longest["stall_cycles"], longest[columns].idxmax(axis="columns"), strict=True
    ):
        kernel = opened.trace.kernels[number]
        where = f", {kernel.layer}" if kernel.layer else ""
        reason = reason_of(str(column))
        lines.append(f"{seconds(opened, stall)}: kernel {number} ({kernel.name}{where}); mostly {reason}")
    title = (
        f"{len(stalled)} of {len(kernels)} kernels stalled; the {len(longest)} longest stalls are "
        f"{share:.0%} of all stall time"
    )
    return title, lines


def _tensors(opened: OpenedCell, kernels: pd.DataFrame, moves: pd.DataFrame) -> Section:
    trace = opened.trace
    waits = tensor_waits(kernels, moves, [kernel.tensors for kernel in trace.kernels])
    lines = []
    for number, cycles, count, source in zip(
        waits.index[:_SHOWN], waits["waited_cycles"], waits["kernels"], waits["source"], strict=False
    ):
        tensor = trace.tensors[number]
        what = f"{tensor.name} ({tensor.kind.value}, {rounded_bytes(tensor.size_bytes)})"
        who = "1 kernel" if count == 1 else f"{count} kernels"
        lines.append(f"{seconds(opened, cycles)}: {what}, mostly from {PLACES[source]}; {who} waited")
    leaving = moves[(moves["source"] == "GPU") & (moves["cause"] == MigrationCause.MAKING_ROOM.name)]
    if row_share(opened, "stall_eviction_cycles") > _NEGLIGIBLE and not leaving.empty:
        by_tensor = leaving.groupby("tensor")["size_bytes"].sum().nlargest(3)
        names = ", ".join(
            f"{trace.tensors[int(str(tensor))].name} ({rounded_bytes(int(size))})"
            for tensor, size in by_tensor.items()
        )
        total = rounded_bytes(int(leaving["size_bytes"].sum()))
        lines.append(f"{total} left the GPU only when room was needed, most of all {names}")
    title = "Tensors that kernels waited for (a stall is divided among those that arrived meanwhile)"
    return title, lines or ["none: no tensor of a stalled kernel was arriving"]


def row_share(opened: OpenedCell, column: str) -> float:
    """Return which share of the iteration a column of cycles is."""
    whole = opened.row["exec_cycles"]
    return float(opened.row.get(column, 0) / whole) if whole else 0.0


def _links(opened: OpenedCell, uses: Uses) -> Section:
    every = next(iter(uses.values()))[1] if uses else []
    lines = [f"{use.name}: {use.share:.0%} of its capacity, {use.size_bytes / 1e9:.1f} GB" for use in every]
    for reason, (cycles, used) in uses.items():
        if cycles >= _NEGLIGIBLE * opened.row["exec_cycles"]:
            shares = ", ".join(f"{use.name} {use.stalled_share:.0%}" for use in used)
            lines.append(
                f"while kernels stalled for {seconds(opened, cycles)} ({reason_of(reason)}): {shares}"
            )
    return "Links over the iteration, and while kernels stalled", lines


def _help(opened: OpenedCell, uses: Uses) -> Iterator[str]:
    row, system = opened.row, opened.system
    yield (
        f"Nothing can bring more than {seconds(opened, row['exec_cycles'] - row['ideal_cycles'])} "
        f"({1 - row['performance']:.1%} of the time): that is what is lost"
    )
    yield from _bandwidth(opened, uses)
    yield from _host_memory(opened)
    peak = peak_live_bytes(opened.trace)
    times = peak / system.gpu.memory
    alive = f"GPU memory: up to {rounded_bytes(peak)} are alive at a time, {times:.2f} times its size"
    yield f"{alive}; with that much, nothing would have to leave" if peak > system.gpu.memory else alive
    if row_share(opened, "stall_first_touch_cycles") > _NEGLIGIBLE:
        yield (
            f"Policy: new pages were mapped only when touched, "
            f"{seconds(opened, row['stall_first_touch_cycles'])}; one that allocates ahead hides that"
        )
    yield from _other_policies(opened)


def _bandwidth(opened: OpenedCell, uses: Uses) -> Iterator[str]:
    row, clock = opened.row, opened.system.gpu.clock
    for use in next(iter(uses.values()))[1] if uses else []:
        alone, size = use.size_bytes / use.capacity, f"{use.size_bytes / 1e9:.1f} GB"
        if alone > row["ideal_cycles"] / clock:
            yield (
                f"{use.name}: its {size} alone take {rounded_seconds(alone)}, more than all computing; only "
                "fewer bytes or a faster link help"
            )
    for reason, (cycles, used) in uses.items():
        if cycles < _NEGLIGIBLE * row["exec_cycles"]:
            continue
        full = [use for use in used if use.stalled_share >= _FULL]
        for use in full:
            gain = rounded_seconds(use.stalled_bytes / use.capacity / 2)
            yield (
                f"{use.name}: it was full while kernels stalled ({reason_of(reason)}); at twice the "
                f"bandwidth, what crossed it then takes {gain} less"
            )
        if reason in _FAULTS and used and not full:
            yield from _latency(opened, used[0], cycles)


def _latency(opened: OpenedCell, use: LinkUse, cycles: int) -> Iterator[str]:
    """Say that page faults came more slowly than their link allows."""
    fault, rate = opened.system.page_fault, use.stalled_bytes * opened.system.gpu.clock / cycles
    group, latency = rounded_bytes(fault.group), rounded_seconds(fault.latency / 1e12)
    yield (
        f"Page faults: pages came at {rate / 1e9:.1f} GB/s, {use.stalled_share:.0%} of what {use.name} can "
        f"do; each group of up to {group} first waits {latency} to be handled, which prefetching avoids"
    )


def _host_memory(opened: OpenedCell) -> Iterator[str]:
    row, memory = opened.row, opened.system.host.memory
    spilled = row["gpu_to_ssd_bytes"]
    if memory == 0:
        if spilled:
            yield f"Host memory: there is none; {spilled / 1e9:.1f} GB went to the SSD instead"
    elif row["peak_host_bytes"] < 0.99 * memory:
        most = rounded_bytes(int(row["peak_host_bytes"]))
        yield (
            f"Host memory: at most {most} of {rounded_bytes(memory)} were in use; more of it would stay "
            "empty unless the policy decided differently"
        )
    elif spilled:
        size = f"{spilled / 1e9:.1f} GB"
        yield f"Host memory: it was full, and {size} went to the SSD; more of it may take some of that"
    else:
        yield "Host memory: it was full at times, but nothing went to the SSD for that"


def _other_policies(opened: OpenedCell) -> Iterator[str]:
    ideal = opened.alike["stall_cycles"] == 0
    rivals = opened.alike[~ideal].sort_values("performance", ascending=False)
    better = rivals[rivals["performance"] > opened.row["performance"]]
    if not better.empty:
        best = better.iloc[0]
        yield (
            f"Policy: {best['policy']} reaches {best['performance']:.1%} of ideal on the same trace and "
            f"system (cell {best['cell']})"
        )
    elif not rivals.empty:
        yield "Policy: none of the others in these results does better on this trace and system"
