"""What an iteration does to the SSD: write amplification, wear and life."""

from __future__ import annotations

import math

from g10sim.config.ssd import FlashSsdSpec
from g10sim.config.system import SystemSpec
from g10sim.records import IterationRecord

FLASH_COLUMNS = (
    "ssd_written_bytes",
    "ssd_flash_written_bytes",
    "ssd_write_amplification",
    "ssd_run_write_amplification",
    "ssd_erased_bytes",
    "ssd_written_bytes_per_year",
    "ssd_drive_writes_per_day",
    "ssd_years_to_rated_cycles",
    "ssd_years_to_rated_writes",
)
"""Further columns where the SSD's flash is modelled."""

_SECONDS_PER_DAY = 86_400
_DAYS_PER_YEAR = 365


def flash_metrics(record: IterationRecord, system: SystemSpec) -> dict[str, int | float]:
    """Return the FLASH_COLUMNS of an iteration that is repeated day and night; nothing without a record.

    Life ends when every block has been erased (or a medium without erasing rewritten) as often as rated, or
    when the host has written what the warranty covers; infinite where nothing is written.
    """
    flash, ssd = record.flash, system.ssd
    if flash is None or not isinstance(ssd, FlashSsdSpec):
        return {}
    written = flash.written_bytes
    programmed = written + flash.copied_bytes + flash.folded_bytes
    cycles = record.end - record.start
    seconds_per_year = _DAYS_PER_YEAR * _SECONDS_PER_DAY
    iterations_per_year = seconds_per_year * system.gpu.clock / cycles if cycles else math.inf
    yearly, programmed_yearly = written * iterations_per_year, programmed * iterations_per_year
    return {
        "ssd_written_bytes": written,
        "ssd_flash_written_bytes": programmed,
        "ssd_write_amplification": programmed / written if written else 1.0,
        "ssd_run_write_amplification": (
            flash.run_programmed_bytes / flash.run_written_bytes if flash.run_written_bytes else 1.0
        ),
        "ssd_erased_bytes": flash.erased_bytes,
        "ssd_written_bytes_per_year": yearly,
        "ssd_drive_writes_per_day": yearly / _DAYS_PER_YEAR / ssd.logical_bytes,
        "ssd_years_to_rated_cycles": _years(ssd.rating.cycles * ssd.physical_bytes, programmed_yearly),
        "ssd_years_to_rated_writes": _years(ssd.rating.written * ssd.drives, yearly),
    }


def _years(budget_bytes: float, yearly_bytes: float) -> float:
    return budget_bytes / yearly_bytes if yearly_bytes else math.inf
