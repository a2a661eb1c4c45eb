"""``g10sim system`` and ``g10sim policies``: presets and policies to choose from."""

from __future__ import annotations

import inspect
from typing import Annotated, Any

import yaml
from pydantic_core import to_jsonable_python
from typer import Argument

from g10sim.cli.options import Json
from g10sim.cli.output import say, say_json, show_table
from g10sim.config.presets import load_ssd, load_system, ssd_names, system_names
from g10sim.config.problems import check_choice
from g10sim.config.tiers import Tier
from g10sim.errors import as_spelled
from g10sim.policies.interface.policy import Policy
from g10sim.policies.interface.registry import available, find
from g10sim.units import format_bytes, format_rate


def system(
    name: Annotated[str | None, Argument(help="System or SSD to show in full.")] = None, json: Json = False
) -> None:
    """List the presets of systems and SSDs, or show one with the source of every number."""
    if json:
        names = (*system_names(), *ssd_names())
        say_json({every: _described(every) for every in names} if name is None else _described(name))
        return
    if name is not None:
        say(yaml.safe_dump(_described(name), sort_keys=False, allow_unicode=True, width=120).rstrip())
        return
    rows = []
    for preset in system_names():
        spec = load_system(preset)
        link = " / ".join(dict.fromkeys(map(format_rate, (spec.pcie.inward, spec.pcie.outward))))
        tiers = ", ".join(map(_tier, spec.all_tiers))
        rows.append((preset, str(spec.gpu.count), format_bytes(spec.gpu.memory), link, tiers))
    show_table(("system", "GPUs", "HBM", "PCIe", "memory tiers"), (), rows)
    say("")
    show_table(("SSD", "what it is"), (), ((name, load_ssd(name).description) for name in ssd_names()))


def _tier(tier: Tier) -> str:
    """Describe a tier: name, size, and rates where it has its own."""
    rates = [format_rate(rate) for rate in (tier.read_bandwidth, tier.write_bandwidth) if rate]
    return " ".join([tier.title, format_bytes(tier.capacity), " / ".join(dict.fromkeys(rates))]).strip()


def policies(
    name: Annotated[
        str | None, Argument(help="Policy to show with its parameters: a name, or module:Class.")
    ] = None,
    json: Json = False,
) -> None:
    """List the policies with their papers, or show one with its parameters and their defaults."""
    if json:
        say_json([_facts(*one) for one in available().items()] if name is None else _facts(name, find(name)))
        return
    if name is None:
        rows = ((key, policy.label, policy.paper) for key, policy in available().items())
        show_table(("name", "label", "paper"), (), rows)
        return
    policy = find(name)
    heading = f"{name}: {policy.label}{f' ({policy.paper})' if policy.paper else ''}"
    say(heading, inspect.getdoc(policy) or "", "", *(_parameters(policy) or ["no parameters"]))


def _described(name: str) -> dict[str, Any]:
    """Return a system, by name or from a file, or an SSD. Raises ConfigError."""
    ssds = ssd_names()
    names = (*system_names(), *ssds)
    name = as_spelled(name, names)
    if name in ssds:
        return load_ssd(name).model_dump(mode="json")
    if not name.endswith((".yaml", ".yml")):
        check_choice(name, names, "system: found unknown preset", ", or a YAML file")
    return load_system(name).model_dump(mode="json")


def _facts(name: str, policy: type[Policy]) -> dict[str, object]:
    """Return what a policy is, with the defaults of its parameters: null for one that has to be given."""
    given = inspect.signature(policy).parameters.values()
    defaults = {one.name: None if one.default is one.empty else one.default for one in given}
    return {
        "name": name,
        "label": policy.label,
        "paper": policy.paper,
        "parameters": to_jsonable_python(defaults, fallback=str),
        "description": inspect.getdoc(policy) or "",
    }


def _parameters(policy: type[Policy]) -> list[str]:
    """Return parameters as ``name = default``; one without default has only its name."""
    given = inspect.signature(policy).parameters.values()
    return [one.name if one.default is one.empty else f"{one.name} = {one.default!r}" for one in given]
