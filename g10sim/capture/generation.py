"""Generation: a pass over a prompt, then one token after another, on a cache of keys and values that grows.

Few steps are recorded, as templates: kernels that name tensors by where these come from. The sizes of a step
are linear in the number of tokens before it, so those between two recorded steps follow from both. A step in
the middle is recorded, too; where it is another than follows, the halves are treated alike.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import starmap
from typing import Any, NamedTuple

import torch

from g10sim.capture.options import StepOptions, flag
from g10sim.capture.recorder import KernelDraft, Recorder, StorageRecord
from g10sim.capture.recording import Parts, record_step, settle_kinds
from g10sim.capture.workload import Model, input_tensors
from g10sim.errors import ConfigError, TraceError
from g10sim.trace.model import Tensor, TensorKind
from g10sim.trace.work import SIZES

_PROMPT = "input_ids"
_NUMBERS = ("flops", "moved_bytes", *SIZES)
"""Numbers of a kernel that may change from step to step."""
_CACHE_NAMES = ("cache", "past_key_values")  # since transformers 5.24, and before


class Reference(NamedTuple):
    """A tensor that a kernel names: a lasting one by its key, or one made in a step by its number there.

    ``steps_ago`` is 0 for a tensor of this step, 1 for one of the step before, and -1 for a lasting one.
    """

    steps_ago: int
    number: int


@dataclass(frozen=True, slots=True)
class KernelTemplate:
    """A kernel of a step: what it costs, and what it reads and writes."""

    cost: KernelDraft
    reads: tuple[Reference, ...]
    writes: tuple[Reference, ...]

    @property
    def sizes(self) -> tuple[int, ...]:
        """The numbers that may change from step to step."""
        return tuple(getattr(self.cost, name) for name in _NUMBERS)

    @property
    def rest(self) -> tuple[object, ...]:
        """Facts that stay the same from step to step."""
        cost = self.cost
        kind = cost.operator, cost.operator_class, cost.number_format, cost.layer, cost.known_cost
        return *kind, self.reads, self.writes

    def with_sizes(self, sizes: Sequence[int]) -> KernelTemplate:
        """Return the kernel with other numbers."""
        numbers: dict[str, Any] = dict(zip(_NUMBERS, sizes, strict=True))
        return replace(self, cost=replace(self.cost, **numbers))


@dataclass(frozen=True, slots=True)
class StepTemplate:
    """The kernels of a step, the tensors that it makes, and lasting tensors by key.

    Ids are keys of lasting tensors, and numbers in the step of those that it makes.
    """

    kernels: tuple[KernelTemplate, ...]
    made: tuple[Tensor, ...]
    lasting: dict[int, Tensor]

    @property
    def sizes(self) -> list[int]:
        """All numbers that may change from step to step."""
        found = [size for kernel in self.kernels for size in kernel.sizes]
        return found + [tensor.size_bytes for tensor in self.made]

    @property
    def rest(self) -> tuple[object, ...]:
        """Facts that stay the same from step to step."""
        made = tuple((tensor.name, tensor.kind) for tensor in self.made)
        return tuple(kernel.rest for kernel in self.kernels), made

    def is_like(self, other: StepTemplate) -> bool:
        """Return True if another step has the same kernels and makes the same tensors."""
        return self.sizes == other.sizes and self.rest == other.rest


def is_between(first: StepTemplate, last: StepTemplate, steps: int) -> bool:
    """Return True if whole numbers between those of two steps, ``steps`` apart, make a step."""
    if first.rest != last.rest:
        return False
    return not any((b - a) % steps for a, b in zip(first.sizes, last.sizes, strict=True))


def between(first: StepTemplate, last: StepTemplate, done: int, steps: int) -> StepTemplate:
    """Return the step that comes that many of ``steps`` steps after the first on the way to the last."""
    if done == steps:
        return last
    kernels = tuple(
        a
        if a.sizes == b.sizes
        else a.with_sizes([_part(*pair, done, steps) for pair in zip(a.sizes, b.sizes, strict=True)])
        for a, b in zip(first.kernels, last.kernels, strict=True)
    )
    made = tuple(
        a
        if a.size_bytes == b.size_bytes
        else replace(a, size_bytes=_part(a.size_bytes, b.size_bytes, done, steps))
        for a, b in zip(first.made, last.made, strict=True)
    )
    return StepTemplate(kernels, made, last.lasting)


def _part(first: int, last: int, done: int, steps: int) -> int:
    return first + (last - first) // steps * done


def step_templates(recorder: Recorder) -> list[StepTemplate]:
    """Return the steps of a recording.

    Raises TraceError for a step that reads what is neither lasting nor made in it or the step before.
    """
    settle_kinds(recorder)
    lasting = {record: Reference(-1, key) for record, key in recorder.lasting().items()}
    keys = {one.number: _tensor(record, one) for record, one in lasting.items() if record.kind is not None}
    # Of a step that is not recorded; no use is made of the first step.
    earlier = {record: Reference(2, 0) for record in recorder.storages if record.phase is None}
    found: list[StepTemplate] = []
    before: dict[StorageRecord, Reference] = {}
    for start, end in zip([0, *recorder.ends], recorder.ends, strict=False):
        drafts = recorder.kernels[start:end]
        written = dict.fromkeys(record for draft in drafts for record in draft.writes)
        new = (record for record in written if record not in lasting and record not in before)
        made = {record: Reference(0, number) for number, record in enumerate(new)}
        known = {**({} if found else earlier), **before, **made, **lasting}
        kernels = tuple(_template(draft, known) for draft in drafts)
        found.append(StepTemplate(kernels, tuple(starmap(_tensor, made.items())), keys))
        before = {record: Reference(1, one.number) for record, one in made.items()}
    return found


def _template(draft: KernelDraft, known: Mapping[StorageRecord, Reference]) -> KernelTemplate:
    if not known.keys() >= draft.reads.keys() | draft.writes.keys():
        raise TraceError(
            f"--generate: found {draft.operator} in '{draft.layer.path}' reading a tensor of an earlier step "
            "than the one before; allowed: steps that keep everything in the cache"
        )
    reads, writes = (tuple(map(known.__getitem__, side)) for side in (draft.reads, draft.writes))
    return KernelTemplate(draft, reads, writes)


def _tensor(record: StorageRecord, reference: Reference) -> Tensor:
    kind = record.kind or TensorKind.TEMPORARY
    return Tensor(reference.number, record.name or kind.value, record.size_bytes, kind, record.persistent)


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
            found = f"{self.count} after {prompt} tokens of prompt"
            allowed = f"at most {longest - prompt}, for the model takes {longest}"
            raise ConfigError.at(flag("generate"), found, allowed)

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
