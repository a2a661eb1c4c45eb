"""Look of figures, in one place: size, fonts, names of models and traces, series that are no policies.

A figure is one column of a two-column paper wide. Policies, reasons of stalls and places have their
own looks, where they are defined.
"""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from itertools import cycle, groupby
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import matplotlib as mpl
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from g10sim.errors import ConfigError
from g10sim.looks import BLACK, BLUE, GREEN, GREY, ORANGE, PINK, RED, SKY, WHITE, YELLOW, Look, distinct
from g10sim.results.columns import OK
from g10sim.results.legends import Design, designs
from g10sim.results.reading import MACHINE
from g10sim.results.reading import records as records

COLUMN_INCHES = 3.3
"""Width of a column: 8.4 cm."""

PAGE_INCHES = 9.2
"""Height of a column: higher figures are pressed."""

DOTS_PER_INCH = 300

_SETTINGS: Any = {
    "font.family": "DejaVu Sans",
    "text.parse_math": False,  # a dollar sign in a name is one
    **dict.fromkeys(("font.size", "axes.titlesize", "axes.labelsize"), 7),
    **dict.fromkeys(("xtick.labelsize", "ytick.labelsize", "legend.fontsize"), 6.5),
    "legend.handlelength": 1.6,
    "legend.handleheight": 0.8,
    "legend.columnspacing": 1.0,
    "legend.borderaxespad": 0.2,
    **dict.fromkeys(("legend.frameon", "axes.spines.top", "axes.spines.right"), False),
    **dict.fromkeys(("axes.axisbelow", "axes.grid"), True),
    "axes.grid.axis": "y",
    "grid.color": "#DDDDDD",
    **dict.fromkeys(("axes.linewidth", "xtick.major.width", "ytick.major.width"), 0.6),
    **dict.fromkeys(("grid.linewidth", "hatch.linewidth", "patch.linewidth"), 0.5),
    **dict.fromkeys(("xtick.major.size", "ytick.major.size"), 2.5),
    "lines.linewidth": 1.1,
    "lines.markersize": 3.5,
    **dict.fromkeys(("figure.constrained_layout.h_pad", "figure.constrained_layout.w_pad"), 0.03),
    "savefig.dpi": DOTS_PER_INCH,
    "pdf.fonttype": 42,  # TrueType: publishers refuse Type 3 fonts
}


DASHES: dict[str, Any] = {"color": BLACK, "linestyle": "--", "linewidth": 0.8}
"""Lines that mark a level."""

IDEAL, BASE_UVM = "ideal", "base_uvm"
"""Keys of the policies that figures treat specially."""

KINDS: Mapping[str, Look] = {
    "weight": Look(BLUE, "", "o", label="weight"),
    "gradient": Look(RED, "////", "^", label="gradient"),
    "optimizer_state": Look(GREEN, "xxxx", "s", label="optimizer state"),
    "activation": Look(SKY, "....", ".", label="activation"),
    "input": Look(YELLOW, "", "*", label="input"),
    "temporary": Look(ORANGE, "\\\\\\\\", "v", label="temporary"),
    "workspace": Look(PINK, "++++", "D", label="workspace"),
    "buffer": Look(GREY, "", "x", label="buffer"),
    "other": Look(WHITE, "", "+", label="other"),
}
"""Kinds of tensors, from the bottom of a stack to its top."""

_SERIES = (
    Look(BLUE),
    Look(RED, "////", "s", "--"),
    Look(GREEN, "\\\\\\\\", "^", "-."),
    Look(ORANGE, "xxxx", "D", ":"),
    Look(PINK, "....", "v", "5 1"),
    Look(SKY, "++++", "P", "3 1 1 1"),
    Look(BLACK, "----", "X", "1 1"),
)

_MODELS: Mapping[str, str] = {
    "alexnet": "AlexNet",
    **{f"vgg{depth}": f"VGG-{depth}" for depth in (16, 19, 116, 216, 316, 416)},
    "googlenet": "GoogLeNet",
    "overfeat": "OverFeat",
    "bert_base": "BERT-base",
    "bert_base_uncased": "BERT-base",
    "bert_base_uncased_bf16": "BERT-base bf16",
    "gpt2_xl": "GPT-2 XL",
    "gpt2_xl_bf16": "GPT-2 XL bf16",
    "meta_llama_3_8b": "Llama-3 8B",
    "meta_llama_3_8b_bf16_fp32_master": "Llama-3 8B fp32 master",
    "inceptionv3": "Inception-v3",
    "inception_v3": "Inception-v3",
    "inception_v4": "Inception-v4",
    "densenet121": "DenseNet-121",
    "resnet50": "ResNet-50",
    "resnet152": "ResNet-152",
    "resnet152_bf16": "ResNet-152 bf16",
    "senet154": "SENet-154",
    "legacy_senet154": "SENet-154",
    "vit_base_patch16_224": "ViT-B/16",
    "vit_base_patch16_224_bf16": "ViT-B/16 bf16",
    "vit": "ViT",
}
"""Names of models as papers write them, by the last part of the name in small letters."""
Item = TypeVar("Item")
Cells: TypeAlias = dict[tuple[Any, ...], dict[str, Any]]
"""Rows of results by some of their columns."""


