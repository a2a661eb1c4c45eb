"""A cell in words: where its time went, which kernels, tensors and links are to blame, what may help."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from g10sim.analysis.footprint import peak_live_bytes
from g10sim.display import rounded_bytes, rounded_seconds
from g10sim.errors import ConfigError
from g10sim.experiment.stored_cells import OpenedCell
from g10sim.hardware.faults import fault_batches
from g10sim.places import place
from g10sim.records import MigrationCause, StallReason
from g10sim.results.blame import LinkUse, by_main_reason, link_use, tensor_waits, within
from g10sim.results.bounds import NO_BOUND, closed_form_of
from g10sim.results.columns import fault_pages, stall_reasons, tiers_of
from g10sim.results.pools import caching_pool_bytes
from g10sim.results.reading import records
from g10sim.trace.model import Kernel

if TYPE_CHECKING:
    import pandas as pd


Section = tuple[str, list[str]]
Uses = dict[StallReason, tuple[int, list[LinkUse]]]
"""By reason that kernels stalled for longest: cycles, and how much links were used meanwhile."""

_SHOWN = 5
_AHEAD = (MigrationCause.PREFETCH, MigrationCause.PLANNED_EVICTION)
_FULL = 0.8
"""From which share of its capacity on a link counts as the limit."""
_NEGLIGIBLE = 0.005
_WHO = "paged policy that drops nothing"


def told(opened: OpenedCell) -> dict[str, Any]:
    """Return what a cell's row of results tells: None for what it does not."""
    return {name: None if value != value else value for name, value in opened.row.items()}


def kernel_lines(opened: OpenedCell, number: int) -> Iterator[str]:
    """Yield lines about a kernel of the reported iteration: its time, its faults, and each of its tensors.

    Raises ConfigError where there is no such kernel or kernels were not recorded.
    """
    if opened.kernels is None:
        raise ConfigError.at("kernel", "no kernels.parquet", "results of a run with 'record: [kernels]'")
    kernels = opened.trace.kernels
    if not 0 <= number < len(kernels):
        raise ConfigError(f"kernel {number}: found no such kernel; allowed: 0 to {len(kernels) - 1}")
    kernel = kernels[number]
    record = opened.kernels[opened.kernels["kernel"] == number].iloc[0]
    where = f", {kernel.layer}" if kernel.layer else ""
    yield (
        f"Kernel {number} ({kernel.name}{where}) of cell {int(opened.row['cell'])}, iteration "
        f"{record['iteration']}: {seconds(opened, record['end'] - record['start'])}, of which "
        f"{seconds(opened, record['compute_cycles'])} computing and "
        f"{seconds(opened, record['stall_cycles'])} stalled"
    )
    for column, reason in stall_reasons(record.index).items():
        if record[column]:
            yield f"  stalled {seconds(opened, record[column])}: {reason.words}"
    yield from _pages_of_kernel(opened, record)
    yield from _tensors_of_kernel(opened, kernel, record)


def _pages_of_kernel(opened: OpenedCell, record: pd.Series[int]) -> Iterator[str]:
    page = opened.system.gpu.page_size
    if opened.row["page_faults"]:
        sources = {column: place(word).where for column, word in fault_pages(record.index).items()}
        for column, source in (sources | {"first_touch_pages": "new"}).items():
            if record[column]:
                size = rounded_bytes(int(record[column]) * page)
                yield f"  {record[column]:,} pages ({size}) faulted: {source}"
    if record["in_transfer_pages"]:
        size = rounded_bytes(int(record["in_transfer_pages"]) * page)
        yield f"  {size} of its tensors were in transfer when it started"


def _tensors_of_kernel(opened: OpenedCell, kernel: Kernel, record: pd.Series[int]) -> Iterator[str]:
    yield f"Its {len(kernel.touched)} tensors:"
    for number in kernel.touched:
        tensor = opened.trace.tensors[number]
        role = "reads" if number in kernel.inputs else "writes"
        yield f"  {role} {tensor.name} ({tensor.kind.value}, {rounded_bytes(tensor.size_bytes)})"
        if opened.migrations is not None:
            moves = opened.migrations[opened.migrations["tensor"] == number]
            yield from (f"    {line}" for line in _history(opened, moves, record))
    if opened.migrations is None:
        yield "  how they got there is not in these results; run with 'record: [kernels, migrations]'"


