"""Three numbers and the list of designs on the front page."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from statistics import median

from tables import fill, table

from g10sim.policies.interface.policy import Policy
from g10sim.policies.interface.registry import available

_ROOT = Path(__file__).parents[2]
_NUMBERS = re.compile(r"(<!-- numbers -->\n).*?(<!-- end of numbers -->)", re.DOTALL)
_DESIGNS = re.compile(r"(<!-- designs -->\n).*?(<!-- end of designs -->)", re.DOTALL)
_EXACT = re.compile(r"^\| figure \d+ \| \w+ \| (?!reference)\w* ?\| (\d+) of (\d+) \|", re.MULTILINE)
_TIMES = re.compile(r"^(?:\|[^|\n]*){8}\| ([\d,]+) \|[^|\n]*\|$", re.MULTILINE)


def with_numbers(text: str, validation_page: str, benchmarks_page: str) -> str:
    """Return the front page with numbers and designs between its marks, from these pages and the registry."""
    found = _EXACT.findall(validation_page)
    times = [int(number.replace(",", "")) for number in _TIMES.findall(benchmarks_page)]
    if not found or not times:
        raise SystemExit(
            "docs/validation.md, docs/benchmarks.md: found no numbers; allowed: the current pages"
        )
    exact, values = (sum(map(int, column)) for column in zip(*found, strict=True))
    numbers = {"exact": exact, "values": values, "faster": f"{median(times):.0f}", "timed": len(times)}
    lines = fill("front_page", designs=len(_designs()), **numbers)
    text = _NUMBERS.sub(lambda match: f"{match[1]}{lines}{match[2]}", text)
    rows = [
        [policy.label, f"[`{name}`]({_file(policy)})", policy.paper] for name, policy in _designs().items()
    ]
    designs = table(("Design", "Its file", "Paper"), (), rows)
    return _DESIGNS.sub(lambda match: f"{match[1]}{designs}{match[2]}", text)


def _designs() -> dict[str, type[Policy]]:
    """Return the policies that come with g10sim, without plug-ins, by key."""
    return {name: policy for name, policy in available().items() if policy.__module__.startswith("g10sim.")}


def _file(policy: type[Policy]) -> str:
    return Path(inspect.getfile(policy)).resolve().relative_to(_ROOT).as_posix()