_KNOWN_WORD = re.compile(r"s\d+|(bf|fp|float|int)\d+|tf32")
"""Parts of the names of files that say the sequence length or the type of numbers."""
_LENGTH = "seq"
_LABEL_CHARACTERS = 62
_QUARTER_OF_COLUMN, _THIRD_OF_COLUMN, _HALF_COLUMN = 12, 14, 26
"""As many characters as have room in a part of a column."""


def looks(results: pd.DataFrame) -> dict[str, Look]:
    """Return a look for each policy of some results, by the name in column ``policy``; no two are alike."""
    found = designs(results).items()
    return distinct({policy: replace(design.look, label=design.title) for policy, design in found})


def series(labels: Iterable[str]) -> dict[str, Look]:
    """Return a look for each of some lines or bars that are no policies, such as batch sizes, in order."""
    return {label: replace(look, label=label) for label, look in zip(labels, cycle(_SERIES))}


def series_of_designs(results: pd.DataFrame, name: Callable[[Design], str]) -> dict[str, Look]:
    """Return a look for each policy of some results, as of series that are none, by a name of its design."""
    found = designs(results)
    return dict(zip(found, series(map(name, found.values())).values(), strict=True))


def model_name(model: str) -> str:
    """Return the name of a model as papers write it, where it is known; else without its path.

    Of a function that makes it, the module without its packages and the function (``nets:small``).
    """
    module, colon, name = model.rpartition("/")[2].rpartition(":")
    short = f"{module.rpartition('.')[2]}{colon}{name}" if colon else name
    return _MODELS.get(name.lower().replace("-", "_"), short)


def settings() -> AbstractContextManager[None]:
    """Return a context in which matplotlib draws and saves in this style."""
    return mpl.rc_context(_SETTINGS)


Drawing = TypeVar("Drawing", bound=Callable[..., Any])


def styled(draw: Drawing) -> Drawing:
    """Decorate a function that makes a figure: it draws in this style wherever it is called from."""
    return mpl.rc_context(_SETTINGS)(draw)


def add_note(figure: Figure, text: str) -> None:
    """Write a small line under a figure, which leaves room for it."""
    note = Line2D([], [], linestyle="none", label=text)
    with settings():
        figure.legend(handles=[note], loc="outside lower right", handlelength=0, handletextpad=0)


def new_figure(height_inches: float) -> Figure:
    """Make an empty figure, one column wide, and pressed where it would be higher than a page."""
    return Figure(figsize=(COLUMN_INCHES, min(height_inches, PAGE_INCHES)), layout="constrained")


def _narrow(text: str, room: int) -> str:
    """Break a text into lines that have room in a part of a column."""
    lines = [""]
    for part in re.findall(rf"{_LENGTH}\s\d+\s*|[^\s_/-]{{1,{room - 1}}}[\s_/-]*|[\s_/-]+", text):
        if lines[-1] and len(lines[-1] + part.rstrip()) > room:
            lines.append("")
        lines[-1] += part
    return "\n".join(line.rstrip() for line in lines)


@dataclass(frozen=True)
class TraceName:
    """A trace as results name it (``trace``), and its model and batch size as figures write them."""

    trace: str
    model: str
    batch_size: int
    detail: str = ""

    @property
    def label(self) -> str:
        """Model and batch size below each other, for a group of bars."""
        return "\n".join(_narrow(text, _QUARTER_OF_COLUMN) for text in (self.model, self.batch))

    @property
    def title(self) -> str:
        """Model and batch size below each other, for a narrow panel."""
        return "\n".join(_narrow(text, _THIRD_OF_COLUMN) for text in (self.model, f"batch {self.batch}"))

    @property
    def line(self) -> str:
        """Model and batch size in one line, if they are short enough for half a column."""
        text = f"{self.model}, batch {self.batch}"
        return text if len(text) <= _HALF_COLUMN else self.title

    @property
    def batch(self) -> str:
        """Batch size, with what else tells the trace from others of this model and batch size."""
        return f"{self.batch_size} {self.detail}".strip()


