"""Scripts: the operators of a step in order, with their kernels, launches and tensors of its trace."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, NamedTuple, cast

import torch
from torch._subclasses.fake_tensor import FakeTensor

from g10sim.analysis.gpus import GpuTimingSpec, load_gpu
from g10sim.capture.devices import fake_device, known_values
from g10sim.capture.fused import one_sequence_a_sample
from g10sim.capture.options import StepOptions
from g10sim.capture.own import OwnStep
from g10sim.capture.recorder import Recorder, StorageRecord
from g10sim.capture.recording import record_step
from g10sim.capture.step import assemble, make_step, settle_lives, tensor_numbers
from g10sim.capture.workload import Step
from g10sim.trace.model import Trace

NONE = -1
"""Number of a tensor that the trace does not have: a scalar of the host, an empty one."""


class Call(NamedTuple):
    """One operator: its name with its overload, its kernels (``first`` to ``end - 1``), and its tensors.

    ``inputs`` and ``outputs`` are numbers of tensors of the trace, in the order of ``tensors_in``. An
    operator without kernels has no tensors.
    """

    name: str
    first: int
    end: int
    inputs: tuple[int, ...] = ()
    outputs: tuple[int, ...] = ()


@dataclass(frozen=True)
class Script:
    """A trace, and the operators that its kernels come from."""

    trace: Trace
    calls: tuple[Call, ...]


def tensors_in(values: Iterable[Any]) -> list[Any]:
    """Return the tensors among values and in sequences of them, in order."""
    found: list[Any] = []
    for value in values:
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif isinstance(value, (list, tuple)):
            found += tensors_in(value)
    return found


def operator_name(func: Any) -> str:
    """Return the name of an operator with its overload."""
    return f"{func._schema.name}.{func._overloadname}"


class ScriptRecorder(Recorder):
    """Notes alongside kernels which operators they come from."""

    def __init__(self, *parts: Any) -> None:
        """Record as the base does."""
        super().__init__(*parts)
        self.noted: list[tuple[str, int, int, list[StorageRecord | None], list[StorageRecord | None]]] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run an operator, record and note it."""
        calls, first = len(self.calls), len(self.kernels)
        result = super().__torch_dispatch__(func, types, args, kwargs)
        if len(self.calls) > calls:
            has_kernels = len(self.kernels) > first
            values = ((*args, *(kwargs or {}).values()), (result,)) if has_kernels else ((), ())
            read, written = ([self._record_of(one, None) for one in tensors_in(some)] for some in values)
            self.noted.append((operator_name(func), first, len(self.kernels), read, written))
        return result


class _RealRecorder(ScriptRecorder):
    """Records a step that computes."""

    @staticmethod
    def _may_be_found(found: Any) -> bool:
        is_real = issubclass(type(found), torch.Tensor) and not issubclass(type(found), FakeTensor)
        return is_real and found.layout is torch.strided and not found.is_meta


def record_script(step: Step | OwnStep, how: StepOptions, **about: Any) -> Script:
    """Record a step that computes, and has run once before; it runs once more.

    The trace has the kernels and tensors of this device; their times are modelled for ``gpu``. ``about`` are
    ``gpu``, ``model`` and ``batch_size``, as for ``g10sim.capture.capture_step``. Raises ConfigError as the
    GPU does.
    """
    return _script(cast("ScriptRecorder", record_step(step, kind=_RealRecorder)), step, how, **about)


def captured_script(build: Callable[[], Any], how: StepOptions, **about: Any) -> Script:
    """Capture a step on tensors without values: the trace is that of ``g10sim.capture.capture_step``.

    ``about`` is as for ``record_script``.
    """
    with fake_device(how):
        with known_values():
            made = build()
        with one_sequence_a_sample():
            step = make_step(made, how)
            step.warm_up()
            recorder = cast("ScriptRecorder", record_step(step, kind=ScriptRecorder))
        return _script(recorder, step, how, **about)


def _script(
    recorder: ScriptRecorder,
    step: Step | OwnStep,
    how: StepOptions,
    gpu: str | GpuTimingSpec = "a100-40g",
    model: str = "model",
    batch_size: int | None = None,
) -> Script:
    settle_lives(recorder, step, how)
    size = step.batch_size if batch_size is None else batch_size
    origin = {**step.said(), "torch": str(torch.__version__)}
    trace = assemble(recorder, load_gpu(gpu), model=model, batch_size=size, origin=origin)
    numbers = tensor_numbers(recorder)

    def ids(records: Iterable[StorageRecord | None]) -> tuple[int, ...]:
        return tuple(NONE if record is None else numbers.get(record, NONE) for record in records)

    calls = (
        Call(name, first, end, ids(given), ids(made)) for name, first, end, given, made in recorder.noted
    )
    return Script(trace, tuple(calls))


def first_difference(found: Script, allowed: Script) -> str | None:
    """Say at which operator two scripts differ first, and name both; None where their operators are alike."""
    names = ((call.name for call in script.calls) for script in (found, allowed))
    for number, (name, other) in enumerate(zip_longest(*names, fillvalue="no further operator")):
        if name != other:
            return f"operator {number}: found {name}; allowed: {other}, as in the trace"
    return None


Launch = tuple[range, frozenset[int], tuple[Any, ...], Mapping[str, Any]]
"""Kernels, the tensors that they need, and the arguments that they work on."""


def launches_of(
    call: Call,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    numbers_of: Callable[[Iterable[Any]], set[int]],
    needs: Sequence[frozenset[int]],
) -> Iterator[Launch]:
    """Cut an operator on lists at whole tensors: one belongs to the last launch of the trace that has it.

    Such operators work element by element, so the parts compute what the whole does. ``needs`` are the
    tensors of every kernel of the trace.
    """
    values = (*args, *kwargs.values())
    lists = [value for value in values if isinstance(value, (list, tuple)) and value]
    lists = [value for value in lists if isinstance(value[0], torch.Tensor)]
    count = len(lists[0])
    alike = [group for group in lists if len(group) == count]

    numbers = list(map(numbers_of, zip(*alike, strict=True)))
    singles = numbers_of(value for value in values if isinstance(value, torch.Tensor))
    last = [
        max((k for k in range(call.first, call.end) if not needs[k].isdisjoint(found)), default=call.first)
        for found in numbers
    ]
    first = call.first
    ends = sorted(set(last))
    for kernel in ends:
        chosen = [place for place in range(count) if last[place] == kernel]
        end = call.end if kernel == ends[-1] else kernel + 1
        needed = singles.union(*(numbers[place] for place in chosen), *needs[first:end])
        own = {name: _cut(value, count, chosen) for name, value in kwargs.items()}
        yield range(first, end), frozenset(needed), tuple(_cut(one, count, chosen) for one in args), own
        first = end


def _cut(value: Any, count: int, chosen: Sequence[int]) -> Any:
    if isinstance(value, (list, tuple)) and len(value) == count:
        return [value[place] for place in chosen]
    return value
