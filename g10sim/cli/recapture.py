"""``g10sim trace recapture``: makes the traces of a manifest again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from g10sim.capture.manifest import (
    MANIFEST,
    Entry,
    Manifest,
    described,
    other_versions,
    read_manifest,
    write_manifest,
)
from g10sim.cli.capture import capture
from g10sim.cli.output import say, show_table
from g10sim.errors import ConfigError
from g10sim.registry import choices_text, nearest

_NEEDS_A_GPU = "left: measured on a GPU"


def recapture(
    manifest: Annotated[Path, typer.Argument(help="MANIFEST.yaml of the traces.", show_default=False)],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="Directory to write to.", show_default="the manifest's, over its files"
        ),
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option(help="Trace file to make again.", show_default="all")
    ] = None,
) -> None:
    """Make the traces of a manifest again, each with its command, and write what came of it."""
    found = read_manifest(manifest)
    wanted = _wanted(found, only)
    directory = manifest.parent if output is None else output
    if not directory.is_dir():
        raise ConfigError(f"-o: found '{directory}'; allowed: a directory that exists")
    results, made = [], {}
    for entry in wanted:
        if entry.is_measured:
            results.append((entry.file, _NEEDS_A_GPU))
            continue
        path = directory / entry.file
        say(f"{entry.command} -o {path}")
        _run_capture([*entry.arguments, "-o", str(path)])
        made[entry.file] = described(entry, path)
        results.append((entry.file, _comparison(entry, made[entry.file])))
    kept = [entry for entry in found.traces if output is None or entry.file in made]
    entries = tuple(made.get(entry.file, entry) for entry in kept)
    write_manifest(Manifest(traces=entries), directory / (manifest.name if output is None else MANIFEST))
    show_table(("trace", "result"), (), results)


def _wanted(manifest: Manifest, only: list[str] | None) -> tuple[Entry, ...]:
    names = [entry.file for entry in manifest.traces]
    for name in only or ():
        if name not in names:
            raise ConfigError(f"--only: found '{name}'{nearest(name, names)}; allowed: {choices_text(names)}")
    return tuple(entry for entry in manifest.traces if not only or entry.file in only)


def _run_capture(arguments: list[str]) -> None:
    app = typer.Typer()
    app.command()(capture)
    app(arguments, standalone_mode=False)


def _comparison(before: Entry, now: Entry) -> str:
    if not before.sha256:
        return "new"
    if before.sha256 == now.sha256:
        return "the same, byte for byte"
    others = other_versions(before)
    return f"changed ({'; '.join(others)})" if others else "changed"
