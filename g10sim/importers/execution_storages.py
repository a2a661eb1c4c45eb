"""Allocations that the tensors of an execution trace lie in: their ids are used again after a release."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from g10sim.importers.execution_nodes import HOST, Node, Reference, parents_of
from g10sim.importers.kineto_memory import DATA
from g10sim.importers.operations import NO_KERNELS, OVERWRITING, Storage, aten, phase_of
from g10sim.trace.model import Phase, TensorKind

# PyTorch makes tensors of the numbers among an operator's arguments, without an operator, in storages whose
# ids have been used before.
_NUMBER_BYTES = 8
_COPIES = aten("copy_ _to_copy")
"""Operators that copy between devices."""


class Storages:
    """Matches tensors to allocations of one device, since ids are used again after a release.

    Storages of the host count where an optimizer updates them there, and where they are copied.
    """

    def __init__(self, device: str) -> None:
        self._device = device
        self._current: dict[int, Storage] = {}
        self._of_tensor: dict[int, dict[int, Storage]] = {}
        self._maker: dict[Storage, int] = {}
        self._seen: set[int] = set()
        self._earlier: set[tuple[int, int]] = set()
        self._has_earlier = False

    def follow(self, chosen: Mapping[int, Node], nodes: Mapping[int, Node]) -> None:
        """Go through the chosen operators in the order of their starts and give them their storages."""
        first = next(iter(chosen), 0)
        for node in nodes.values():
            if node.id < first:
                self._has_earlier = self._has_earlier or bool(node.schema)
                self._earlier.update(one.key for one in node.arguments)
        for node in chosen.values():
            if node.schema or node.is_kernel:
                self._follow(node, chosen)
            self._seen.update(one.tensor for one in (*node.arguments, *node.outputs))

    def _follow(self, node: Node, chosen: Mapping[int, Node]) -> None:
        phase = phase_of([parent.name for parent in parents_of(node, chosen)])
        places = self._places(node, phase)
        inputs = [one for one in node.arguments if one.device in places]
        given = set(self._given(node, inputs))
        running = [node.id, *(parent.id for parent in parents_of(node, chosen))]
        before = {one.storage for one in inputs}
        found = {
            one: self._made(one, running)
            if one in given
            else self._used(one, self._role(node, number, one, phase))
            for number, one in enumerate(inputs)
        }
        mutated = {one for one in node.mutated if one.device in places} | given
        overwritten = mutated if node.name in OVERWRITING or node.received else given
        node.reads = {found[one]: None for one in inputs if one not in overwritten}
        node.writes = {found[one]: None for one in inputs if one in mutated}
        for one in node.outputs:
            if one.device in places and one.storage not in before:
                node.writes[self._made(one, running)] = None
        if phase is Phase.FORWARD and places > {HOST} and any(one.device == HOST for one in inputs):
            for storage in node.writes:  # what the host feeds
                storage.role = storage.role or TensorKind.INPUT
        if node.name in NO_KERNELS:
            node.reads, node.writes = {}, {}

    def _places(self, node: Node, phase: Phase) -> set[str]:
        """Return the devices whose tensors count where an operator uses them."""
        used = {one.device for one in (*node.arguments, *node.outputs)}
        elements = max((one.extent_bytes for one in (*node.arguments, *node.outputs)), default=0)
        crosses = self._device in used and HOST in used and node.name in _COPIES
        updates = phase is Phase.OPTIMIZER and used <= {HOST}
        return {self._device, HOST} if (crosses or updates) and elements > _NUMBER_BYTES else {self._device}

    def _given(self, node: Node, inputs: Sequence[Reference]) -> Iterable[Reference]:
        """Return the arguments that an operator is given for its results: new tensors.

        A compiled kernel writes what no operator has used before, or else its last tensor.
        """
        if not node.is_kernel:
            return [one for one in node.filled if one in inputs and one.tensor not in self._seen]
        return [one for one in inputs if one.tensor not in self._seen] or inputs[-1:]

    def _role(self, node: Node, number: int, one: Reference, phase: Phase) -> TensorKind:
        """Return whether a tensor from before the step is fed again.

        It is where it was not there in an earlier step of the file; without one, where it has whole numbers
        or is what an operator applies weights to.
        """
        if self._has_earlier:
            return TensorKind.WEIGHT if one.key in self._earlier else TensorKind.INPUT
        is_data = number == DATA.get(node.name) and phase is Phase.FORWARD
        return TensorKind.INPUT if is_data or one.is_whole else TensorKind.WEIGHT

    def _used(self, one: Reference, role: TensorKind) -> Storage:
        known = self._of_tensor.get(one.storage, {}).get(one.tensor)
        if known is None:
            known = self._current.get(one.storage)
            if known is None or one.extent_bytes <= _NUMBER_BYTES < known.size_bytes:
                known = self._current[one.storage] = Storage(0, external=True, role=role)
        return self._grown(one, known)

    def _made(self, one: Reference, running: Sequence[int]) -> Storage:
        """Return the storage of an output: of the same tensor that an operator around it returns, or new."""
        tensors = self._of_tensor.get(one.storage, {})
        made = tensors.get(one.tensor)
        if made is None or self._maker.get(made) not in running:
            made = Storage(0)
            self._maker[made] = running[0]
            # What an operator still running will return has its ids from the end of that operator on.
            self._of_tensor[one.storage] = {
                tensor: storage for tensor, storage in tensors.items() if self._maker.get(storage) in running
            }
        self._current[one.storage] = made
        return self._grown(one, made)

    def _grown(self, one: Reference, storage: Storage) -> Storage:
        self._of_tensor.setdefault(one.storage, {})[one.tensor] = storage
        storage.size_bytes = max(storage.size_bytes, one.extent_bytes)
        storage.item_bytes = one.item_bytes
        return storage
