"""The page of the paper's figures, and its pictures."""

from __future__ import annotations

from pathlib import Path

import pictures

from g10sim import plots
from g10sim.plots.registry import ENTRIES, paper_figures

_EXPERIMENTS = Path(__file__).parents[2] / "experiments"
_INTRODUCTION = """# Figures of the G10 paper

Written by `python docs/generate figures` from the experiments and from the results of `g10sim reproduce`.

Every figure is an experiment, `experiments/NAME.yaml`, and a module, `plots/NAME.py`. One command simulates
and draws them all, `--figures` some of them:

<!-- test: with g10sim reproduce => g10sim reproduce --set workload.trace=traces/bert-base-b256-s128.g10t -->
```sh
g10sim reproduce --figures fig2,fig11 -o results/paper
```

Each figure's results are in `results/paper/NAME`, the pictures, PDF and PNG, in `results/paper/figures`.
Cells that several figures have are simulated once. An interrupted run goes on where it was; cells that fail
are listed at the end with their reasons. What is simulated can be changed as for `g10sim run`, for all
figures at once: `--set workload.trace='mine/*.g10t'` takes other traces, `--set system=h100-80g-pcie5-nvme`
another machine.

Figures are drawn from results only, so that the picture can be changed without simulating again:

<!-- test: with all => fig11 -->
```sh
g10sim plot all --results results/paper -o results/paper/figures
```

In Python `g10sim.plots.fig11.draw(results)` takes a DataFrame and returns a matplotlib figure. Sizes, fonts,
colours and names are in `plots/style.py`: a column of 3.3 inches, colours that are told apart with any colour
vision, and hatches and markers that tell the same without colour. A cross says that the policy cannot run the
trace.

## With the published traces

The traces published with the paper are imported once (`G10SIM_REFERENCE` names the directory that holds them
in `gpg/traces/MODEL/BATCH/`); with `compat: gpg` g10sim behaves as the published simulator, and the bars are
those of the paper within the errors of the [validation](validation.md):

<!-- test: reference -->
```sh
mkdir -p results/imported
for batch in 128 256; do
    g10sim trace import gpg "$G10SIM_REFERENCE/gpg/traces/BERT_Base/$batch" \\
        -o results/imported/bert-$batch.g10t
done
g10sim reproduce --figures fig11,fig15 -o results/published \\
    --set workload.trace='results/imported/*.g10t' --set compat=gpg
```

## The figures

The pictures show the traces that come with g10sim under the default hardware, `a100-40g-pcie3-znand`.
"""


def page() -> str:
    """Return the page as Markdown."""
    return _INTRODUCTION + "".join(_section(name) for name in paper_figures())


def draw(results: Path, images: Path) -> list[Path]:
    """Draw the figures that have results, small, into a directory of images; return their paths."""
    return [pictures.draw(name, plots.results_of(name, results), images) for name in plots.drawable(results)]


def _section(name: str) -> str:
    number = name.removeprefix("fig")
    return (
        f"\n### Figure {number}: {ENTRIES[name].title}\n\n{_question(name)}\n\n"
        f"![Figure {number}](images/{name}.png)\n"
    )


def _question(name: str) -> str:
    """Return what the comment at the top of an experiment says."""
    lines = (_EXPERIMENTS / f"{name}.yaml").read_text(encoding="utf-8").splitlines()
    comment = " ".join(line.removeprefix("#").strip() for line in lines[: _first_key(lines)])
    question = comment.partition(": ")[2]
    return question[0].upper() + question[1:]


def _first_key(lines: list[str]) -> int:
    return next(number for number, line in enumerate(lines) if not line.startswith("#"))
