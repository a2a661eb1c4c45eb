"""The page of mutants: how many small changes of the program the tests notice."""

from __future__ import annotations

import sys
from pathlib import Path

import pandas as pd
from tables import fill, table


def page(results: Path) -> str:
    """Return the page. Raises OSError when the file is not there."""
    sys.path.insert(0, str(Path(__file__).parents[2]))
    from benchmarks.noticed import EQUIVALENT, Score, by_module, score

    rows = pd.read_csv(results / "mutants.csv", dtype=str, keep_default_na=False).to_dict("records")
    names = ("noticed", "not noticed", "equivalent", "share")

    def numbers(found: Score) -> list[str]:
        left = found.mutants - found.killed - found.equivalent
        return [f"{count:,}" for count in (found.killed, left, found.equivalent)] + [f"{found.share:.1%}"]

    scores = [[f"`{package}`", *numbers(found)] for package, found in by_module(rows).items()]
    operators = {operator: [row for row in rows if row["operator"] == operator] for operator in _KINDS}
    kinds = [[what, *numbers(score(operators[operator]))] for operator, what in _KINDS.items()]
    equivalent = [row for row in rows if row["outcome"] == EQUIVALENT]
    return fill(
        "mutants",
        count=f"{len(rows):,}",
        share=f"{score(rows).share:.1%}",
        packages=table(("package",), names, [*scores, ["all", *numbers(score(rows))]]),
        kinds=table(("change",), names, kinds),
        equivalent=table(
            ("mutant", "why nobody can notice it"),
            (),
            [[f"`{row['mutant'].removeprefix('g10sim/')}`", row["reason"]] for row in equivalent],
        ),
    )


_KINDS = {
    "comparison": "`<` for `<=`, `==` for `!=`, `in` for `not in`, ...",
    "arithmetic": "`+` for `-`, `*` for `//`, a sign left out, ...",
    "least, most": "`min` for `max`, `any` for `all`",
    "and, or": "`and` for `or`",
    "condition": "a condition negated",
    "constant": "a whole number one larger, `True` for `False`",
    "statement": "a call, an assignment to an attribute, `break` or `continue` left out",
    "return": "nothing returned",
    "argument": "a keyword argument left out that has a default",
}
