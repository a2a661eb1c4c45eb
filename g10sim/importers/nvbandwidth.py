"""Reads what NVIDIA's nvbandwidth measured of the link between GPUs and host memory."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from math import inf
from pathlib import Path
from statistics import median, median_low
from typing import Any, Literal

from pydantic import ConfigDict

from g10sim.config.document import Document
from g10sim.config.presets import PRESET_KEY, load_system, system_data, validated
from g10sim.config.quantities import Spec
from g10sim.config.system import SystemSpec
from g10sim.errors import ConfigError, choices_text, shown
from g10sim.files import reading
from g10sim.units import format_duration, format_rate

VERSIONS = ("v0.5", "v0.6", "v0.7", "v0.8", "v0.9", "v0.10")
"""Releases of one form (json_output.cpp of github.com/NVIDIA/nvbandwidth); those before wrote no JSON."""

Engine = Literal["copy", "sm"]
_SUFFIXES: Mapping[Engine, str] = {"copy": "ce", "sm": "sm"}
_INTO, _OUT = "host_to_device_memcpy", "device_to_host_memcpy"
_BOTH_INTO, _BOTH_OUT = "host_to_device_bidirectional_memcpy", "device_to_host_bidirectional_memcpy"
_LATENCY = "host_device_latency_sm"
_PASSED, _NO_VALUE = "Passed", "N/A"
_ALLOWED = "what nvbandwidth -j prints"
_BYTES_PER_GIGABYTE, _PICOSECONDS_PER_NANOSECOND = 10**9, 1000
_MUCH = 1.2
"""Largest over smallest value from which GPUs are not alike."""


class _Part(Spec):
    """A part of the file; keys that say nothing about links are let be."""

    model_config = ConfigDict(extra="ignore")


class _Test(_Part):
    name: str
    status: str
    bandwidth_matrix: tuple[tuple[str | float, ...], ...] = ()


class _Output(_Part):
    version: str
    testcases: tuple[_Test, ...]


class _File(_Part):
    nvbandwidth: _Output


@dataclass(frozen=True)
class Reading:
    """The result of one test, in GB/s or ns, and where it comes from.

    It is that of the chosen GPU, else the median over the GPUs: of GPUs that are not alike the lower one of
    two in the middle, which a GPU has. ``differing`` has the values of such GPUs, else it is empty.
    """

    value: float
    source: str
    differing: str = ""


@dataclass(frozen=True)
class MeasuredLink:
    """Rates of the link between a GPU and host memory, each direction alone and while the other is busy.

    ``latency`` is that of one access of a kernel to host memory; None where it was not measured.
    """

    path: Path
    to_device: Reading
    from_device: Reading
    both_to_device: Reading
    both_from_device: Reading
    latency: Reading | None

    @property
    def warnings(self) -> Iterator[str]:
        """Yield a line for each test that gave GPUs values which differ by more than 20 %."""
        found = (self.to_device, self.from_device, self.both_to_device, self.both_from_device, self.latency)
        for one in found:
            if one is not None and one.differing:
                yield f"{self.path}: {one.differing}; taken: {one.value:g}; --gpu-index N takes one GPU"

    def preset(self, base: str, name: str) -> dict[str, Any]:
        """Return the data of a system that differs from another in this link, checked. Raises ConfigError.

        Both directions at once have the sum of what each of them was left with, if that is less than both
        alone. A copy waits at least as long as one access to host memory.
        """
        readings = {"to_device": self.to_device, "from_device": self.from_device}
        link = {key: _rate(reading.value) for key, reading in readings.items()}
        sources = {key: reading.source for key, reading in readings.items()}
        both = self.both_to_device.value + self.both_from_device.value
        if both < self.to_device.value + self.from_device.value:
            link["duplex"] = _rate(both)
            sources["duplex"] = f"{self.both_to_device.source}; {self.both_from_device.source}; their sum"
        wait = None if self.latency is None else round(self.latency.value * _PICOSECONDS_PER_NANOSECOND)
        if self.latency and wait and wait > (load_system(base).pcie.per_copy or 0):
            link["per_copy"] = format_duration(wait)
            sources["per_copy"] = f"{self.latency.source}: the least that a copy waits"
        data = {
            PRESET_KEY: base,
            "name": name,
            "description": f"{base} with a link as fast as nvbandwidth measured ({self.path.name})",
            "pcie": link,
            "sources": {f"pcie.{key}": text for key, text in sources.items()},
        }
        document = Document(data, str(self.path))
        validated(SystemSpec, system_data(data, document, ()), document)
        return data


def read_link(path: Path, engine: Engine, gpu: int | None = None) -> MeasuredLink:
    """Read the tests of copies by one kind of engine: copy engines, or kernels on streaming multiprocessors.

    ``gpu`` is the index of the GPU whose values count; None: all GPUs. Raises ConfigError for a file of
    another form or version, for one without one of the tests, and for a GPU without a value.
    """
    with reading(path, ConfigError, _ALLOWED, "whole JSON"):
        data = json.loads(path.read_text(encoding="utf-8"))
        day = datetime.fromtimestamp(path.stat().st_mtime, UTC).date()
    if not isinstance(data, dict) or "nvbandwidth" not in data:
        raise ConfigError(f"{path}: found no object with 'nvbandwidth'; allowed: {_ALLOWED}")
    output = validated(_File, data, Document(data, str(path))).nvbandwidth
    if output.version not in VERSIONS:
        raise ConfigError.at(f"{path}: nvbandwidth.version", shown(output.version), ", ".join(VERSIONS))
    return _Reader(path, output, f"{path.name} of {day}", gpu).link(_SUFFIXES[engine])


@dataclass(frozen=True)
class _Reader:
    path: Path
    output: _Output
    origin: str
    gpu: int | None

    def link(self, suffix: str) -> MeasuredLink:
        wanted = [f"{test}_{suffix}" for test in (_INTO, _OUT, _BOTH_INTO, _BOTH_OUT)]
        into, out, both_into, both_out = (self._reading(name, wanted) for name in wanted)
        passed = (test for test in self.output.testcases if (test.name, test.status) == (_LATENCY, _PASSED))
        measured = any(self.gpu is None or self.gpu in self._values(test) for test in passed)
        latency = self._reading(_LATENCY, wanted) if measured else None
        return MeasuredLink(self.path, into, out, both_into, both_out, latency)

    def _reading(self, name: str, wanted: Sequence[str]) -> Reading:
        found = [test for test in self.output.testcases if test.name == name]
        passed = [test for test in found if test.status == _PASSED]
        if not passed:
            state = f"its status is {shown(found[-1].status)}" if found else "it is not there"
            allowed = f"a file with {', '.join(wanted)}"
            place = f"{self.path}: nvbandwidth.testcases"
            raise ConfigError.at(place, f"no {name} that passed ({state})", allowed)
        values = self._values(passed[-1])
        is_alike = max(values.values()) <= _MUCH * min(values.values())
        gpus, differing = "", ""
        if self.gpu is not None:
            if self.gpu not in values:
                allowed = f"--gpu-index {choices_text(map(str, values))}"
                raise ConfigError(f"{self.path}: {name}: found no GPU {self.gpu}; allowed: {allowed}")
            value, gpus = values[self.gpu], f", GPU {self.gpu}"
        else:
            value = (median if is_alike else median_low)(values.values())
            middle = "median of" if is_alike else "the lower median of differing"
            gpus = f", {middle} {len(values)} GPUs" if len(values) > 1 else ""
            listed = ", ".join(f"{one:g} (GPU {index})" for index, one in values.items())
            differing = "" if is_alike else f"{name}: GPUs differ by more than {_MUCH - 1:.0%}: {listed}"
        source = f"measured, nvbandwidth {self.output.version.removeprefix('v')}, {name}{gpus}, {self.origin}"
        return Reading(value, source, differing)

    def _values(self, test: _Test) -> dict[int, float]:
        """Return the values of a test by the index of the GPU."""
        row = test.bandwidth_matrix[0] if len(test.bandwidth_matrix) == 1 else ()
        try:
            values = {index: float(text) for index, text in enumerate(row) if text != _NO_VALUE}
        except ValueError:
            values = {}
        if not values or not all(0 < one < inf for one in values.values()):
            found = f"bandwidth_matrix {shown(test.bandwidth_matrix)}"
            allowed = "one row of numbers above zero, one for each GPU"
            raise ConfigError.at(f"{self.path}: {test.name}", found, allowed)
        return values


def _rate(gigabytes_per_second: float) -> str:
    return format_rate(round(gigabytes_per_second * _BYTES_PER_GIGABYTE))
