"""One combination of a run's settings, as far as it decides which keys count; those that do nothing."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from pydantic import BaseModel

from g10sim.config.document import Document, KeyPath
from g10sim.config.effects import Effect, effects_of
from g10sim.config.load import run_config
from g10sim.config.run import RunConfig, most_iterations
from g10sim.errors import ConfigError

PolicyTraits = Mapping[str, bool]
"""Properties of a policy that decide which keys count.

``is_paged``: memory moves in pages; ``copies``: whole tensors are copied, ``copies_to_host``: to host memory,
too, where buffers that are left are unpinned (``unpins``); ``plans``: it plans for the machine;
``keeps_service``: links are served as the system says; ``frees_itself``: it is paged, and its tensors have
their own addresses whatever the others have; ``pins``: it moves pages, and says which tensors are pinned in
host memory; ``pins_on_use``: it moves pages, and buffers in host memory are pinned when they are used first.
"""


@dataclass(frozen=True)
class Setting:
    """One combination of a run's settings: the configuration and the traits of its policies.

    ``policies`` leaves out those with unlimited memory, which others are measured by: a run of them alone
    counts as one of any policies.
    """

    config: RunConfig
    policies: Sequence[PolicyTraits]

    def has_policy(self, trait: str) -> bool:
        """Return whether a policy has a trait."""
        return not self.policies or any(policy[trait] for policy in self.policies)

    @cached_property
    def is_paged(self) -> bool:
        """Return whether a policy moves pages."""
        return self.has_policy("is_paged")

    @property
    def is_batched(self) -> bool:
        """Return whether pages move in batches, which know one link and nothing of how it is shared."""
        return self.config.compat.transfers == "batched"

    @property
    def pins(self) -> bool:
        """Return whether a policy that moves pages says which tensors are pinned in host memory."""
        return not self.is_batched and self.has_policy("pins")

    @property
    def pins_on_use(self) -> bool:
        """Return whether buffers in host memory are pinned when they are used first."""
        return not self.is_batched and self.has_policy("pins_on_use")

    @property
    def has_pageable_memory(self) -> bool:
        """Return whether it matters which tensors such a policy pins."""
        pinned = self.config.system.host.pinned
        return self.pins and pinned is not None and pinned.pageable_bandwidth is not None

    @property
    def accesses_tiers(self) -> bool:
        """Return whether kernels can use tensors where they lie in some tier."""
        system = self.config.system
        return not self.is_batched and self.is_paged and any(tier.kernel_access for tier in system.all_tiers)

    @property
    def has_links(self) -> bool:
        """Return whether anything moves over the tree of links."""
        return self.has_policy("copies") or not self.is_batched

    @property
    def replicas(self) -> int:
        """Replicas that could exchange gradients."""
        return self.config.workload.replicas or 1

    @cached_property
    def tiers(self) -> frozenset[str]:
        """Names of the memory tiers."""
        return frozenset(tier.name for tier in self.config.system.all_tiers)

    @cached_property
    def places(self) -> frozenset[str]:
        """Names of what memory tiers hang on."""
        return frozenset(tier.at for tier in self.config.system.all_tiers if tier.at is not None)

    @property
    def joins_gpus(self) -> bool:
        """Return whether bytes may go from GPU to GPU."""
        exchange, gpus = self.config.workload.gradient_exchange, range(self.config.system.gpu.count)
        hosts = self.places & {f"gpu{gpu}" for gpu in gpus}
        apart = len({job.gpu for job in self.config.workload.jobs}) > 1
        return (self.replicas > 1 and exchange.method == "ring") or apart or (len(gpus) > 1 and bool(hosts))

    @property
    def has_tier_at_socket(self) -> bool:
        """Return whether a tier hangs on a processor."""
        return not self.places.isdisjoint(self.config.system.sockets)

    @property
    def last_gpu(self) -> int:
        """The highest GPU that a job runs on."""
        return max((job.gpu for job in self.config.workload.jobs), default=self.replicas - 1)

    @property
    def shares_gpus(self) -> bool:
        """Return whether jobs run side by side on a GPU."""
        return self.config.workload.sharing.compute != "exclusive"

    @property
    def most_iterations(self) -> int:
        """Most iterations that a job may run."""
        workload, compat = self.config.workload, self.config.compat
        return max(most_iterations(part.iterations, compat) for part in workload.jobs or (workload,))


class IdleKeys:
    """Collects, over all combinations of swept values, which keys that the user wrote count.

    A key is idle if it is written in some combinations and counts in none of them.
    """

    def __init__(self) -> None:
        self._idle: dict[KeyPath, tuple[Document, str]] = {}
        self._counting: set[KeyPath] = set()

    def note(
        self, document: Document, setting: Setting, path: KeyPath, value: object, effect: Effect, part: object
    ) -> None:
        """Note whether a key of a part, or a policy, counts in a combination; the document has its values."""
        if effect.counts(setting, part):
            self._counting.add(path)
        elif path not in self._idle:
            message = f"found {_words(value)}, which does nothing here: {effect.otherwise}"
            self._idle[path] = document, f"{message}; allowed: {effect.where}, or leaving it out"

    def note_all(self, document: Document, setting: Setting) -> None:
        """Note which keys of a combination count by the effects at them."""
        for path, holder, key, value in _written(document.data, setting.config, ()):
            effect = effects_of(type(holder)).get(key)
            if effect is not None:
                self.note(document, setting, path, value, effect, holder)

    def check(self) -> None:
        """Raise ConfigError for the first idle key that may be left out."""
        for path, (document, message) in self._idle.items():
            if path not in self._counting and _may_be_left_out(document, path):
                raise document.error(path, message)


def _written(
    data: Mapping[str, Any], model: BaseModel, path: KeyPath
) -> Iterator[tuple[KeyPath, BaseModel, str, object]]:
    """Yield keys that the user gave a value: path, part of the configuration that has it, name, value."""
    for key, value in data.items():
        if value is None or key not in type(model).model_fields:
            continue
        here, found = (*path, key), getattr(model, key)
        default = type(model).model_fields[key].get_default(call_default_factory=True)
        if found == default and not isinstance(found, BaseModel):
            continue
        yield here, model, key, value
        if isinstance(value, Mapping) and isinstance(found, BaseModel):
            yield from _written(value, found, here)
        elif isinstance(value, list | tuple) and isinstance(found, tuple):
            for number, (entry, part) in enumerate(zip(value, found, strict=False)):
                if isinstance(part, str):  # an entry of tiers that describes a section of the system
                    part = getattr(model, part, part)
                if isinstance(entry, Mapping) and isinstance(part, BaseModel):
                    yield from _written(entry, part, (*here, number))


def _may_be_left_out(document: Document, path: KeyPath) -> bool:
    """Return True if a configuration is valid without a key."""
    data = copy.deepcopy(document.data)
    here: Any = data
    for part in path[:-1]:
        here = here[part]
    del here[path[-1]]
    try:
        run_config(Document(data, document.source, document.path))
    except ConfigError:
        return False
    return True


def _words(value: object) -> str:
    """Describe a value in a message, without the contents of a mapping or list."""
    if isinstance(value, Mapping):
        return "a mapping"
    return "a list" if isinstance(value, list | tuple) else repr(value)
