"""How figures look, in one place: size, fonts, colours, hatches, markers, names, file formats.

A figure is one column of a two-column paper wide. Colours are those of Okabe and Ito, told apart with any
colour vision (https://jfly.uni-koeln.de/color/); hatches and markers tell the same in print without colour.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ParamSpec

import matplotlib as mpl
from matplotlib.figure import Figure

from g10sim.files import replacing

COLUMN_INCHES = 3.3
"""Width of a column: 8.4 cm."""

PAGE_INCHES = 9.2
"""Height of a column: higher figures are pressed."""

FORMATS = ("pdf", "png")
DOTS_PER_INCH = 300

GREY, BLACK = "#999999", "#000000"
ORANGE, SKY, GREEN, YELLOW, BLUE, RED, PINK = (
    "#E69F00",
    "#56B4E9",
    "#009E73",
    "#F0E442",
    "#0072B2",
    "#D55E00",
    "#CC79A7",
)

_SETTINGS: Any = {
    "font.family": "DejaVu Sans",
    "font.size": 7,
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


@dataclass(frozen=True)
class Look:
    """How one series is drawn, and what its legend says; ``line`` is a line style of matplotlib."""

    label: str
    colour: str
    hatch: str = ""
    marker: str = "o"
    line: Any = "-"

    def bar(self) -> dict[str, Any]:
        """Keywords of a bar or a filled area."""
        return {"facecolor": self.colour, "edgecolor": BLACK, "hatch": self.hatch, "label": self.label}

    def area(self) -> dict[str, Any]:
        """Keywords of a filled area without an edge."""
        return {"facecolor": self.colour, "label": self.label}

    def curve(self) -> dict[str, Any]:
        """Keywords of a line with markers."""
        return {"color": self.colour, "marker": self.marker, "linestyle": self.line, "label": self.label}


IDEAL, BASE_UVM = "ideal", "base_uvm"
POLICIES: Mapping[str, Look] = {
    IDEAL: Look("Ideal", BLACK, "", "", "--"),
    BASE_UVM: Look("Base UVM", GREY, "", "s", ":"),
    "flashneuron": Look("FlashNeuron", ORANGE, "////", "^", "-."),
    "deepum": Look("DeepUM+", SKY, "....", "v", "--"),
    "g10_gds": Look("G10-GDS", PINK, "\\\\\\\\", "D", (0, (3, 1, 1, 1, 1, 1))),
    "g10_host": Look("G10-Host", GREEN, "xxxx", "P", (0, (5, 1))),
    "g10": Look("G10", BLUE, "", "o", "-"),
}
_OTHER_POLICIES: Mapping[str, str] = {
    "vdnn": "vDNN",
    "vdnnpp": "vDNN++",
    "autoswap": "AutoSwap",
    "tensile": "TENSILE",
    "capuchin": "Capuchin",
}
"""Policies that have a name of their own but no look."""

_SPARE = (
    Look("", RED, "----", "X", "-"),
    Look("", YELLOW, "++++", "h", "--"),
    Look("", "#FFFFFF", "||||", "<", "-."),
    Look("", "#666666", "oooo", ">", ":"),
    Look("", "#BBCCEE", "****", "p", (0, (1, 1))),
)

COMPUTE = Look("compute", "#FFFFFF")
OVERLAP = Look("compute, pages moving", SKY, "....")
STALL = Look("stall", RED, "////")

SSD_READ = Look("SSD to GPU", BLUE)
SSD_WRITE = Look("GPU to SSD", SKY, "....")
HOST_READ = Look("host to GPU", RED, "////")
HOST_WRITE = Look("GPU to host", ORANGE, "\\\\\\\\")

ALIVE, IN_USE = Look("all live tensors", SKY), Look("active tensors", BLUE)

KINDS: Mapping[str, Look] = {
    "weight": Look("weight", BLUE, "", "o"),
    "gradient": Look("gradient", RED, "////", "^"),
    "optimizer_state": Look("optimizer state", GREEN, "xxxx", "s"),
    "activation": Look("activation", SKY, "....", "."),
    "input": Look("input", YELLOW, "", "*"),
    "temporary": Look("temporary", ORANGE, "\\\\\\\\", "v"),
    "workspace": Look("workspace", PINK, "++++", "D"),
    "buffer": Look("buffer", GREY, "", "x"),
    "other": Look("other", "#FFFFFF", "", "+"),
}
"""Kinds of tensors, from the bottom of a stack to its top."""

_SERIES = (
    Look("", BLUE, "", "o", "-"),
    Look("", RED, "", "s", "--"),
    Look("", GREEN, "", "^", "-."),
    Look("", ORANGE, "", "D", ":"),
    Look("", PINK, "", "v", (0, (5, 1))),
    Look("", SKY, "", "P", (0, (3, 1, 1, 1))),
    Look("", BLACK, "", "X", (0, (1, 1))),
)

_HATCHES = ("", "////", "\\\\\\\\", "xxxx", "....", "++++", "----")

_MODELS: Mapping[str, str] = {
    "alexnet": "AlexNet",
    "vgg16": "VGG-16",
    "vgg19": "VGG-19",
    "g10sim.capture.convnets:googlenet": "GoogLeNet",
    "g10sim.capture.convnets:overfeat": "OverFeat",
    "g10sim.capture.convnets:vgg116": "VGG-116",
    "g10sim.capture.convnets:vgg216": "VGG-216",
    "g10sim.capture.convnets:vgg316": "VGG-316",
    "g10sim.capture.convnets:vgg416": "VGG-416",
    "bert-base-uncased": "BERT-base",
    "BERT_Base": "BERT-base",
    "gpt2-xl": "GPT-2 XL",
    "meta-llama/Meta-Llama-3-8B": "Llama-3 8B",
    "Meta-Llama-3-8B": "Llama-3 8B",
    "inception_v3": "Inception-v3",
    "Inceptionv3": "Inception-v3",
    "inception_v4": "Inception-v4",
    "densenet121": "DenseNet-121",
    "resnet50": "ResNet-50",
    "resnet152": "ResNet-152",
    "ResNet152": "ResNet-152",
    "senet154": "SENet-154",
    "legacy_senet154": "SENet-154",
    "SENet154": "SENet-154",
    "vit_base_patch16_224": "ViT-B/16",
    "VIT": "ViT",
}


def looks(policies: Iterable[str]) -> dict[str, Look]:
    """Return a look for each policy of some results, by the name in column ``policy``.

    Policies that come without one, and further variants of one that has, take spare ones in order.
    """
    found: dict[str, Look] = {}
    spare = iter(_SPARE * 8)
    for policy in dict.fromkeys(policies):
        name = re.split(r"[^\w:.]", policy, maxsplit=1)[0]
        known = POLICIES.get(name)
        label = policy if known is None else policy.replace(name, known.label, 1)
        taken = {look.colour for look in found.values()}
        if known is None or known.colour in taken:
            found[policy] = replace(next(spare), label=label)
        else:
            found[policy] = replace(known, label=label)
    return found


def series(labels: Iterable[str]) -> dict[str, Look]:
    """Return a look for each of some lines that are no policies, such as batch sizes, in order."""
    return {label: replace(look, label=label) for label, look in zip(labels, itertools.cycle(_SERIES))}


def model_name(model: str) -> str:
    """Return the name of a model as papers write it, where it is known; else without its path."""
    return _MODELS.get(model, model.rsplit("/", 1)[-1])


def hatched(labels: Iterable[str]) -> dict[str, Look]:
    """Return a look for each of some bars that are no policies, in order: with hatches, too."""
    found = series(labels)
    return {
        label: replace(look, hatch=hatch)
        for (label, look), hatch in zip(found.items(), itertools.cycle(_HATCHES))
    }


def policy_name(key: str) -> str:
    """Return the name of a policy as papers write it, where it is known; else the key itself."""
    return POLICIES[key].label if key in POLICIES else _OTHER_POLICIES.get(key, key)


def settings() -> AbstractContextManager[None]:
    """Return a context in which matplotlib draws and saves in this style."""
    return mpl.rc_context(_SETTINGS)


Parameters = ParamSpec("Parameters")


def styled(draw: Callable[Parameters, Figure]) -> Callable[Parameters, Figure]:
    """Decorate a function that makes a figure: it draws in this style wherever it is called from."""

    @functools.wraps(draw)
    def wrapped(*arguments: Parameters.args, **named: Parameters.kwargs) -> Figure:
        with settings():
            return draw(*arguments, **named)

    return wrapped


def new_figure(height_inches: float) -> Figure:
    """Make an empty figure, one column wide."""
    return Figure(figsize=(COLUMN_INCHES, height_inches), layout="constrained")


def save(figure: Figure, directory: Path, name: str) -> Iterator[Path]:
    """Write ``DIRECTORY/NAME.FORMAT`` in every format, whole or not at all, and yield the paths.

    The same figure gives the same bytes. Raises OSError.
    """
    directory.mkdir(parents=True, exist_ok=True)
    for kind in FORMATS:
        path = directory / f"{name}.{kind}"
        metadata = {"CreationDate": None} if kind == "pdf" else {"Software": None}
        with settings(), replacing(path) as temporary:
            figure.savefig(temporary, format=kind, metadata=metadata)
        yield path