def cells_by(results: pd.DataFrame, *columns: str) -> Cells:
    """Rows of some results by the values of these columns; of several with equal ones the last."""
    return {tuple(row[column] for column in columns): row for row in records(results)}


def at_bound(results: pd.DataFrame, metric: str) -> pd.Series[float]:
    """Return what a metric that grows with speed would be at the bound; NaN where there is none."""
    if "bound_cycles" not in results:
        return pd.Series(math.nan, index=results.index)
    return results[metric] * results["exec_cycles"] / results["bound_cycles"]


def best_possible(results: pd.DataFrame, metric: str) -> dict[Any, float]:
    """Return what a metric would be at the bound, by trace, whatever the policy but the ideal one.

    Where cells have several bounds, the one that holds for all; nothing where there is none.
    """
    shown = without_ideal(results)
    return dict(at_bound(shown, metric).groupby(shown["trace"]).max().dropna())


def below(results: pd.DataFrame, axis: str = "") -> str:
    """Return the label below a figure: what is on the axis, and the machine where it is known."""
    text = "; ".join(filter(None, (axis, results.attrs.get(MACHINE))))
    return textwrap.fill(text, _LABEL_CHARACTERS)


def without_ideal(results: pd.DataFrame) -> pd.DataFrame:
    """Rows of all policies but the ideal one. Raises ConfigError where there is none."""
    shown = results[results["policy"] != IDEAL]
    if shown.empty:
        raise ConfigError(f"results: found no policy to show; allowed: at least one other than '{IDEAL}'")
    return shown


def that_ran(results: pd.DataFrame) -> pd.DataFrame:
    """Rows of the cells that have numbers. Raises ConfigError where there is none."""
    shown = results[results["status"] == OK]
    if shown.empty:
        raise ConfigError("results: found no cell that ran; allowed: at least one with status 'ok'")
    return shown


def trace_names(results: pd.DataFrame) -> list[TraceName]:
    """List the traces of some results by model (in order of appearance) and batch size."""
    rows = records(results.drop_duplicates("trace"))
    order = {row["model"]: place for place, row in reversed(list(enumerate(rows)))}
    rows.sort(key=lambda row: (order[row["model"]], row["batch_size"], row["trace"]))
    return [
        TraceName(row["trace"], model_name(row["model"]), int(row["batch_size"]), _detail(row, rows))
        for row in rows
    ]


def _detail(row: dict[str, Any], rows: Sequence[dict[str, Any]]) -> str:
    """Return what tells a trace from others of its model, apart from the batch size, by the files' names.

    That is the sequence length and the type of numbers, and anything else among traces of one batch size.
    """
    peers = [other for other in rows if other["model"] == row["model"]]
    twins = [other for other in peers if other["batch_size"] == row["batch_size"]]
    found = [
        word
        for word in _words(row)
        if any(word not in _words(other) for other in (peers if _KNOWN_WORD.fullmatch(word) else twins))
    ]
    if len(twins) > 1 and not found:
        return f"({Path(row['trace']).stem})"
    return " ".join(re.sub(r"^s(\d+)$", rf"{_LENGTH} \1", word) for word in found)


def _words(row: Mapping[str, Any]) -> list[str]:
    """Return the parts of the name of a trace's file, without its batch size."""
    sizes = (str(row["batch_size"]), f"b{row['batch_size']}")
    return [word for word in re.split(r"[-_ ]+", Path(row["trace"]).stem) if word not in sizes]


def by_model(names: Sequence[TraceName]) -> dict[str, list[TraceName]]:
    """Group traces by model, in order."""
    return {model: list(group) for model, group in groupby(names, key=lambda name: name.model)}


def in_rows(items: Sequence[Item], most: int) -> list[list[Item]]:
    """Spread items over rows of at most ``most``, in order."""
    return [list(items[start : start + most]) for start in range(0, len(items), most)]


def swept_column(results: pd.DataFrame, name: str, wanted: str = "of a run that sweeps over it") -> str:
    """Find the column of a swept quantity; of a parameter of a policy that of any policy.

    Raises ConfigError where there is none, which says what results are ``wanted``.
    """
    for column in results.columns:
        if column == name or re.fullmatch(rf"policies\.\d+\.{re.escape(name)}", column):
            return str(column)
    raise ConfigError(f"results: found no column '{name}'; allowed: results {wanted}")
