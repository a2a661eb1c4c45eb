"""How a step is run: its options, and which of them go together."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, fields
from typing import Any

from g10sim.errors import ConfigError
from g10sim.registry import choices_text, nearest
from g10sim.units import parse_bytes

DTYPES = ("float32", "float16", "bfloat16", "float64")
AUTOCASTS = ("bfloat16", "float16")
OPTIMIZERS = ("sgd", "adam", "adamw")
ATTENTIONS = ("fused", "eager")
OPTIMIZER_FORMS = ("fused", "foreach")

_DEFAULT_OPTIMIZER = "adamw"


@dataclass(frozen=True, slots=True)
class StepOptions:
    """Options of the step that is captured.

    ``dtype`` is the format of weights, inputs and activations; ``autocast`` a format that
    ``torch.autocast`` casts operators to, None for none. ``optimizer`` None is AdamW in training and nothing
    in inference; ``optimizer_form`` is PyTorch's ``fused`` (None, one kernel does all for some tensors) or
    ``foreach`` (one kernel for each operation). ``momentum`` is that of SGD. ``attention`` is ``fused`` (one
    kernel each way) or ``eager``. ``inference`` is a forward pass in evaluation mode without gradients;
    ``steps`` how many steps follow each other in the trace. ``workspace``, such as ``"8 MiB"``, is scratch
    space that each matrix product, convolution and attention is given; None for none.
    """

    dtype: str = "float32"
    autocast: str | None = None
    optimizer: str | None = None
    optimizer_form: str | None = None
    momentum: float | None = None
    attention: str = "fused"
    activation_checkpointing: bool = False
    inference: bool = False
    steps: int = 1
    workspace: str | None = None

    def __post_init__(self) -> None:
        """Check every option by itself and with the others. Raises ConfigError."""
        _check_choice("dtype", self.dtype, DTYPES)
        _check_choice("attention", self.attention, ATTENTIONS)
        if self.optimizer is not None:
            _check_choice("optimizer", self.optimizer, OPTIMIZERS)
        if self.optimizer_form is not None:
            _check_choice("optimizer_form", self.optimizer_form, OPTIMIZER_FORMS)
        if self.autocast is not None:
            _check_choice("autocast", self.autocast, AUTOCASTS)
            if self.dtype != "float32":
                raise ConfigError(
                    f"autocast: found {self.autocast} with dtype {self.dtype}; allowed: dtype float32"
                )
        if self.steps < 1:
            raise ConfigError(f"steps: found {self.steps}; allowed: at least 1")
        self._check_training()
        try:
            _ = self.workspace_bytes
        except ValueError as error:
            raise ConfigError(f"workspace: {error}") from None

    def _check_training(self) -> None:
        if self.inference:
            for name in ("optimizer", "optimizer_form", "momentum", "activation_checkpointing"):
                if getattr(self, name):
                    raise ConfigError(f"{name}: found {getattr(self, name)} in inference; allowed: training")
        if self.momentum is not None:
            if self.optimizer != "sgd":
                raise ConfigError(
                    f"momentum: found {self.momentum} with optimizer {self.trained_with}; "
                    "allowed: optimizer sgd"
                )
            if not 0 <= self.momentum < 1:
                raise ConfigError(f"momentum: found {self.momentum}; allowed: at least 0 and less than 1")

    @property
    def trained_with(self) -> str:
        """Name of the optimizer."""
        return self.optimizer or _DEFAULT_OPTIMIZER

    @property
    def workspace_bytes(self) -> int:
        """Scratch space of a computing kernel."""
        return 0 if self.workspace is None else parse_bytes(self.workspace)

    @property
    def is_fused(self) -> bool:
        """Whether the optimizer does all its operations on some tensors in one kernel."""
        return self.optimizer_form != "foreach"

    def given(self) -> dict[str, Any]:
        """Return the options in force, by name, in the order of the fields."""
        found = {field.name: getattr(self, field.name) for field in fields(self)}
        if not self.inference:
            found["optimizer"] = self.trained_with
        if self.steps == 1:
            del found["steps"]
        return {name: value for name, value in found.items() if value is not None and value is not False}


def _check_choice(option: str, found: str, choices: Collection[str]) -> None:
    if found not in choices:
        raise ConfigError(
            f"{option}: found '{found}'{nearest(found, choices)}; allowed: {choices_text(choices)}"
        )
