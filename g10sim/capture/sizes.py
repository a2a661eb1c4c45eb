"""Sizes of the inputs that a builder of models is given."""

from __future__ import annotations

from dataclasses import dataclass

from g10sim.errors import ConfigError


def flag(option: str) -> str:
    """Return an option as the command line writes it."""
    return "--" + option.replace("_", "-")


@dataclass(frozen=True, slots=True)
class Sizes:
    """Samples in a step, tokens in a sample, height and width of an image in pixels; None: the model's."""

    batch_size: int
    seq_len: int | None = None
    image_size: int | None = None

    def refuse_tokens(self, source: str) -> None:
        """Raise ConfigError where a model of images is given a sequence length."""
        if self.seq_len is not None:
            raise ConfigError(
                f"{source}: found --seq-len {self.seq_len} for a model of images; allowed: --image-size"
            )

    def refuse_pixels(self, source: str) -> None:
        """Raise ConfigError where a model of text is given an image size."""
        if self.image_size is not None:
            raise ConfigError(
                f"{source}: found --image-size {self.image_size} for a model of text; allowed: --seq-len"
            )
