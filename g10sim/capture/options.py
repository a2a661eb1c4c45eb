"""Options of a capture: the sizes of a model's inputs, and how its step is run."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeAlias, get_args

from pydantic import ValidationError

from g10sim.config.problems import describe
from g10sim.config.quantities import Spec, required
from g10sim.errors import ConfigError, choices_text
from g10sim.units import parse_bytes

Dtype: TypeAlias = Literal["float32", "float16", "bfloat16", "float64"]
Autocast: TypeAlias = Literal["bfloat16", "float16"]
Optimizer: TypeAlias = Literal["sgd", "adam", "adamw"]
OptimizerForm: TypeAlias = Literal["fused", "foreach"]
Cache: TypeAlias = Literal["dynamic", "static"]
Attention: TypeAlias = Literal["fused", "eager"]

_DEFAULT_OPTIMIZER = "adamw"
TRAINING_ONLY = ("master_weights", "optimizer", "optimizer_form", "momentum", "activation_checkpointing")
GROUPED = "grouped"
ROUTED_TOKENS = "routed_tokens"
"""Key of a trace's ``origin``: the tokens of each expert, a row for each router in the order they run."""
_UNIFORM, _ZIPF = "uniform", "zipf"
_MOST_EXPONENT = 100
_SHORT = {"bfloat16": "bf16", "float16": "fp16"}


@dataclass(frozen=True)
class Otherwise:
    """Words for the value of an option that is not given."""

    words: str


class SizeOptions(Spec):
    """Options of the sizes of a model's inputs, each an option of the command line, too."""

    batch_size: Annotated[int | None, Otherwise("8")] = None
    """Samples in a step."""
    seq_len: Annotated[int | None, Otherwise("512, or the model's most")] = None
    """Tokens in a sample."""
    image_size: Annotated[int | None, Otherwise("the model's")] = None
    """Height and width of an image in pixels."""


