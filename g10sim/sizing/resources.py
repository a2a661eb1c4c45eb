"""The resources that a machine can be given more of: which keys, in which units, how far, at which prices."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import reduce
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from g10sim.config.data import find_file
from g10sim.config.document import leaves, load_document
from g10sim.config.presets import validated
from g10sim.config.problems import check_choice
from g10sim.config.quantities import Number, Spec, required
from g10sim.config.system import SystemSpec
from g10sim.errors import not_found, shown
from g10sim.units import RATE, SIZE, Quantity


@dataclass(frozen=True)
class Resource:
    """One resource of a system; amounts are bytes, or bytes/second.

    ``keys`` are dotted keys of a system: the first one is the amount, others are scaled with it. Where it is
    missing, ``instead`` are the keys; those in ``along`` are scaled, too, where they are there. ``tier`` is
    the memory tier that they describe, and ``needs`` what a system must have, in words. Amounts from
    ``least`` to ``most`` are searched; ``unit`` is that of figures.
    """

    name: str
    title: str
    keys: tuple[str, ...]
    quantity: Quantity
    unit: str
    least: int
    most: int
    needs: str
    tier: str = ""
    instead: tuple[str, ...] = ()
    along: tuple[str, ...] = ()

    def amount(self, system: SystemSpec) -> int | None:
        """Return how much of it a system has; None for one that lacks what it ``needs``."""
        if self.tier and self.tier not in system.kinds:
            return None
        known = leaves(system.model_dump(mode="json"))
        found = [known.get(key) for key in self._keys(known)]
        return None if not found or None in found else self.quantity.parse(found[0])

    def changed(self, system: SystemSpec, amount: int) -> SystemSpec:
        """Return a system with so much of it."""
        return SystemSpec.model_validate(self._data(system, amount))

    def sweep(self, system: SystemSpec, amounts: Iterable[int]) -> dict[str, list[Any]]:
        """Return the key of a run configuration, and its values, that give a system each amount."""
        keys = self._keys(leaves(system.model_dump(mode="json")))
        section, _, name = keys[0].rpartition(".")
        found = [self._data(system, amount)[section] for amount in amounts]
        if len(keys) == 1:
            return {f"system.{keys[0]}": [part[name] for part in found]}
        return {f"system.{section}": found}

    def text(self, amount: int) -> str:
        """Write an amount exactly."""
        return self.quantity.format(amount)

    def in_units(self, amount: int) -> float:
        """Return an amount in the unit of figures."""
        return amount / self.quantity.units[self.unit]

    def grain(self, system: SystemSpec) -> int:
        """Return the smallest difference of amounts that counts."""
        return system.gpu.page_size if self.quantity is SIZE else self.quantity.least

    def rounded(self, amount: int, coarsest: int, grain: int) -> int:
        """Return an amount near this one that is short to write: a multiple of at most ``coarsest``."""
        base = 2 if self.quantity is SIZE else 10
        steps = (grain * base**power for power in range(coarsest.bit_length()))
        step = max((step for step in steps if step <= coarsest), default=grain)
        return (amount + step // 2) // step * step

    def _keys(self, known: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the keys that hold the amount and what goes with it, of those with a value."""
        own = self.keys if known.get(self.keys[0]) is not None else self.instead
        return (*own, *(key for key in self.along if known.get(key) is not None))

    def _data(self, system: SystemSpec, amount: int) -> dict[str, Any]:
        """Return the data of a system with so much of it."""
        data = system.model_dump(mode="json")
        known = leaves(data)
        given = {key: self.quantity.parse(known[key]) for key in self._keys(known)}
        first, *others = given
        scaled = {key: max(self.quantity.least, given[key] * amount // given[first]) for key in others}
        for key, value in ({first: amount} | scaled).items():
            *path, last = key.split(".")
            reduce(dict.__getitem__, path, data)[last] = self.text(value)
        return data


_TIB, _TB = 2**40, 10**12
_LINK_KEYS, _DIRECTIONS = ("pcie.bandwidth",), ("pcie.to_device", "pcie.from_device")
_BESIDE = ("pcie.duplex", *_DIRECTIONS)
_LINK_NEEDS = "pcie.bandwidth, or to_device and from_device"
_SSD_KEYS, _CACHE = ("ssd.read_bandwidth", "ssd.write_bandwidth"), ("ssd.write_cache.sustained",)
_SSD_NEEDS = "tier `ssd` with rates (model: link)"
_ALL = (
    Resource("gpu-memory", "GPU memory", ("gpu.memory",), SIZE, "GiB", 2**12, _TIB, "gpu.memory"),
    Resource(
        "host-memory", "host memory", ("host.memory",), SIZE, "GiB", 0, 16 * _TIB, "tier `host`", "host"
    ),
    Resource(
        "link", "PCIe bandwidth", _LINK_KEYS, RATE, "GB/s", 10**7, _TB, _LINK_NEEDS, "", _DIRECTIONS, _BESIDE
    ),
    Resource("ssd", "SSD bandwidth", _SSD_KEYS, RATE, "GB/s", 10**6, _TB, _SSD_NEEDS, "ssd", along=_CACHE),
)
RESOURCES: Mapping[str, Resource] = {resource.name: resource for resource in _ALL}


def find(name: str) -> Resource:
    """Return the resource of a name. Raises ConfigError."""
    check_choice(name, RESOURCES, "--resource: found")
    return RESOURCES[name]


DEFAULT_PRICES = Path("configs", "prices", "default.yaml")


def _as_text(value: object) -> object:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


class PriceSpec(Spec):
    """One price: so much money for so much of a resource."""

    price: Number = Field(ge=0)
    """in the currency of the list"""
    quantity: str = Field(alias="for")
    """amount that it buys, with a unit"""
    source: str = Field(min_length=1)
    """where the price is from"""
    date: Annotated[str, BeforeValidator(_as_text)] = Field(pattern=r"^\d{4}(-\d\d){0,2}$")
    """when it held: year, month or day"""


class PriceList(Spec):
    """Prices by name of the resource; resources without one have no cost."""

    currency: str = Field(min_length=1, max_length=10)
    prices: dict[str, PriceSpec]

    @required
    def _quantities_fit(self) -> Iterator[str]:
        for name, given in self.prices.items():
            if name not in RESOURCES:
                yield f"prices: found {shown(name)}{not_found(name, RESOURCES)}"
            try:
                bought = RESOURCES[name].quantity.parse(given.quantity)
            except ValueError as error:
                yield f"prices.{name}.for: {error}"
            if not bought:
                yield f"prices.{name}.for: found {shown(given.quantity)}; allowed: more than zero"

    def cost(self, resource: Resource, amount: int) -> float | None:
        """Return what an amount of a resource costs; None without a price."""
        given = self.prices.get(resource.name)
        if given is None:
            return None
        return float(Fraction(str(given.price)) * amount / resource.quantity.parse(given.quantity))


def load_prices(path: Path) -> PriceList:
    """Read a price list. Raises ConfigError naming file, line and key."""
    document = load_document(find_file(str(path)))
    return validated(PriceList, document.data, document)
