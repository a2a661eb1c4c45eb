"""The page of every key of a run configuration, from the models that check it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from tables import table

from g10sim.config.behaviour import PRESETS, BehaviourSpec
from g10sim.config.presets import ssd_names, system_names
from g10sim.config.run import RunConfig

_INTRODUCTION = """# Run configuration

Written by `python docs/generate configuration` from the definitions that check a configuration.

A run is workload x system x policies, in YAML:

<!-- test: file all.yaml -->
```yaml
name: overall
workload:
  trace: traces/bert-base-b256-s128.g10t
  iterations: 2
system: {preset: a100-40g-pcie3-znand, host: {memory: 64 GiB}}
policies: [ideal, base_uvm, {name: deepum, look_ahead: 16}]
sweep:
  system.gpu.memory: [20 GiB, 40 GiB]
output: results/overall
```

"""
_RULES = """
```sh
g10sim run all.yaml
g10sim run all.yaml --set system.host.memory='32 GiB' --set 'policies=[ideal, deepum]' -o results/less
g10sim run --schema > g10sim.schema.json
```

- **Units are part of a value**: `40 GiB`, `3.2 GB/s`, `45 us`, `1.2 GHz`. A bare number is refused. kB, MB,
  GB, TB are powers of 1000; KiB, MiB, GiB, TiB powers of 1024.
- **Unknown keys are refused**, as are missing ones, with line, what was found, what is allowed, and the
  nearest name.
- **Relative paths** are looked for in the working directory, then beside the configuration, then in the
  bundled data.
- **`--set KEY=VALUE`** lays one value over the file; the value is read as YAML.
- **`sweep`** runs every combination of the values listed for dotted keys, the last key fastest; a list
  position is a number (`policies.1.look_ahead`). Swept keys become columns of the results.
- **Several seeds** (`seed: [0, 1, 2, 3, 4]`) give one row of the results each; the table at the end shows
  mean and 95% confidence interval over them.
- **The schema** printed by `--schema` lets editors complete and check configurations.
- **A run resumes**: cells whose configuration, trace and program are unchanged are not simulated again
  (`--force` does).

