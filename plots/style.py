"""Look of figures, in one place: size, fonts, names of models, series that are no policies, file formats.

A figure is one column of a two-column paper wide. Policies, reasons of stalls and places have their
own looks, where they are defined.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, ParamSpec, TypeVar

import matplotlib as mpl
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from g10sim.looks import BLACK, BLUE, GREEN, GREY, ORANGE, PINK, RED, SKY, WHITE, YELLOW, Look, distinct
from g10sim.results.legends import designs

COLUMN_INCHES = 3.3
"""Width of a column: 8.4 cm."""

PAGE_INCHES = 9.2
"""Height of a column: higher figures are pressed."""

DOTS_PER_INCH = 300

_SETTINGS: Any = {
    "font.family": "DejaVu Sans",
    "font.size": 7,
    "text.parse_math": False,  # a dollar sign in a name is one
    "axes.titlesize": 7,
    "axes.labelsize": 7,
    "xtick.labelsize": 6.5,
    "ytick.labelsize": 6.5,
    "legend.fontsize": 6.5,
    "legend.frameon": False,
    "legend.handlelength": 1.6,
    "legend.handleheight": 0.8,
    "legend.columnspacing": 1.0,
    "legend.borderaxespad": 0.2,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "grid.color": "#DDDDDD",
    "grid.linewidth": 0.5,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.major.size": 2.5,
    "ytick.major.size": 2.5,
    "lines.linewidth": 1.1,
    "lines.markersize": 3.5,
    "hatch.linewidth": 0.5,
    "patch.linewidth": 0.5,
    "figure.constrained_layout.h_pad": 0.03,
    "figure.constrained_layout.w_pad": 0.03,
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
    "vgg16": "VGG-16",
    "vgg19": "VGG-19",
    "vgg116": "VGG-116",
    "vgg216": "VGG-216",
    "vgg316": "VGG-316",
    "vgg416": "VGG-416",
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


def looks(results: pd.DataFrame) -> dict[str, Look]:
    """Return a look for each policy of some results, by the name in column ``policy``; no two are alike."""
    found = designs(results).items()
    return distinct({policy: replace(design.look, label=design.title) for policy, design in found})


def series(labels: Iterable[str]) -> dict[str, Look]:
    """Return a look for each of some lines or bars that are no policies, such as batch sizes, in order."""
    return {label: replace(look, label=label) for label, look in zip(labels, itertools.cycle(_SERIES))}


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


Parameters = ParamSpec("Parameters")
Drawn = TypeVar("Drawn")


def styled(draw: Callable[Parameters, Drawn]) -> Callable[Parameters, Drawn]:
    """Decorate a function that makes a figure: it draws in this style wherever it is called from."""

    @functools.wraps(draw)
    def wrapped(*arguments: Parameters.args, **named: Parameters.kwargs) -> Drawn:
        with settings():
            return draw(*arguments, **named)

    return wrapped


def add_note(figure: Figure, text: str) -> None:
    """Write a small line under a figure, which leaves room for it."""
    note = Line2D([], [], linestyle="none", label=text)
    with settings():
        figure.legend(handles=[note], loc="outside lower right", handlelength=0, handletextpad=0)


def new_figure(height_inches: float) -> Figure:
    """Make an empty figure, one column wide."""
    return Figure(figsize=(COLUMN_INCHES, height_inches), layout="constrained")
