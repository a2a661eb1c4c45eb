"""``g10sim trace pools``: how much memory allocators take for the same training."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from g10sim.cli.output import say, show_table
from g10sim.cli.text import rounded_bytes
from g10sim.errors import ConfigError
from g10sim.files import write_text
from g10sim.hardware.allocators.comparison import PoolUse, compare_pools
from g10sim.trace.format import load_trace
from g10sim.trace.model import Trace


def pools(
    files: Annotated[list[Path], typer.Argument(help="Trace files.", show_default=False)],
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="Write the table as CSV, in bytes.", show_default=False),
    ] = None,
) -> None:
    """Let every memory pool serve the allocations of a trace: load, footprint and what SmartPool saves."""
    traces = {file: load_trace(file) for file in files}
    uses = {file: compare_pools(trace) for file, trace in traces.items()}
    if output is not None:
        write_table(
            output, [_record(file, traces[file], use, found) for file, found in uses.items() for use in found]
        )
    show_table(
        ("trace", "pool"),
        ("load", "footprint", "footprint / load", "less than the default pool"),
        [_row(file, use, found) for file, found in uses.items() for use in found],
    )
    if output is not None:
        say(f"table written to {output}")


def _row(file: Path, use: PoolUse, all_uses: tuple[PoolUse, ...]) -> tuple[str, ...]:
    return (
        file.stem if use is all_uses[0] else "",
        use.pool,
        rounded_bytes(use.load_bytes),
        rounded_bytes(use.footprint_bytes),
        f"{use.ratio:.4f}",
        f"{use.reduction(all_uses[0]):.2%}",
    )


def _record(file: Path, trace: Trace, use: PoolUse, all_uses: tuple[PoolUse, ...]) -> dict[str, object]:
    return {
        "trace": str(file),
        "model": trace.model,
        "batch_size": trace.batch_size,
        "pool": use.pool,
        "load_bytes": use.load_bytes,
        "footprint_bytes": use.footprint_bytes,
        "ratio": use.ratio,
        "reduction": use.reduction(all_uses[0]),
    }


def write_table(path: Path, records: list[dict[str, Any]]) -> None:
    """Write records as CSV, whole or not at all. Raises ConfigError."""
    import pandas as pd

    try:
        write_text(path, pd.DataFrame(records).to_csv(index=False, lineterminator="\n"))
    except OSError as error:
        raise ConfigError(
            f"{path}: cannot be written: {error.strerror}; allowed: a path in a writable directory"
        ) from error
