"""Price lists: what a unit of each resource costs, with source and date of every price."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator, Field

from g10sim.config.data import find_file
from g10sim.config.document import load_document
from g10sim.config.presets import validated
from g10sim.config.quantities import Number, Spec, required
from g10sim.registry import not_found
from g10sim.sizing.resources import RESOURCES, Resource
from g10sim.text import shown

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
