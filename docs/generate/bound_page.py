"""Table of the bounds of bundled traces, between the marks of a page."""

from __future__ import annotations

import re
from pathlib import Path

from tables import table

from g10sim.analysis.bound.bound import iteration_bound
from g10sim.analysis.bound.machine import BoundMachine
from g10sim.config.presets import load_system
from g10sim.results.bounds import bound_machine
from g10sim.trace.format import load_trace

_MARKED = re.compile(r"(<!-- bounds -->\n).*?(<!-- end of bounds -->)", re.DOTALL)
HOSTS = ("128 GiB", "32 GiB", "0 GiB")
_KINDS: tuple[dict[str, bool], ...] = ({}, {"steady": True}, {"recompute": True})
CHECKPOINTS = 40


def page(text: str, traces: Path) -> str:
    """Return a page with the table between its marks written again."""
    rows = [row(path, host) for path in sorted(traces.glob("*.g10t")) for host in HOSTS]
    made = table(("Trace", "Host"), ("iteration", "steady", "with recomputation"), rows)
    return _MARKED.sub(lambda match: f"{match[1]}{made}{match[2]}", text)


def machine_of(host: str) -> BoundMachine:
    """Return the machine of the page, with so much host memory."""
    return bound_machine(load_system({"preset": "a100-40g-pcie3-znand", "host": {"memory": host}}))


def row(path: Path, host: str) -> tuple[str, ...]:
    """Return the row of a trace and a size of host memory."""
    trace, machine = load_trace(path), machine_of(host)
    bounds = [iteration_bound(trace, machine, checkpoints=CHECKPOINTS, **kind) for kind in _KINDS]
    return (path.stem, host, *(f"{bound.ideal_cycles / bound.cycles:.3f}" for bound in bounds))
