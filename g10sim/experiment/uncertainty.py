"""Cells run again with other times of kernels, links, drives and page faults, and the ranges that result."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np

from g10sim.config.flash_ssd import FlashSsdSpec
from g10sim.config.run import UncertaintySpec
from g10sim.config.ssd import WriteCacheSpec, times_rate
from g10sim.config.system import SystemSpec
from g10sim.config.tiers import MemoryTierSpec, SsdTierSpec
from g10sim.experiment.cells import Cell, CellResult
from g10sim.results.columns import OK
from g10sim.results.seeds import ranged_columns
from g10sim.trace.work import OperatorClass

_KERNELS = {f"kernels_{name or 'unknown'}": name for name in (*map(str, OperatorClass), "")}
"""Columns of the factors of kernels, each with its class of operators."""
FACTORS = (*_KERNELS, "links", "drives", "faults")
"""Columns of the factors of a case in uncertainty.csv."""
CASES_COLUMNS = ("cell", "case", *FACTORS)
RATES_OF_DRIVE = ("read_bandwidth", "write_bandwidth", "write_cache")


def cases(spec: UncertaintySpec, seed: int) -> list[dict[str, float]]:
    """Return the factors of the four corners, then of the draws.

    A draw is uniform in the logarithm between the lowest and the highest factor; equal seeds give equal
    draws, whatever the policy.
    """
    spans = {name: spec.kernels if name in _KERNELS else getattr(spec, name) for name in FACTORS}
    corners = [
        {name: span[kernels if name in _KERNELS else moves] for name, span in spans.items()}
        for kernels, moves in itertools.product((0, 1), repeat=2)
    ]
    generator = np.random.default_rng(seed)

    def drawn(span: tuple[float, float]) -> float:
        return float(np.exp(generator.uniform(*np.log(span))))

    return corners + [{name: drawn(span) for name, span in spans.items()} for _ in range(spec.draws)]


def with_cases(cells: Iterable[Cell], spec: UncertaintySpec | None) -> tuple[Cell, ...]:
    """Give every cell the cells that it is run as besides; without an uncertainty none."""
    return tuple(cells if spec is None else (replace(cell, cases=_cases_of(cell, spec)) for cell in cells))


def _cases_of(cell: Cell, spec: UncertaintySpec) -> tuple[Cell, ...]:
    found = []
    for factors in cases(spec, cell.seed):
        kernels = {name: factors[column] for column, name in _KERNELS.items()}
        system = scaled(cell.system, factors)
        found.append(replace(cell, system=system, kernel_factors=kernels, tables=()))
    return tuple(found)


def scaled(system: SystemSpec, factors: Mapping[str, float]) -> SystemSpec:
    """Return a system whose links, drives and page faults take that many times as long.

    Of a drive of the flash model it is the time of its interface.
    """
    links, drives = _fraction(factors["links"]), _fraction(factors["drives"])
    shared = tuple(_slower_link(link, links) for link in system.pcie.shared)
    changed = {
        "pcie": _slower_link(system.pcie, links).model_copy(update={"shared": shared}),
        "nvlink": system.nvlink and slower(system.nvlink, links, ("bandwidth",)),
        "page_fault": slower(system.page_fault, _fraction(factors["faults"]), (), ("latency",)),
        "ssd": system.ssd and _slower_drive(system.ssd, drives),
        "tiers": system.tiers and tuple(_slower_tier(tier, links, drives) for tier in system.tiers),
    }
    return system.model_copy(update=changed)


def _fraction(factor: float) -> Fraction:
    return Fraction(factor).limit_denominator(1_000_000)


def slower(spec: Any, factor: Fraction, rates: Sequence[str], times: Sequence[str] = ()) -> Any:
    """Return a part of a system with rates divided by a factor and times multiplied; what is None stays so.

    The rate of a write cache is the sustained one.
    """

    def changed(name: str, value: Any) -> Any:
        if isinstance(value, WriteCacheSpec):
            return slower(value, factor, ("sustained",))
        return times_rate(value, 1 / factor) if name in rates else round(value * factor)

    found = {name: getattr(spec, name) for name in (*rates, *times)}
    update = {name: changed(name, value) for name, value in found.items() if value is not None}
    return spec.model_copy(update=update)


def _slower_link(link: Any, factor: Fraction) -> Any:
    return slower(link.times(factor.denominator, factor.numerator), factor, (), ("per_copy",))


def _slower_drive(drive: Any, factor: Fraction) -> Any:
    if isinstance(drive, FlashSsdSpec):
        return slower(drive, factor, ("interface",))
    return slower(drive, factor, RATES_OF_DRIVE, ("latency", "write_latency"))


def _slower_tier(tier: Any, links: Fraction, drives: Fraction) -> Any:
    if isinstance(tier, MemoryTierSpec):
        return slower(tier, links, ("read", "write"), ("latency",))
    if isinstance(tier, SsdTierSpec):
        return slower(tier, drives, ("read", "write", "write_cache"), ("latency", "write_latency"))
    return tier if isinstance(tier, str) else _slower_drive(tier, drives)


def all_cells(cells: Iterable[Cell]) -> Iterator[Cell]:
    """Yield cells, each followed by those that it is run as besides."""
    for cell in cells:
        yield cell
        yield from cell.cases


def with_ranges(cell: Cell, found: Mapping[str, CellResult]) -> CellResult:
    """Return a cell's result with the ranges of its cases, once all have ended.

    The cell itself counts. The message tells of cases that did not run.
    """
    result = found[cell.key]
    others = [found[case.key] for case in cell.cases if case.key in found]
    if result.status != OK or not cell.cases or len(others) < len(cell.cases):
        return result
    ran = [other for other in others if other.status == OK]
    rows = tuple(
        row | ranged_columns([row, *(other.rows[number] for other in ran)])
        for number, row in enumerate(result.rows)
    )
    if len(ran) == len(others):
        return replace(result, rows=rows)
    lost = next(other for other in others if other.status != OK)
    said = f"{len(others) - len(ran)} of {len(others)} cases did not run: {lost.message}"
    return replace(result, rows=rows, message="; ".join(filter(None, (result.message, said))))


def case_rows(
    cells: Iterable[Cell], found: Mapping[str, CellResult], spec: UncertaintySpec
) -> Iterator[dict[str, Any]]:
    """Yield the rows of uncertainty.csv: each cell as it is (case 0), then its cases, with their factors."""
    for cell in cells:
        own = dict.fromkeys(FACTORS, 1.0)
        for case, (one, factors) in enumerate(
            zip((cell, *cell.cases), (own, *cases(spec, cell.seed)), strict=True)
        ):
            result = found.get(one.key)
            for row in result.rows[:1] if result is not None else ():
                yield {"cell": cell.index, "case": case, **factors, **row}