def _history(opened: OpenedCell, moves: pd.DataFrame, record: pd.Series[int]) -> Iterator[str]:
    """Say when a tensor last left the GPU and when it came (back), as seen from the start of the kernel."""
    start, end = record["start"], record["start"] + record["stall_cycles"]
    before = moves[moves["start"] <= end]
    arrivals = before[before["target"] == "GPU"]
    departures = before[(before["source"] == "GPU") & (before["target"] != "NONE")]
    if not arrivals.empty:
        departures = departures[departures["start"] <= arrivals["start"].iloc[-1]]
    for move in records(departures.tail(1)) + records(arrivals.tail(1)):
        arrives = move["target"] == "GPU"
        way = f"from {place(move['source']).words}" if arrives else f"to {place(move['target']).words}"
        since, until = _relative(opened, move["start"] - start), _relative(opened, move["end"] - start)
        cause, size = MigrationCause[move["cause"]].words, rounded_bytes(int(move["size_bytes"]))
        yield f"{cause} {way}, {size}: began {since}, done {until}"
    if arrivals.empty and departures.empty:
        yield "was on the GPU all the time"


def _relative(opened: OpenedCell, cycles: int) -> str:
    if cycles == 0:
        return "when the kernel started"
    return f"{seconds(opened, abs(cycles))} {'before' if cycles < 0 else 'after'} it started"


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
    reasons = stall_reasons(row)
    parts |= {f"stalled: {reason.words}": row[column] for column, reason in reasons.items() if row[column]}
    for name, cycles in parts.items():
        share = f"{cycles / row['exec_cycles']:.1%}" if row["exec_cycles"] else ""
        yield name, seconds(opened, cycles), share


