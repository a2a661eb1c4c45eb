"""The page of measured and specified link rates, from results of ``configs/rates.yaml``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from tables import fill, table

from g10sim.config.load import load_run
from g10sim.config.presets import load_system
from g10sim.results.reading import read_results

PRESET = "system.preset"
SPECIFIED = "-spec"
_GB = 10**9


def page(results: Path) -> str:
    """Return the page. Raises ConfigError when there are no results."""
    frame = read_results(results)
    system = load_run(Path("configs/rates.yaml")).data["system"]
    presets = list(dict.fromkeys(frame[PRESET]))
    shares = frame.pivot(index=["model", "batch_size", "policy"], columns=PRESET, values="performance")
    cases = dict.fromkeys(zip(frame["model"], frame["batch_size"], frame["policy"], strict=True))
    links = map(link, presets)
    rows = [
        [*map(str, case), *(share(shares.loc[case], preset, presets) for preset in presets)] for case in cases
    ]
    return fill(
        "rates",
        links=table(("machine", "rates"), ("to the GPU", "from it", "both", "start of a copy"), links),
        memory=system["gpu"]["memory"],
        host=system["host"]["memory"],
        performance=table(("model", "batch size", "policy"), presets, rows),
    )


def link(preset: str) -> list[str]:
    """Return the row of a machine's link."""
    pcie = load_system(preset).pcie
    cost = "" if pcie.per_copy is None else f"{pcie.per_copy / 10**6:g} us"
    both = "" if pcie.duplex is None else f"{pcie.duplex / _GB:g}"
    kind = "specification" if preset.endswith(SPECIFIED) else "measured"
    return [f"`{preset}`", kind, f"{pcie.inward / _GB:g}", f"{pcie.outward / _GB:g}", both, cost]


def share(performance: Mapping[str, float], preset: str, presets: Sequence[str]) -> str:
    """Return the performance on a machine, and its change against the specification listed before it."""
    if preset.endswith(SPECIFIED):
        return f"{performance[preset]:.1%}"
    before = reversed(presets[: presets.index(preset)])
    specified = next(other for other in before if other.endswith(SPECIFIED))
    change = round(performance[preset] / performance[specified] - 1, 3) + 0.0  # never -0.0
    return f"{performance[preset]:.1%} ({change:+.1%})"
