"""Manifest of the bundled traces: the command that makes each, and facts about the result."""

from __future__ import annotations

import shlex
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path, PurePath
from typing import Annotated, Any

import yaml
from pydantic import AfterValidator, Field

from g10sim.analysis.footprint import footprint_bytes
from g10sim.config.document import load_document
from g10sim.config.presets import validated
from g10sim.config.quantities import Spec
from g10sim.files import file_hash, save_text
from g10sim.trace.format import load_trace

MANIFEST = "MANIFEST.yaml"
_LIBRARIES = ("torch", "torchvision", "transformers", "timm")
_COMMAND = ["g10sim", "trace", "capture"]
_ALLOWED = "g10sim trace capture SOURCE OPTION ..., without -o"
_HEAD = """\
# Traces that come with g10sim. `g10sim trace recapture` makes them again from file and command alone, and
# writes the rest. time_source is where kernel times come from; versions are those it was made with.
"""
_WIDTH = 10_000


def _plain_file(name: str) -> str:
    if PurePath(name).name != name or not name.endswith(".g10t"):
        raise ValueError(f"found '{name}'; allowed: a file name that ends in .g10t, without a directory")
    return name


def _capture_command(command: str) -> str:
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise ValueError(f"found a command that cannot be split ({error}); allowed: {_ALLOWED}") from None
    if words[:3] != _COMMAND or len(words) < len(_COMMAND) + 1 or {"-o", "--output"} & set(words):
        raise ValueError(f"found '{command}'; allowed: {_ALLOWED}")
    return command


class Entry(Spec):
    """A trace file, the command that makes it, and facts about what it made."""

    file: Annotated[str, AfterValidator(_plain_file)]
    command: Annotated[str, AfterValidator(_capture_command)]
    gpu: str = ""
    time_source: str = ""
    versions: dict[str, str] = Field(default_factory=dict)
    """of the libraries, and of the device if measured"""
    tensors: int = 0
    kernels: int = 0
    footprint_bytes: int = 0
    peak_live_bytes: int = 0
    kernel_time_ns: int = 0
    sha256: str = ""

    @property
    def arguments(self) -> list[str]:
        """Words of the command after ``g10sim trace capture``."""
        return shlex.split(self.command)[len(_COMMAND) :]

    @property
    def is_measured(self) -> bool:
        """Return True if the times were taken on a GPU, so that no two captures are alike."""
        return "measured" in self.time_source

    def on(self, gpu: str) -> Entry:
        """Return the entry of the same trace for another GPU, which is not made yet."""
        words = shlex.split(self.command.replace("--gpu=", "--gpu "))
        options = [place for place, word in enumerate(words) if word == "--gpu"]
        for place in options:
            words[place + 1 : place + 2] = [gpu]
        command = shlex.join(words if options else [*words, "--gpu", gpu])
        time_source = self.time_source if self.is_measured else ""
        return Entry(file=self.file, command=command, time_source=time_source)


class Manifest(Spec):
    """Every bundled trace."""

    traces: tuple[Entry, ...]


def read_manifest(path: Path) -> Manifest:
    """Read a manifest. Raises ConfigError naming file, line, key, what was found and what is allowed."""
    document = load_document(path)
    manifest = validated(Manifest, document.data, document)
    names = [entry.file for entry in manifest.traces]
    for place, name in enumerate(names):
        if name in names[:place]:
            raise document.error(("traces", place, "file"), f"found '{name}' twice; allowed: each file once")
    return manifest


def write_manifest(manifest: Manifest, path: Path) -> None:
    """Write a manifest; the file appears whole or not at all. Raises ConfigError."""
    entries = [entry.model_dump(exclude_defaults=True) for entry in manifest.traces]
    text = yaml.safe_dump({"traces": entries}, sort_keys=False, width=_WIDTH)
    save_text(path, _HEAD + text)


def described(entry: Entry, path: Path) -> Entry:
    """Return an entry with the facts of the trace file at ``path``. Raises TraceError as reading it does."""
    trace = load_trace(path)
    facts: dict[str, Any] = {
        "gpu": trace.origin.get("gpu", ""),
        "time_source": ", ".join(sorted({kernel.time_source.value for kernel in trace.kernels})),
        "versions": {name: trace.origin[name] for name in _LIBRARIES if name in trace.origin},
        "tensors": len(trace.tensors),
        "kernels": len(trace.kernels),
        "footprint_bytes": footprint_bytes(trace),
        "peak_live_bytes": int(trace.origin.get("peak_live_bytes", 0)),
        "kernel_time_ns": sum(kernel.duration for kernel in trace.kernels),
        "sha256": file_hash(path),
    }
    return entry.model_copy(update=facts)


def other_versions(entry: Entry) -> list[str]:
    """Say which of the libraries that made a trace are installed in another version, or not at all."""
    found = []
    for name, wanted in entry.versions.items():
        try:
            installed = version(name)
        except PackageNotFoundError:
            installed = "not installed"
        if installed.partition("+")[0] != wanted.partition("+")[0]:
            found.append(f"{name} {installed} instead of {wanted}")
    return found