def _averaged(row: Mapping[str, Any]) -> str:
    """Say which iterations numbers are averages of, where that is not the last one."""
    iterations, period = int(row["iterations"]), row.get("period", 1)
    apart = f"which differ by {row.get('spread', 0):.1%}; kernels below are those of the nearest to it"
    if not row.get("steady", True):
        last = max(1, iterations // 2)
        several = f"the average of the last {last} of {iterations} iterations, {apart}" if last > 1 else ""
        return f". Not steady: {several or f'the last of {iterations} iterations, the next may differ'}"
    return f". The average of {int(period)} iterations that repeat, {apart}" if period > 1 else ""


def describe_cell(opened: OpenedCell) -> tuple[str, list[Section]]:
    """Return a heading and sections, each a title and sentences."""
    row = opened.row
    lost = row["exec_cycles"] - row["ideal_cycles"]
    job = f", job {int(row['job'])}" if "job" in row else ""
    heading = (
        f"Cell {int(row['cell'])}{job}: {row['model']}, batch size {row['batch_size']}, policy "
        f"{opened.labels[row['policy']]} on {opened.system.name or 'its system'}: "
        f"{row['performance']:.1%} of ideal, "
        f"{seconds(opened, row['exec_cycles'])} instead of {seconds(opened, row['ideal_cycles'])}"
    )
    heading += _averaged(row)
    if lost <= 0:
        return heading, [("Nothing was lost: no kernel stalled.", [])]
    sections, moves = [], None
    uses: Uses = {}
    if opened.kernels is not None:
        sections.append(_kernels(opened, opened.kernels))
        if opened.migrations is not None:
            start, end = int(opened.kernels["start"].min()), int(opened.kernels["end"].max())
            moves = within(opened.migrations, start, end)
            for reason, waiting in by_main_reason(opened.kernels).items():
                used = link_use(opened.kernels, moves, opened.system, waiting)
                uses[reason] = int(waiting["stall_cycles"].sum()), used
            sections += [_tensors(opened, opened.kernels, moves), _links(opened, uses)]
    sections.append(("What may help", [*_help(opened, uses, moves)]))
    if opened.kernels is None or opened.migrations is None:
        missing = "Which kernels, tensors and links are to blame is not in these results."
        sections.append((missing, ["Run it with 'record: [kernels, migrations]' to see."]))
    return heading, sections


def _kernels(opened: OpenedCell, kernels: pd.DataFrame) -> Section:
    stalled = kernels[kernels["stall_cycles"] > 0]
    longest = stalled.nlargest(_SHOWN, "stall_cycles")
    share = longest["stall_cycles"].sum() / stalled["stall_cycles"].sum()
    reasons = stall_reasons(kernels)
    lines = []
    mostly = longest[list(reasons)].idxmax(axis="columns")
    for number, stall, column in zip(longest["kernel"], longest["stall_cycles"], mostly, strict=True):
        kernel = opened.trace.kernels[number]
        where = f", {kernel.layer}" if kernel.layer else ""
        reason = reasons[str(column)].words
        lines.append(f"{seconds(opened, stall)}: kernel {number} ({kernel.name}{where}); mostly {reason}")
    most = f"the {len(longest)} longest stalls are {share:.0%} of all stall time"
    return f"{len(stalled)} of {len(kernels)} kernels stalled; {most}", lines


def _tensors(opened: OpenedCell, kernels: pd.DataFrame, moves: pd.DataFrame) -> Section:
    trace = opened.trace
    waits = tensor_waits(kernels, moves, [kernel.tensors for kernel in trace.kernels])
    lines = []
    for number, cycles, count, source in waits.head(_SHOWN).itertuples():
        tensor = trace.tensors[number]
        what = f"{tensor.name} ({tensor.kind.value}, {rounded_bytes(tensor.size_bytes)})"
        who = "1 kernel" if count == 1 else f"{count} kernels"
        lines.append(f"{seconds(opened, cycles)}: {what}, mostly from {place(source).words}; {who} waited")
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
            lines.append(f"while kernels stalled for {seconds(opened, cycles)} ({reason.words}): {shares}")
    return "Links over the iteration, and while kernels stalled", lines


def _help(opened: OpenedCell, uses: Uses, moves: pd.DataFrame | None) -> Iterator[str]:
    row, system = opened.row, opened.system
    lost, share = seconds(opened, row["exec_cycles"] - row["ideal_cycles"]), 1 - row["performance"]
    yield f"Nothing can bring more than {lost} ({share:.1%} of the time): that is what is lost"
    yield from bound_lines(opened)
    yield from _bandwidth(opened, uses)
    yield from _memories(opened)
    peak = peak_live_bytes(opened.trace)
    times = peak / system.gpu.memory
    alive = f"GPU memory: up to {rounded_bytes(peak)} are alive at a time, {times:.2f} times its size"
    yield f"{alive}; with that much, nothing would have to leave" if peak > system.gpu.memory else alive
    yield from _pool(opened, peak)
    if row_share(opened, "stall_first_touch_cycles") > _NEGLIGIBLE:
        took = seconds(opened, row["stall_first_touch_cycles"])
        yield f"Policy: new pages were mapped only when touched, {took}; one that allocates ahead hides that"
    if isinstance(row["message"], str) and row["message"]:
        yield f"Policy, in its own words: {row['message']}"
    yield from _nothing_ahead(opened, moves)
    yield from _other_policies(opened)


def _pool(opened: OpenedCell, peak: int) -> Iterator[str]:
    """Say why data that fit fault all the same: an allocator's blocks do not fit, free ones among them."""
    memory = opened.system.gpu.memory - opened.system.gpu.beside_tensors
    pooled = opened.cell.make_policy().requirements.addresses == "pooled"
    if not (pooled and opened.cell.behaviour.addresses == "pooled" and opened.row["page_faults"]):
        return
    if peak <= memory < (pool := caching_pool_bytes(opened.trace)):
        yield (
            "GPU memory: the data fit, the blocks of the caching allocator that they lie in do not: it holds "
            f"{rounded_bytes(pool)} of addresses, more than the {rounded_bytes(memory)} there are, so pages "
            "of free blocks go and fault when they are handed out again"
        )


def _nothing_ahead(opened: OpenedCell, moves: pd.DataFrame | None) -> Iterator[str]:
    """Say that a policy which moves tensors ahead moved none: its plan is empty, or was given up."""
    if moves is None or not opened.cell.make_policy().requirements.moves_ahead:
        return
    causes = set(moves["cause"])
    if causes and causes.isdisjoint(cause.name for cause in _AHEAD):
        yield (
            "Policy: it moved nothing ahead of its use in this iteration; its plan is empty or was given up: "
            "it found no time between uses to move tensors in, or too little room"
        )


def bound_lines(opened: OpenedCell) -> Iterator[str]:
    """Yield how much of the stall no policy avoids, and what makes it so; nothing for older results."""
    row, kind = opened.row, opened.row.get("bound_kind")
    if not isinstance(kind, str):
        return
    if kind.startswith(NO_BOUND):
        yield f"Bound: {kind}"
        return
    found = closed_form_of(opened.workload, opened.system, steady=kind == "steady")
    lost = row["exec_cycles"] - row["ideal_cycles"]
    if not found.stall_cycles:
        yield f"Bound: all of it may be avoidable: the time of the kernels is the bound of every {_WHO}"
        return
    stalls = sorted(found.stalls.items(), key=lambda item: -item[1])
    causes = ", ".join(f"{seconds(opened, cycles)} because of {name}" for name, cycles in stalls)
    part = f"{seconds(opened, found.stall_cycles)} of it ({found.stall_cycles / lost:.0%})"
    yield f"Bound: no {_WHO} avoids {part}: {causes}"
    rest = seconds(opened, max(0, lost - found.stall_cycles))
    yield f"Bound: the other {rest} are the most that a better policy can gain"


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
                f"{use.name}: it was full while kernels stalled ({reason.words}); at twice the "
                f"bandwidth, what crossed it then takes {gain} less"
            )
        if reason.tier and used and not full:
            yield from _latency(opened, used[0], cycles)


