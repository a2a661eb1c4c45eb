"""What more of a machine costs at worst, and what changes at most where nothing should."""

import math
from pathlib import Path

import yaml
from altered import BEHAVIOURS, BETTER, FACTORS, SAME, cycles, draw_case

from g10sim.policies.interface.registry import available, create

TABLE = Path(__file__).parent / "worst.yaml"
PAGE = Path(__file__).parents[2] / "docs" / "more-is-slower.md"
BEGIN, END = "<!-- departures -->\n", "\n<!-- end of departures -->"
TOLERANCE = 0.001
POLICIES = sorted(set(available()) - {"ideal", "replay"})

# Chunks of the allocator and blocks of the driver have sizes of their own.
ABSOLUTE_SIZES = {"pooled addresses": {"all twice as large"}}


def subjects():
    """Every policy under every way to manage memory that makes a difference to it."""
    for name in POLICIES:
        placement = create(name).requirements
        alike = placement.placement == "contiguous" or placement.addresses == "own"
        yield from ((name, words) for words in (list(BEHAVIOURS)[:1] if alike else BEHAVIOURS))


def departures(policy, words, seeds):
    """Largest departures beyond the tolerance, as shares of the time of an iteration, by change."""
    behaviour, worst = BEHAVIOURS[words], {}
    for case in map(draw_case, seeds):
        before = cycles(case, policy, behaviour)
        if math.isinf(before):
            continue
        for name, change in BETTER.items():
            for factor in FACTORS:
                after = cycles(change(case, factor), policy, behaviour)
                worst[name] = max(worst.get(name, 0.0), after / before - 1)
        for name in SAME.keys() - ABSOLUTE_SIZES.get(words, set()):
            after = cycles(SAME[name](case), policy, behaviour)
            worst[name] = max(worst.get(name, 0.0), abs(after / before - 1))
    return {name: found for name, found in sorted(worst.items()) if found > TOLERANCE}


def known():
    """The worst departures that were measured, by policy, way to manage memory, and change."""
    return yaml.safe_load(TABLE.read_text())


def table():
    """Return the departures as a table of docs/more-is-slower.md."""
    rows = ["| Policy | Addresses | Change | Time of an iteration |", "|---|---|---|---|"]
    for policy, ways in known().items():
        for words, worst in ways.items():
            for name, share in worst.items():
                sign = "+" if name in BETTER else "up to ±"
                rows.append(f"| `{policy}` | {words.split()[0]} | {name} | {sign}{share:.1%} |")
    return "\n".join(rows)


def documented(text):
    """Return the parts of a page before the table, and from its end on."""
    before, rest = text.split(BEGIN)
    return before + BEGIN, END + rest.split(END)[1]