class StepOptions(Spec):
    """Options of the step that is captured, each an option of the command line, too.

    ``routing`` says which experts tokens are sent to: ``uniform`` or ``zipf:EXPONENT`` (``zipf`` is 1), drawn
    with ``routing_seed``, a file with the tokens of each expert, or ``grouped``, which leaves the
    layers of libraries as they are.
    """

    dtype: Dtype = "float32"
    """Format of weights, inputs and activations."""
    autocast: Annotated[Autocast | None, Otherwise("none")] = None
    """Mixed precision: weights in float32, products cast to this."""
    master_weights: bool = False
    """The optimizer updates float32 copies of 16-bit weights."""
    optimizer: Annotated[Optimizer | None, Otherwise(_DEFAULT_OPTIMIZER)] = None
    """Optimizer, with PyTorch's settings."""
    optimizer_form: Annotated[OptimizerForm | None, Otherwise("fused")] = None
    """One kernel for all operations of the optimizer, or one for each."""
    momentum: Annotated[float | None, Otherwise("0")] = None
    """Momentum of sgd."""
    attention: Attention = "fused"
    """Attention as one kernel, or with scores and softmax as tensors."""
    activation_checkpointing: bool = False
    """Keep inputs of blocks only, and run blocks again in backward."""
    cudnn_pooling: bool = False
    """Max pooling keeps no indices, its gradient reads its output."""
    channels_last: bool = False
    """Weights and images lie in memory channels last, as NHWC."""
    tf32: bool = False
    """Tensor cores may round float32 matrix products to tf32."""
    cuda_graph: bool = False
    """A CUDA graph replays the step: no kernel waits for the host."""
    inference: bool = False
    """A forward pass in evaluation mode, without gradients."""
    steps: int = 1
    """Steps in the trace, one after the other."""
    workspace: Annotated[str | None, Otherwise("none")] = None
    """Scratch space of each product, such as '8 MiB'."""
    generate: Annotated[int | None, Otherwise("none")] = None
    """Tokens that a language model generates, one after another."""
    cache: Annotated[Cache | None, Otherwise("dynamic")] = None
    """Keys and values with --generate: grow by a copy, or have full length."""
    routing: Annotated[str | None, Otherwise("uniform for hf:, none for one's own")] = None
    """Experts of tokens: uniform, zipf:EXPONENT, grouped, or a file."""
    routing_seed: Annotated[int | None, Otherwise("0")] = None
    """Seed of a routing that is drawn."""

    @required
    def _problems(self) -> Iterator[str]:
        if self.autocast is not None and self.dtype != "float32":
            yield f"autocast: found {self.autocast} with dtype {self.dtype}; allowed: dtype float32"
        if self.master_weights and self.dtype not in _SHORT:
            yield f"master_weights: found dtype {self.dtype}; allowed: dtype {' or '.join(_SHORT)}"
        if self.steps < 1:
            yield f"steps: found {self.steps}; allowed: at least 1"
        yield from self._generation_problems()
        for name in TRAINING_ONLY if self.inference else ():
            if getattr(self, name):
                yield f"{name}: found {getattr(self, name)} in inference; allowed: training"
        if self.momentum is not None and self.optimizer != "sgd":
            found = f"momentum: found {self.momentum} with optimizer {self.trained_with}"
            yield f"{found}; allowed: optimizer sgd"
        yield from self._number_problems()

    def _generation_problems(self) -> Iterator[str]:
        if self.generate is None:
            if self.cache is not None:
                yield f"cache: found {self.cache} without generate; allowed: with generate"
            return
        if self.generate < 1:
            yield f"generate: found {self.generate}; allowed: at least 1"
        if not self.inference:
            yield f"generate: found {self.generate} in training; allowed: inference"
        if self.steps > 1:
            yield f"steps: found {self.steps} with generate; allowed: 1"

    def _number_problems(self) -> Iterator[str]:
        if self.momentum is not None and not 0 <= self.momentum < 1:
            yield f"momentum: found {self.momentum}; allowed: at least 0 and less than 1"
        try:
            _ = self.workspace_bytes
        except ValueError as error:
            yield f"workspace: {error}"
        try:
            usable = 0 <= self.routing_exponent < _MOST_EXPONENT
        except ValueError:
            usable = False
        if not usable:
            allowed = f"zipf:EXPONENT with a number from 0 to {_MOST_EXPONENT}"
            yield f"routing: found {self.routing}; allowed: {allowed}"
        drawn = self.routing in (None, _UNIFORM, _ZIPF) or str(self.routing).startswith(f"{_ZIPF}:")
        if self.routing_seed is not None and (self.routing_seed < 0 or not drawn):
            found = f"routing_seed: found {self.routing_seed} with routing {self.routing}"
            yield f"{found}; allowed: at least 0, with a routing that is drawn"

    @property
    def trained_with(self) -> str:
        """Name of the optimizer."""
        return self.optimizer or _DEFAULT_OPTIMIZER

    @property
    def precision(self) -> str:
        """Short name of mixed precision, which tells a model's traces apart; empty without."""
        if self.master_weights:
            return f"{_SHORT[self.dtype]}-fp32-master"
        return _SHORT[self.autocast] if self.autocast else ""

    @property
    def workspace_bytes(self) -> int:
        """Scratch space of a computing kernel."""
        return 0 if self.workspace is None else parse_bytes(self.workspace)

    @property
    def routing_exponent(self) -> float:
        """Exponent of the popularity of experts, 0 where all are alike. Raises ValueError for no number."""
        name, colon, exponent = (self.routing or _UNIFORM).partition(":")
        if name != _ZIPF:
            return 0.0
        return float(exponent) if colon else 1.0

    @property
    def routing_file(self) -> str | None:
        """Name of the file with the tokens of each expert; None if they are drawn."""
        name = (self.routing or _UNIFORM).partition(":")[0]
        return None if name in (_UNIFORM, _ZIPF, GROUPED) else self.routing

    def check_gpu(self, name: str, formats: Collection[str]) -> None:
        """Raise ConfigError where a GPU has no peak rate for the format of the step."""
        choices = {"dtype": get_args(Dtype), "autocast": get_args(Autocast)}
        for option, allowed in choices.items():
            found = getattr(self, option)
            if found is not None and found not in formats:
                rest = choices_text([choice for choice in allowed if choice in formats]) or "none"
                raise ConfigError.at(option, f"{found}, for which GPU '{name}' has no peak rate", rest)

    def given(self) -> dict[str, Any]:
        """Return the options in force, by name, in the order of the fields."""
        found = self.model_dump()
        if not self.inference:
            found["optimizer"] = self.trained_with
        if self.steps == 1:
            del found["steps"]
        return {name: value for name, value in found.items() if value is not None and value is not False}


def step_options(options: dict[str, Any]) -> StepOptions:
    """Check options of a step, by name. Raises ConfigError for the first that is wrong."""
    if options.get("generate") is not None:
        options = {**options, "inference": True}
    try:
        return StepOptions(**options)
    except ValidationError as error:
        path, message = describe(error, StepOptions)
        raise ConfigError(": ".join([*map(str, path), message])) from None


def flag(option: str) -> str:
    """Return an option as the command line writes it."""
    return "--" + option.replace("_", "-")


@dataclass(frozen=True, slots=True)
class Sizes:
    """Samples in a step, tokens in a sample, height and width of an image in pixels; 0: the model's."""

    batch_size: int
    seq_len: int = 0
    image_size: int = 0

    def check(self, source: str, kind: Literal["images", "text"]) -> None:
        """Raise ConfigError where a model of images is given a length of text, or one of text an image's."""
        wrong, right = ("seq_len", "image_size") if kind == "images" else ("image_size", "seq_len")
        if found := getattr(self, wrong):
            raise ConfigError.at(source, f"{flag(wrong)} {found} for a model of {kind}", flag(right))