def _latency(opened: OpenedCell, use: LinkUse, cycles: int) -> Iterator[str]:
    """Say that page faults came more slowly than their link allows."""
    fault, rate = opened.system.page_fault, use.stalled_bytes * opened.system.gpu.clock / cycles
    group, latency = rounded_bytes(fault.group), rounded_seconds(fault.latency / 1e12)
    count = fault_batches(fault.group, opened.system.gpu.page_size, fault)
    batches = "a batch" if count == 1 else f"{count} batches"
    yield (
        f"Page faults: pages came at {rate / 1e9:.1f} GB/s, {use.stalled_share:.0%} of what {use.name} can "
        f"do; the faults of {group} are handled in {batches} of {latency}, which prefetching avoids"
    )


def _memories(opened: OpenedCell) -> Iterator[str]:
    """Say of each tier of memory how full it was, and what went to slower tiers instead."""
    row, tiers = opened.row, tiers_of(opened.row)
    for number, (name, kind) in enumerate(tiers.items()):
        if kind == "memory":
            slower = list(tiers)[number + 1 :]
            spilled = sum(row[f"gpu_to_{other}_bytes"] for other in slower)
            where = " and ".join(place(other).words for other in slower)
            most, capacity = int(row[f"peak_{name}_bytes"]), opened.capacity(name)
            words = place(name).words
            if capacity or spilled:
                yield f"{words[0].upper()}{words[1:]}: {_fullness(most, capacity, spilled, where)}"


def _fullness(most: int, capacity: int, spilled: float, where: str) -> str:
    size = f"{spilled / 1e9:.1f} GB"
    if capacity == 0:
        return f"there is none; {size} went to {where} instead"
    if most < 0.99 * capacity:
        return (
            f"at most {rounded_bytes(most)} of {rounded_bytes(capacity)} were in use; more of it would stay "
            "empty unless the policy decided differently"
        )
    if spilled:
        return f"it was full, and {size} went to {where}; more of it may take some of that"
    return f"it was full at times, but nothing went to {where or 'a slower tier'} for that"


def _other_policies(opened: OpenedCell) -> Iterator[str]:
    moved = opened.alike.filter(regex="_to_.+_bytes$").sum(axis="columns")
    ideal = (opened.alike["stall_cycles"] == 0) & (moved == 0)
    rivals = opened.alike[~ideal].sort_values("performance", ascending=False)
    better = rivals[rivals["performance"] > opened.row["performance"]]
    if not better.empty:
        best = better.iloc[0]
        label, reached = opened.labels[best["policy"]], f"{best['performance']:.1%} of ideal"
        yield f"Policy: {label} reaches {reached} on the same trace and system (cell {best['cell']})"
    elif not rivals.empty:
        yield "Policy: none of the others in these results does better on this trace and system"
