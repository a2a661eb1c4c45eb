"""Runs the user's step operator by operator: checks each against the script, and moves storages around it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn

from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from g10sim.capture.operators import LOOK, launches_nothing
from g10sim.errors import ExecutionError
from g10sim.execute.memory import Memory, Undo, written_by
from g10sim.execute.moving import Guide, Mover
from g10sim.execute.script import NONE, Call, Script, launches_of, operator_name, tensors_in
from g10sim.importers.operations import ALLOCATIONS
from g10sim.trace.model import TensorKind


@dataclass(frozen=True)
class StepReport:
    """One executed step.

    ``faults`` are tensors that kernels had to wait for, ``in_bytes`` and ``out_bytes`` what moved each way,
    ``peak_bytes`` the most bytes on the device at a time by the account, ``allocated_bytes`` by PyTorch's
    allocator, with what libraries take inside operators (0 in main memory). ``resident_bytes`` has a number
    for each kernel: what is on the device after it; ``starts`` the seconds after which it began. ``seconds``
    is the time of the step, on a CUDA device by its events.
    """

    faults: int
    in_bytes: int
    out_bytes: int
    peak_bytes: int
    allocated_bytes: int
    resident_bytes: Sequence[int]
    starts: Sequence[float]
    seconds: float


class _Known(NamedTuple):
    """Facts about an operator: its name, whether it is counted, reads values, allocates, writes arguments."""

    name: str
    is_counted: bool
    reads: bool
    allocates: bool
    writes: bool


class _Work(NamedTuple):
    """An operator of the script, the tensors that its kernels need, and those that they make."""

    call: Call
    needed: frozenset[int]
    births: tuple[int, ...]
    is_list: bool


class Executor(TorchDispatchMode):  # type: ignore[misc]
    """Runs steps that a script was made of, within a budget of bytes on the device.

    Enter it around the loop, and ``step()`` around each step. The first step finds the tensors of the trace;
    moves and the budget begin with the second. A step that runs another operator than the script raises
    ExecutionError, as does what the budget has no room for: then everything is back on the device, and
    weights, states and buffers are as before the step. ``weights`` are those whose gradients are put back.
    With ``undo`` false they are not: this saves the copies that a step makes of what it changes.
    ``reports`` has a report of each step after the first.
    """

    def __init__(
        self,
        script: Script,
        budget_bytes: int,
        guide: Guide,
        memory: Memory,
        weights: Iterable[Any] = (),
        *,
        undo: bool = True,
    ) -> None:
        """Prepare. Raises ExecutionError for a plan that has other moves."""
        super().__init__()
        self.reports: list[StepReport] = []
        self._trace = trace = script.trace
        self._mover = Mover(trace, guide, memory)
        self.account = self._mover.account
        self._budget, self._memory = budget_bytes, memory
        self._weights, self._keeps, self._undo = tuple(weights), undo, Undo(())
        self._kernels = len(trace.kernels)
        self._needs = [frozenset(kernel.tensors) for kernel in trace.kernels]
        self._persistent = [tensor.persistent for tensor in trace.tensors]
        self._dying: list[list[int]] = [[] for _ in range(self._kernels)]
        self._born: list[list[int]] = [[] for _ in range(self._kernels)]
        for number, uses in enumerate(trace.uses):
            if uses and not self._persistent[number]:
                self._born[uses[0]].append(number)
                self._dying[uses[-1]].append(number)
        if self._kernels:
            self._dying[-1] = []  # what the step leaves behind is the loop's
        self._work = [self._worked(call) for call in script.calls]
        self._known: dict[Any, _Known] = {}
        self._steps = self._at = self._kernel = self._peak = 0
        self._is_open = False
        self._resident: list[int] = []
        self._marks: list[Any] = []

    def _worked(self, call: Call) -> _Work:
        kernels = range(call.first, call.end)
        tensors = {number for number in (*call.inputs, *call.outputs) if number != NONE}
        needed = tensors.union(*(self._needs[kernel] for kernel in kernels))
        births = tuple(number for kernel in kernels for number in self._born[kernel])
        is_list = len(kernels) > 1 and ("_foreach_" in call.name or "_fused_" in call.name)
        return _Work(call, frozenset(needed), births, is_list)

    @contextmanager
    def step(self) -> Iterator[None]:
        """Run one step inside. Raises ExecutionError, and puts the model back, where it is another."""
        self._begin()
        counts, start = self.account.counts.copy(), self._memory.mark()
        try:
            yield
            self._finish()
        except BaseException:
            with _disable_current_modes():
                self.account.restore()
                self._undo.apply()
            raise
        finally:
            self._is_open, self._undo = False, Undo(())
        _, *starts, seconds = self._memory.seconds([start, *self._marks, self._memory.mark()])
        allocated = self._memory.allocated_bytes()
        if self._steps:
            moved = self.account.counts - counts
            found = moved["faults"], moved["in"], moved["out"], self._peak, allocated
            self.reports.append(StepReport(*found, tuple(self._resident), starts, seconds))
        self._steps += 1

    def _begin(self) -> None:
        account = self.account
        self._at = self._kernel = 0
        self._resident, self._marks = [], []
        self._undo = Undo(self._weights if self._keeps else ())
        with _disable_current_modes():
            for number in [number for number in account.storages if not self._persistent[number]]:
                account.unbind(number)
            if self._steps:
                account.budget = self._budget
                self._mover.begin(self._steps - 1)
                account.make_room(0, (), is_demanded=True)
        self._peak = account.used_bytes
        self._is_open = True

    def _finish(self) -> None:
        found, allowed = self._at, len(self._work)
        if found != allowed:
            raise ExecutionError(
                f"step {self._steps}: found {found} operators; allowed: the {allowed} of the trace, next "
                f"{self._work[found].call.name}"
            )
        with _disable_current_modes():
            self._end_kernels(self._kernels)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return False: no step is compiled, and keeping the compiler out costs 10 us an operator."""
        return False

    def __exit__(self, *error: Any) -> Any:
        """Bring everything back, so that the model is whole."""
        with _disable_current_modes():
            self.account.restore()
            self._memory.finish()
        return super().__exit__(*error)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run an operator, with its tensors on the device."""
        kwargs = kwargs or {}
        known = self._known.get(func) or self._learn(func)
        if not (known.is_counted and self._is_open):
            if known.reads:
                self._look((args, *kwargs.values()))
            elif known.allocates and self._is_open and self._at < len(self._work):
                self._allocate()
            return func(*args, **kwargs)
        work = self._expected(known.name)
        tensors = tensors_in((*args, *kwargs.values()))
        if work.call.first == work.call.end:
            if known.reads:
                self._look(tensors)
            if known.writes:
                self._note(func, args, kwargs)
            return func(*args, **kwargs)
        self._bind_all(work.call.inputs, tensors)
        if work.is_list:
            return self._run_list(work, func, args, kwargs)
        self._before(range(work.call.first, work.call.end), work.needed, work.births)
        if known.writes:
            self._note(func, args, kwargs)
        result = func(*args, **kwargs)
        self._bind_all(work.call.outputs, tensors_in((result,)))
        self._peak = max(self._peak, self.account.used_bytes)
        return result

    def _learn(self, func: Any) -> _Known:
        if func.namespace == "c10d":
            self._refuse(f"found {operator_name(func)}; allowed: a step on one device")
        silent, name = launches_nothing(func), func._schema.name
        allocates = name in ALLOCATIONS
        reads = name == LOOK or (not silent and not func.is_view)
        writes = func._schema.is_mutable or "batch_norm" in name
        self._known[func] = _Known(operator_name(func), not silent, reads, allocates, writes)
        return self._known[func]

    def _expected(self, name: str) -> _Work:
        number = self._at
        allowed = self._work[number].call.name if number < len(self._work) else "no further operator"
        if allowed != name:
            self._refuse(f"operator {number}: found {name}; allowed: {allowed}, as in the trace")
        self._at += 1
        return self._work[number]

    def _refuse(self, problem: str) -> NoReturn:
        raise ExecutionError(f"step {self._steps}, {problem}")

    def _refuse_operator(self, found: str, allowed: object) -> NoReturn:
        name = self._work[self._at - 1].call.name
        self._refuse(f"operator {self._at - 1} ({name}): found {found}; allowed: {allowed}")

    def _name(self, number: int) -> str:
        return f"tensor {number} ('{self._trace.tensors[number].name}')"

    def _bind_all(self, numbers: Sequence[int], tensors: Sequence[Any]) -> None:
        if len(numbers) != len(tensors):
            self._refuse_operator(f"{len(tensors)} tensors", len(numbers))
        known = self.account.numbers
        for number, tensor in zip(numbers, tensors, strict=True):
            storage = tensor.untyped_storage()
            if number != NONE and known.get(storage._cdata) != number:
                self._bind(number, storage)

    def _bind(self, number: int, storage: Any) -> None:
        account = self.account
        found, size = account.numbers.get(storage._cdata), account.sizes[number]
        if found is not None:
            self._refuse_operator(self._name(found), self._name(number))
        if storage.nbytes() != size:
            self._refuse_operator(f"{storage.nbytes()} bytes for {self._name(number)}", size)
        if account.is_bound(number):
            if self._persistent[number] and self._trace.tensors[number].kind is not TensorKind.INPUT:
                self._refuse_operator(f"a second storage for {self._name(number)}", "the one it has")
            account.unbind(number)
        account.bind(number, storage)

    def _before(self, kernels: range, needed: frozenset[int], births: Sequence[int]) -> None:
        """Have the tensors of an operator on the device, and room for those that it makes."""
        self._end_kernels(kernels.start)
        if self._steps and not self._mover.is_idle:
            for kernel in kernels:
                self._mover.start(kernel, self._needs[kernel], needed, kernels[-1])
        self._demand(needed, births)
        self._marks += [self._memory.pace()] * len(kernels)

    def _end_kernels(self, until: int) -> None:
        """Release what has died in the kernels before one, and let the guide act on their ends."""
        account = self.account
        for kernel in range(self._kernel, until):
            for number in self._dying[kernel]:
                account.drop(number)
            self._resident.append(account.used_bytes - account.other_bytes)
            if self._steps and not self._mover.is_idle:
                upcoming = self._needs[kernel + 1] if kernel + 1 < self._kernels else frozenset()
                self._mover.end(kernel, upcoming)
        self._kernel = max(self._kernel, until)

    def _demand(self, needed: Collection[int], births: Sequence[int]) -> None:
        account, memory = self.account, self._memory
        self._mover.view.needed = needed
        for number in sorted(account.host.keys() & needed):
            if not account.fetch(number, needed, "demand"):
                self._refuse_size(needed)
        size = self._unborn_bytes(births)
        if not account.make_room(size, needed, is_demanded=True):
            self._refuse_size(needed)
        self._peak = max(self._peak, account.used_bytes + size)
        if memory.awaits_copies:
            for number in needed:
                memory.arrive(number)

    def _unborn_bytes(self, births: Iterable[int]) -> int:
        """Return the bytes of tensors that are neither on the device nor have room there."""
        here, room = self.account.here, self.account.room
        return sum(self.account.sizes[one] for one in births if one not in here and one not in room)

    def _refuse_size(self, needed: Collection[int]) -> NoReturn:
        size = sum(self.account.sizes[number] for number in needed)
        self._refuse(
            f"kernel {self._kernel}: found a working set of {size} bytes with {self.account.other_bytes} "
            f"bytes that the trace does not have; allowed: {self.account.budget} bytes together"
        )

    def _run_list(self, work: _Work, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Run an operator on lists in the launches of the trace, each with its tensors alone."""
        results: list[Any] = []
        launches = launches_of(work.call, args, kwargs, self.account.numbers_of, self._needs)
        for kernels, needed, given, named in launches:
            births = [number for kernel in kernels for number in self._born[kernel]]
            self._before(kernels, needed, births)
            self._note(func, given, named)
            result = func(*given, **named)
            if result is not None:
                done = len(results)
                results += result
                self._bind_all(work.call.outputs[done : len(results)], results[done:])
            self._peak = max(self._peak, self.account.used_bytes)
        return results or None

    def _note(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Note what an operator is about to change of the state before the step."""
        if not self._keeps:
            return
        for tensor in written_by(func, args, kwargs):
            number = self.account.number_of(tensor)
            if number is None or self._persistent[number]:
                self._undo.note(tensor.untyped_storage())

    def _look(self, values: Iterable[Any]) -> None:
        """Have tensors on the device whose values are read outside kernels of the trace."""
        account = self.account
        numbers = account.numbers_of(tensors_in(values))
        for number in numbers:
            if number in account.host and not account.fetch(number, numbers, "demand"):
                self._refuse_size(numbers)
            if number not in account.here:
                problem = f"{self._name(number)} is read, but dead in the trace; allowed: read before"
                self._refuse(f"kernel {self._kernel}: {problem}")
            self._memory.arrive(number)

    def _allocate(self) -> None:
        """Make room for what the next operator with kernels is given to write."""
        work = self._work[self._at]
        if self._steps:
            self.account.make_room(self._unborn_bytes(work.births), work.needed, is_demanded=True)
