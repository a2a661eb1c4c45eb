"""Generation: a pass over a prompt, then one token after another, on a cache of keys and values that grows.

Few steps are recorded. The sizes of a step are linear in the number of tokens before it, so those between two
recorded steps follow from both. A step in the middle is recorded, too; where it is another than follows, the
halves are treated alike.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import torch

from g10sim.capture.options import StepOptions, flag
from g10sim.capture.recording import Parts, record_step
from g10sim.capture.templates import StepTemplate, between, is_between, step_templates
from g10sim.capture.workload import Model, input_tensors
from g10sim.errors import ConfigError

_PROMPT = "input_ids"
_CACHE_NAMES = ("cache", "past_key_values")  # since transformers 5.24, and before


def cache_name(network: Any) -> str:
    """Return the name under which a causal language model takes its cache."""
    accepted = inspect.signature(network.forward).parameters
    return next((name for name in _CACHE_NAMES if name in accepted), _CACHE_NAMES[0])


class Decoding:
    """Calls of a network that continue a text: the first with what is given, later ones with a token each."""

    def __init__(self, network: Any, cache: Any, tokens: Any) -> None:
        self._network, self._tokens, self._given = network, tokens, tokens
        self._options = {cache_name(network): cache, "use_cache": True}
        if "logits_to_keep" in inspect.signature(network.forward).parameters:
            self._options["logits_to_keep"] = 1

    def run(self) -> None:
        """Call the network and take the likeliest token of each sample."""
        with torch.no_grad():
            output = self._network(input_ids=self._tokens, **self._options)
            self._tokens = output.logits[:, -1:].argmax(-1)

    def parts(self) -> Parts:
        """Return what a call is made of."""
        return Parts({"": self._network}, (), {f"input.{_PROMPT}": self._given})


class Generation:
    """Records the generation of some tokens by a causal language model of transformers."""

    def __init__(self, model: Model, options: StepOptions) -> None:
        """Check that the model can generate. Raises ConfigError."""
        self.network = model.network.eval()
        self.count = options.generate or 0
        self._is_static = options.cache == "static"
        self._workspace_bytes = options.workspace_bytes
        tokens = input_tensors(model.inputs)
        accepted = inspect.signature(self.network.forward).parameters
        needed = {_PROMPT, cache_name(self.network)}
        if not needed <= set(accepted) or not hasattr(self.network, "config"):
            raise ConfigError(
                f"--generate: found {type(self.network).__name__}; allowed: a causal language model of "
                f"transformers, whose forward takes {_PROMPT} and {' or '.join(_CACHE_NAMES)}"
            )
        if len(tokens) != 1:
            raise ConfigError(f"--generate: found inputs {', '.join(tokens)}; allowed: {_PROMPT} alone")
        (self.prompt,) = tokens.values()
        self._check_length()
        self._cache: Any = None

    def _check_length(self) -> None:
        config = self.network.config.get_text_config(decoder=True)
        longest, prompt = getattr(config, "max_position_embeddings", None), int(self.prompt.shape[1])
        if longest is not None and prompt + self.count > longest:
            raise ConfigError(
                f"{flag('generate')}: found {self.count} after {prompt} tokens of prompt; "
                f"allowed: at most {longest - prompt}, for the model takes {longest}"
            )

    def templates(self) -> Iterator[StepTemplate]:
        """Record and yield the pass over the prompt and every step after it."""
        preparing = Decoding(self.network, self._new_cache(), self.prompt)
        for _ in range(2):  # then what lives longer than a step exists
            preparing.run()
        decoding = Decoding(self.network, self._new_cache(), self.prompt)
        yield from (found := self._templates(decoding, min(3, self.count + 1)))
        if self.count > 2:
            yield from self._steps(2, found[2], self.count, self._recorded(self.count))

    def _new_cache(self) -> Any:
        """Return an empty cache: a new one that grows, or the one of full length, whose tensors stay."""
        import transformers

        if not self._is_static:
            return transformers.DynamicCache(config=self.network.config)
        if self._cache is not None:
            self._cache.reset()
        else:
            longest = int(self.prompt.shape[1]) + self.count
            self._cache = transformers.StaticCache(config=self.network.config, max_cache_len=longest)
        return self._cache

    def _recorded(self, step: int) -> StepTemplate:
        """Record a step, and the one before it for what it reads of that, after a pass over all tokens."""
        samples, prompt = (int(size) for size in self.prompt.shape)
        tokens = self.prompt.new_zeros((samples, prompt + step - 2))
        decoding = Decoding(self.network, self._new_cache(), tokens)
        decoding.run()
        return self._templates(decoding, 2)[1]

    def _templates(self, decoding: Decoding, calls: int) -> list[StepTemplate]:
        recorder = record_step(decoding, calls)
        recorder.add_workspaces(self._workspace_bytes)
        return step_templates(recorder)

    def _steps(self, low: int, first: StepTemplate, high: int, last: StepTemplate) -> Iterator[StepTemplate]:
        """Yield the steps after ``low`` until ``high``."""
        middle = (low + high) // 2
        if middle == low:
            yield last
            return
        found = self._recorded(middle)
        if is_between(first, last, high - low) and found.is_like(
            between(first, last, middle - low, high - low)
        ):
            yield from (between(first, last, step - low, high - low) for step in range(low + 1, high + 1))
            return
        yield from self._steps(low, first, middle, found)
        yield from self._steps(middle, found, high, last)
