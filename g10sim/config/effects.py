"""Conditions under which a key of a configuration counts; they stand at the key, and others are refused.

Only keys that the user wrote are judged: in the file, as a setting, or swept. What a preset or a system in
its own file fills in is not, nor is a key that may not be left out. A key is refused if it changes no
number in any combination of swept values, under any of the policies.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

if TYPE_CHECKING:
    from g10sim.config.setting import Setting


@dataclass(frozen=True)
class Effect:
    """Condition under which a key counts, given the setting and the part, or policy, that has the key.

    ``where`` is the condition in words, ``otherwise`` why the key does nothing elsewhere. It is an
    annotation of the key. A key without one always counts, or is no part of what is simulated.
    """

    counts: Callable[[Setting, Any], bool]
    where: str
    otherwise: str


def effects_of(model: type[BaseModel]) -> Mapping[str, Effect]:
    """Return the effects of a model's keys by key."""
    fields = model.model_fields.items()
    return {key: one for key, field in fields for one in field.metadata if isinstance(one, Effect)}


PAGES = Effect(
    lambda run, _: run.is_paged, "with a policy that moves pages", "every policy copies whole tensors"
)
COPIES = Effect(
    lambda run, _: run.has_policy("copies"),
    "with a policy that copies whole tensors",
    "every policy moves pages",
)
LINKS = Effect(
    lambda run, _: run.has_links,
    "with fluid transfers or a policy that copies whole tensors",
    "batched transfers know one link",
)
