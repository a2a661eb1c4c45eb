"""The page of the flash model: how it works, and how it agrees with MQSim, row by row."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path

from tables import table

from g10sim.experiment.ssd_validation import Comparison, compare

_INTRODUCTION = (Path(__file__).parent / "flash_introduction.md").read_text(encoding="utf-8")

_TITLES = {
    "parallelism_sweep": (
        "Rates by geometry",
        "Deep queues, a wide host link; `write_buffer: 0 B` unless it says write cache.",
    ),
    "seq_read_write": (
        "Request size and depth",
        "One stream of requests, so many outstanding. Latencies of the model follow by Little's law. Small "
        "single writes into a cache end when they are in it, for which the model has no time of its own.",
    ),
    "mixed_read_write": (
        "Reads and writes at the same time",
        "In the long run: with a cache, when it is full. The model is of deep queues; shallow ones, and two "
        "requests that wait for each other, are shown without a claim.",
    ),
    "gc_steady_state": (
        "Garbage collection: extents of one size",
        "A is the Z-NAND device with superblocks of 16 MiB, B the TLC device with 64 MiB; `op` is "
        "over-provisioning, `u` how full the drive is. `rand`: extents rewritten at random; `perm`: once per "
        "round in a new order; `seq`: always in the same one; `rw`: as much is read. MQSim is slow at times "
        "though it copies nothing (`ext32M`, `ext128M`), down to 2.46 GB/s, pages programmed one by one. "
        "Planes that are a page apart in a few dies are enough for that; the model does not follow it.",
    ),
    "gc_tensor_mix": (
        "Garbage collection: extents like tensors",
        "Sizes log-uniform between two bounds in MiB, `s4`: four written at a time. Of `fixed24` at 7% MQSim "
        "copies a tenth of what the model does; it is as slow because it programs pages one by one.",
    ),
}


def page(directory: Path) -> str:
    """Return the page as Markdown, from the tables measured with MQSim in a directory."""
    return render(compare(directory))


def render(comparisons: Iterable[Comparison]) -> str:
    """Return the page as Markdown."""
    found = list(comparisons)
    parts = [_INTRODUCTION, _summary(found)]
    for name, (title, text) in _TITLES.items():
        parts += [f"\n### {title}\n\n{text}\n\n", _table([one for one in found if one.table == name])]
    return "".join(parts)


def _table(found: list[Comparison]) -> str:
    """One line per row: of every quantity MQSim's value, the model's, and the error."""
    rows: dict[str, dict[str, Comparison]] = {}
    for one in found:
        rows.setdefault(one.row, {})[one.quantity] = one
    quantities = list(dict.fromkeys(one.quantity for one in found))
    lines = []
    for name, row in rows.items():
        limits = [row[quantity].limit for quantity in quantities if quantity in row]
        shown = ["" if limit is None else f"{limit:.0%}" for limit in limits]
        same = shown[:1] if len(set(shown)) == 1 else [limit or "none" for limit in shown]
        cells = [_cell(row[quantity]) if quantity in row else "" for quantity in quantities]
        lines.append((name, *cells, ", ".join(same)))
    return table(("row",), (*quantities, "limit"), lines)


def _cell(one: Comparison) -> str:
    text = f"{_digits(one.measured)} / {_digits(one.modelled)}, {_error(one)}"
    return text if one.agrees else f"**{text}**"


def _summary(found: list[Comparison]) -> str:
    names = dict.fromkeys((one.table, one.quantity) for one in found)
    lines = []
    for name, quantity in names:
        judged = [
            one for one in found if (one.table, one.quantity) == (name, quantity) and one.limit is not None
        ]
        outside = [one for one in judged if not one.agrees]
        errors = [abs(one.error) for one in judged if math.isfinite(one.error)]
        worst = f"{max(errors):.1%}" if errors else ""
        median = f"{sorted(errors)[len(errors) // 2]:.1%}" if errors else ""
        lines.append((_TITLES[name][0], quantity, str(len(judged)), str(len(outside)), median, worst))
    numbers = ("rows with a limit", "outside it", "median error", "largest error")
    missed = "".join(f"- {one.row}: {one.quantity} {_error(one)}\n" for one in found if not one.agrees)
    text = f"Outside their limits:\n\n{missed}" if missed else "None is outside its limit.\n"
    return f"{table(('table', 'quantity'), numbers, lines)}\n{text}"


def _digits(value: float) -> str:
    return f"{value:.0f}" if value >= 1000 else f"{value:.4g}"


def _error(one: Comparison) -> str:
    return f"{one.error:+.1%}" if math.isfinite(one.error) else "MQSim starves it"
