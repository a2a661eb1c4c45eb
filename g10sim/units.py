"""Quantities with units: the only place that knows GB from GiB.

Inside g10sim sizes are integer bytes, rates integer bytes/second, durations integer picoseconds,
frequencies integer hertz and simulated time integer GPU cycles.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import ROUND_HALF_EVEN, Decimal, DecimalException
from fractions import Fraction
from functools import lru_cache

from g10sim.errors import shown

PICOSECONDS_PER_SECOND = 10**12

_SIZE = {"B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_SIZE |= {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_TIME = {"ps": 1, "ns": 10**3, "us": 10**6, "ms": 10**9, "s": 10**12}
_FREQUENCY = {"Hz": 1, "kHz": 10**3, "MHz": 10**6, "GHz": 10**9}
_RATE = {f"{unit}/s": factor for unit, factor in _SIZE.items()}
_COMPUTE = {"FLOP/s": 1, "GFLOP/s": 10**9, "TFLOP/s": 10**12, "PFLOP/s": 10**15}

_COUNTS = {"/s": 1, "k/s": 10**3, "M/s": 10**6, "G/s": 10**9, "T/s": 10**12}

_QUANTITY = re.compile(r"\s*([+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?)\s*([A-Za-z/]*)\s*", re.ASCII)

LONGEST_SECONDS = 10**6
"""Longest duration: below it, cycles of any allowed clock fit into 64 bits."""


@dataclass(frozen=True, eq=False)
class Quantity:
    """A kind of quantity: its units and its physical range, in the smallest unit.

    ``least`` is the smallest that is not 0; ``reason`` tells why the range ends where it does. ``column``
    ends the names of columns with such numbers, whose unit is the one of ``units`` in ``column_unit``.
    """

    what: str
    units: dict[str, int]
    example: str
    least: int
    most: int
    reason: str
    column: str
    column_unit: str

    @property
    def range(self) -> str:
        """The range as text."""
        return f"{self.format(self.least)} to {self.format(self.most)} ({self.reason})"

    def format(self, amount: int) -> str:
        """Write an amount exactly, in the unit that gives the shortest number (``'40 GiB'``)."""
        return _formatted(self, amount)

    def parse(self, value: object) -> int:
        """Read a number with a unit; returns an integer of the smallest unit. Raises ValueError."""
        allowed = f"a {self.what} with a unit ({', '.join(self.units)}), for example '{self.example}'"
        found = shown(value)
        if isinstance(value, bool) or not isinstance(value, (str, int, float)):
            raise ValueError(f"found {found}; allowed: {allowed}")
        match = _QUANTITY.fullmatch(value if isinstance(value, str) else found)
        if match is None:
            raise ValueError(f"found {found}; allowed: {allowed}")
        number, unit = match.groups()
        if not unit:
            raise ValueError(f"found {found} without a unit; allowed: {allowed}")
        if unit not in self.units:
            raise ValueError(f"found unknown unit {shown(unit)} in {found}; allowed: {allowed}")
        try:
            amount = Decimal(number) * self.units[unit]
        except DecimalException as error:
            raise ValueError(f"found {found}; allowed: {self.range}") from error
        if amount < 0:
            raise ValueError(f"found negative {found}; allowed: {allowed}, zero or more")
        # An exponent can make an integer of a million digits: compared first, converted afterwards.
        rounded = int(amount.to_integral_value(ROUND_HALF_EVEN)) if amount <= self.most else -1
        if rounded and rounded < self.least:
            raise ValueError(f"found {found}; allowed: {self.range}")
        return rounded


@lru_cache(maxsize=1024)
def _formatted(kind: Quantity, amount: int) -> str:
    units = kind.units

    def length(unit: str) -> tuple[int, int]:
        return len(_number(amount, units[unit]).replace(".", "")), -units[unit]

    best = min([unit for unit in units if amount >= units[unit]] or list(units)[:1], key=length)
    return f"{_number(amount, units[best])} {best}"


SIZE = Quantity("size", _SIZE, "40 GiB", 1, 10**18, "1 EB is more than any machine has", "bytes", "B")
_LINKS = "from slow serial lines to beyond any memory or link"
RATE = Quantity("data rate", _RATE, "15.754 GB/s", 10**3, 10**15, _LINKS, "bytes_per_s", "B/s")

_LONGEST = LONGEST_SECONDS * PICOSECONDS_PER_SECOND
DURATION = Quantity("duration", _TIME, "45 us", 1, _LONGEST, "cycles have to fit into 64 bits", "s", "s")

_CLOCKS = "kernels last microseconds, of which slower clocks leave no cycles; times are whole picoseconds"
FREQUENCY = Quantity("frequency", _FREQUENCY, "1.2 GHz", 10**8, 10**12, _CLOCKS, "hz", "Hz")

_MACHINES = "from one slow core to beyond any machine"
COMPUTE_RATE = Quantity(
    "compute rate", _COMPUTE, "19.5 TFLOP/s", 10**6, 10**21, _MACHINES, "flop_per_s", "FLOP/s"
)
COUNT_RATE = Quantity("rate", _COUNTS, "4 G/s", 10**3, 10**15, _MACHINES, "per_s", "/s")

QUANTITIES = (SIZE, RATE, DURATION, FREQUENCY, COMPUTE_RATE, COUNT_RATE)


parse_bytes, parse_rate = SIZE.parse, RATE.parse
format_bytes, format_rate = SIZE.format, RATE.format
format_duration, format_frequency = DURATION.format, FREQUENCY.format


def _number(amount: int, factor: int) -> str:
    return format((Decimal(amount) / factor).normalize(), "f")


def duration_to_cycles(picoseconds: int, clock_hz: int) -> int:
    """Cycles that a duration takes at a clock, rounded up (a wait never ends early)."""
    return -(-picoseconds * clock_hz // PICOSECONDS_PER_SECOND)


def cycles_to_ms(cycles: int, clock_hz: int) -> float:
    """Milliseconds of a number of cycles at a clock."""
    return float(Fraction(cycles * 1000, clock_hz))
