"""Result tables of the published G10 simulator, and the metrics to compare them with."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from g10sim.config.presets import load_system
from g10sim.config.problems import check_choice
from g10sim.config.system import SystemSpec
from g10sim.errors import ConfigError
from g10sim.files import reading
from g10sim.policies.interface.policy import Policy
from g10sim.results.columns import Row
from g10sim.units import cycles_to_ms

COLUMNS = (
    *("figure", "metric", "model", "batch", "policy", "host_gb", "ssd_gbps", "pcie_gbps", "variation"),
    "value",
)
TABLE = "published.csv"
TRACES = "traces"
# The published simulator writes to the SSD as fast as it reads; the paper has 3.0 GB/s.
PUBLISHED_SYSTEM: Mapping[str, Any] = {"preset": "a100-40g-g10-paper", "ssd": {"write_bandwidth": "3.2 GB/s"}}


@dataclass(frozen=True)
class PublishedRow:
    """One row of ``published.csv``: its texts as they are, and the numbers among them."""

    texts: Mapping[str, str]
    batch: int
    variation: float
    value: float

    @property
    def trace(self) -> tuple[str, int]:
        """Model and batch size."""
        return self.texts["model"], self.batch

    def system(self) -> SystemSpec:
        """Machine of the row: host memory in GiB, SSD and PCIe in 1e9 bytes/s. Raises ConfigError."""
        ssd = f"{self.texts['ssd_gbps']} GB/s"
        return load_system(
            {
                **PUBLISHED_SYSTEM,
                "host": {"memory": f"{self.texts['host_gb']} GiB"},
                "ssd": {"read_bandwidth": ssd, "write_bandwidth": ssd},
                "pcie": {"bandwidth": f"{self.texts['pcie_gbps']} GB/s"},
            }
        )

    def simulated(self, row: Row, system: SystemSpec) -> float:
        """Return the row's metric in the unit of the table. Raises ConfigError for an unknown metric.

        Times in ms come from cycles of the same name, pages from bytes.
        """
        metric = self.texts["metric"]
        stem, _, unit = metric.rpartition("_")
        numbers = {column: value for column, value in row.items() if not isinstance(value, str)}
        if metric == "performance_vs_ideal":
            return numbers["performance"]
        if unit == "cycles" and metric in numbers:
            return numbers[metric]
        if unit == "ms" and f"{stem}_cycles" in numbers:
            return cycles_to_ms(int(numbers[f"{stem}_cycles"]), system.gpu.clock)
        if unit == "pages" and f"{stem}_bytes" in numbers:
            return numbers[f"{stem}_bytes"] / system.gpu.page_size
        raise ConfigError.at(TABLE, f"metric '{metric}'", "..._cycles, ..._ms, ..._pages of results")

    def relative_error(self, simulated: float) -> float | None:
        """Return simulated/value - 1; None where both are unsupported, infinite where only one is."""
        if math.isinf(self.value) or math.isinf(simulated):
            return None if math.isinf(self.value) and math.isinf(simulated) else math.inf
        if self.value == 0:
            return 0.0 if simulated == 0 else math.inf
        return simulated / self.value - 1


def read_published(
    reference: Path, *, figures: Iterable[str] = (), models: Iterable[str] = (), policies: Iterable[str] = ()
) -> list[PublishedRow]:
    """Read the rows of ``REFERENCE/published.csv`` whose trace exists, narrowed to the given names.

    Raises ConfigError for a missing or damaged table and for a name that the table does not have.
    """
    path = reference / TABLE
    allowed = f"a directory with {TABLE} and {TRACES}/"
    with reading(path, ConfigError, allowed), path.open(encoding="utf-8", newline="") as file:
        rows = _rows(path, csv.DictReader(file))
    for column, wanted in (("figure", set(figures)), ("model", set(models)), ("policy", set(policies))):
        known = {row.texts[column] for row in rows}
        for name in sorted(wanted - known):
            check_choice(name, known, f"{path}: found no {column}")
        rows = [row for row in rows if not wanted or row.texts[column] in wanted]
    there = {row.trace: trace_directory(reference, row).is_dir() for row in rows}
    return [row for row in rows if there[row.trace]]


def trace_directory(reference: Path, row: PublishedRow) -> Path:
    """Directory of a row's trace and of the plans next to it."""
    return reference / TRACES / row.texts["model"] / row.texts["batch"]


def reference_plan(reference: Path, row: PublishedRow, policy: type[Policy]) -> Path | None:
    """Path of the published plan of a policy alongside a row's trace, if there is one."""
    path = trace_directory(reference, row) / (policy.reference_plan or "")
    return path if path.is_file() else None


def _rows(path: Path, reader: csv.DictReader[str]) -> list[PublishedRow]:
    missing = [column for column in COLUMNS if column not in (reader.fieldnames or ())]
    if missing:
        raise ConfigError(f"{path}: line 1: found no column '{missing[0]}'; allowed: {', '.join(COLUMNS)}")
    found = []
    for texts in reader:
        try:
            row = {column: texts[column] for column in COLUMNS}
            numbers = int(row["batch"]), float(row["variation"]), float(row["value"])
        except (TypeError, ValueError) as error:
            raise ConfigError(f"{path}: line {reader.line_num}: {error}; allowed: numbers") from error
        found.append(PublishedRow(row, *numbers))
    return found