"""

_SECTIONS = {
    "RunConfig": ("Top level", ""),
    "WorkloadSpec": ("workload", "`trace` for one run per trace, or `jobs` for several jobs in one run."),
    "VariationSpec": (
        "workload.variation",
        "Policies plan for the times of the trace; each kernel, with its fault profile, is executed in that"
        " time multiplied by a factor of its own. `seed` decides the factors: the same in all iterations and"
        " under every policy. [The model](model.md#varied-kernel-times) says more.",
    ),
    "JobSpec": (
        "workload.jobs[]",
        "Jobs on one GPU run one after another, in order of arrival, unless `workload.sharing` says"
        " otherwise.",
    ),
    "ExchangeSpec": (
        "workload.gradient_exchange",
        "The `method` alone, or a mapping. For `replicas`; [several GPUs](multi-gpu.md#replicas) says more.",
    ),
    "SharingSpec": (
        "workload.sharing",
        "For workloads of several `jobs`. [The model](model.md#jobs-that-share-a-gpu) says more.",
    ),
    "PolicySpec": (
        "policies[]",
        "A name alone, or a mapping of `name` and the policy's parameters, which `g10sim policies` lists. A"
        " parameter whose name ends in `_file` is the path of a file.",
    ),
    "SystemSpec": ("system", ""),
    "GpuSpec": ("system.gpu", ""),
    "HostSpec": ("system.host", ""),
    "SocketSpec": ("system.host.sockets[]", "With sockets, every GPU hangs on one of them."),
    "PinnedSpec": (
        "system.host.pinned",
        "For designs that copy whole tensors: one buffer per tensor in host memory, pinned and unpinned one"
        " after the other. [The model](model.md#host-buffers) says more.",
    ),
    "CompressionSpec": (
        "system.host.compression",
        "For designs that compress what they offload; without it they cannot.",
    ),
    "SsdSpec": ("system.ssd, model link", ""),
    "FlashSsdSpec": ("system.ssd, model flash", ""),
    "CollectionSpec": ("system.ssd.collection", ""),
    "SlcSpec": ("system.ssd.slc", ""),
    "RatingSpec": ("system.ssd.rating", ""),
    "BounceSpec": ("system.ssd.bounce", ""),
    "PcieSpec": ("system.pcie", ""),
    "SharedLinkSpec": (
        "system.pcie.shared[]",
        "The links must form a tree: of two, one serves a part of the other's GPUs, or none.",
    ),
    "NvlinkSpec": ("system.nvlink", ""),
    "PageFaultSpec": ("system.page_fault", ""),
    "BehaviourSpec": ("compat", ""),
}


_MEANINGS = {
    ("SystemSpec", "name"): "name of the system; a preset's own",
    ("SystemSpec", "description"): "one line on it",
    ("SystemSpec", "sources"): "where each number comes from, by dotted key",
    ("SharedLinkSpec", "name"): "name of the link",
    ("SocketSpec", "name"): "name of the socket",
}
_DEFAULTS = {
    ("RunConfig", "output"): "`results/NAME`",
    ("RunConfig", "compat"): "the hardware's way",
    ("SystemSpec", "name"): "`custom`",
}


def page() -> str:
    """Return the page as Markdown."""
    schema = RunConfig.model_json_schema()
    models = {"RunConfig": schema, **schema["$defs"]}
    unknown = set(models) ^ set(_SECTIONS)
    if unknown:
        raise SystemExit(f"sections and models differ: {', '.join(sorted(unknown))}")
    parts = [_INTRODUCTION.rstrip("\n"), "\n", _RULES.rstrip("\n"), "\n"]
    for name, (title, text) in _SECTIONS.items():
        heading = title if title == "Top level" else f"`{title}`"
        note = _note(name) or text
        parts += [f"\n## {heading}\n\n", f"{note}\n\n" if note else ""]
        parts.append(_behaviour(models[name]) if name == "BehaviourSpec" else _keys(name, models))
    return "".join(parts)


def _note(name: str) -> str:
    if name == "SystemSpec":
        presets = ", ".join(f"`{preset}`" for preset in system_names())
        return (
            f"The name of a preset ({presets}), a YAML file of the same form, `{{preset: NAME, ...changes}}`,"
            " or everything spelled out. `g10sim system NAME` prints a preset and the source of every number."
        )
    if name == "FlashSsdSpec":
        presets = ", ".join(f"`{preset}`" for preset in ssd_names())
        return (
            f"`{{preset: NAME, ...changes}}` takes all keys from a preset ({presets}), in which every number"
            " has a source; `g10sim system NAME` prints one."
            " [The flash model](flash.md) explains what the keys do."
        )
    if name == "BehaviourSpec":
        presets = ", ".join(f"`{preset}`" for preset in sorted(PRESETS))
        return (
            f"The name of a preset ({presets}), `{{preset: NAME, ...changes}}`, or single keys. The defaults"
            " model the hardware; [deviations](deviations.md) explains each key."
        )
    return ""


def _keys(name: str, models: dict[str, Any]) -> str:
    return table(("key", "value", "default", "meaning"), (), _rows(name, models))


def _rows(name: str, models: dict[str, Any]) -> Iterator[tuple[str, str, str, str]]:
    required = models[name].get("required", [])
    for key, field in models[name]["properties"].items():
        default = "required" if key in required else _default(field)
        meaning = field.get("description") or _MEANINGS.get((name, key)) or _described(field, models)
        yield f"`{key}`", _kind(field), _DEFAULTS.get((name, key), default), meaning


def _behaviour(model: dict[str, Any]) -> str:
    preset = PRESETS["gpg"].model_dump(mode="json")
    defaults = BehaviourSpec().model_dump(mode="json")
    rows = (
        (f"`{key}`", _kind(field), f"`{defaults[key]}`", f"`{preset[key]}`", field["description"])
        for key, field in model["properties"].items()
    )
    return table(("key", "value", "default", "gpg", "meaning"), (), rows)


def _kind(field: dict[str, Any]) -> str:
    if "enum" in field or "const" in field:
        return ", ".join(f"`{choice}`" for choice in field.get("enum", [field.get("const")]))
    options = [option for option in _options(field) if option.get("type") != "null"]
    if options:
        return " or ".join(map(_kind, options))
    if "$ref" in field:
        return f"see `{_SECTIONS[field['$ref'].rpartition('/')[2]][0]}`"
    kind = field.get("type")
    if kind == "string":
        return f"quantity, such as `{field['examples'][0]}`" if "examples" in field else "text"
    if kind == "array":
        if field["items"].get("type") == "integer":
            return f"list of whole numbers{_range(field['items'])}"
        items = _kind(field["items"]) if field.get("items") else "value"
        return items if items.startswith("see") else f"list of {items}"
    if kind == "object":
        inner = field.get("additionalProperties")
        return f"mapping to {_kind(inner)}" if isinstance(inner, dict) else "mapping"
    if kind == "integer":
        return f"whole number{_range(field)}"
    if kind == "number":
        return f"number{_range(field)}"
    return {"boolean": "`true`, `false`"}.get(str(kind), "value")


def _options(field: dict[str, Any]) -> list[dict[str, Any]]:
    options: list[dict[str, Any]] = field.get("anyOf") or field.get("oneOf") or []
    return options


def _range(field: dict[str, Any]) -> str:
    least, most, below = field.get("minimum"), field.get("maximum"), field.get("exclusiveMaximum")
    if "exclusiveMinimum" in field:
        return f" above {field['exclusiveMinimum']}" + ("" if below is None else f", below {below}")
    if least is None:
        return ""
    if below is not None:
        return f" from {least} to less than {below}"
    return f" from {least}" if most is None else f" from {least} to {most}"


def _default(field: dict[str, Any]) -> str:
    default = field.get("default")
    if default is None or default in ("", [], {}):
        return "none"
    return f"`{default if isinstance(default, str) else json.dumps(default)}`"


def _described(field: dict[str, Any], models: dict[str, Any]) -> str:
    if _options(field):
        return _described(_options(field)[0], models)
    if "$ref" not in field:
        return ""
    text: str = models[field["$ref"].rpartition("/")[2]].get("description", "")
    return text.partition(".")[0].replace("``", "`")
