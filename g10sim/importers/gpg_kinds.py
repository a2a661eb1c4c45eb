"""Roles of tensors in traces of the published G10 simulator, which only says which are global."""

from __future__ import annotations

from collections.abc import Sequence

from g10sim.trace.model import Kernel, Phase, TensorKind

_LOAD_DATA = "LoadData"


def tensor_kinds(is_global: Sequence[bool], kernels: Sequence[Kernel]) -> list[TensorKind]:
    """Tell the kind of every tensor from how the kernels use it.

    - weight: global;
    - workspace: see ``_num_workspaces``;
    - input: read before any kernel wrote it (token ids, masks, constants: the published simulator lets
      them appear at their first use), or written by a ``LoadData`` kernel;
    - gradient: written first in the backward pass and read by an ``Apply_Grad`` kernel;
    - activation: written first in the forward pass and read by some kernel;
    - temporary: everything else (gradients of activations, statistics that nothing reads).
    """
    use = _Use(len(is_global), kernels)
    first_workspace = len(is_global) - _num_workspaces(is_global, use)
    kinds = []
    for tensor, weight in enumerate(is_global):
        if weight:
            kinds.append(TensorKind.WEIGHT)
        elif tensor >= first_workspace:
            kinds.append(TensorKind.WORKSPACE)
        else:
            kinds.append(use.kind(tensor))
    return kinds


class _Use:
    """Who writes and reads each tensor first."""

    def __init__(self, num_tensors: int, kernels: Sequence[Kernel]) -> None:
        self.writers: list[list[Kernel]] = [[] for _ in range(num_tensors)]
        self.readers: list[list[Kernel]] = [[] for _ in range(num_tensors)]
        for kernel in kernels:
            for tensor in kernel.inputs:
                self.readers[tensor].append(kernel)
            for tensor in kernel.outputs:
                self.writers[tensor].append(kernel)

    def kind(self, tensor: int) -> TensorKind:
        """Kind of a tensor that is neither weight nor workspace."""
        writers, readers = self.writers[tensor], self.readers[tensor]
        if readers and (not writers or readers[0].id <= writers[0].id):
            return TensorKind.INPUT
        if writers and writers[0].name.startswith(_LOAD_DATA):
            return TensorKind.INPUT
        if writers and readers and writers[0].phase is Phase.FORWARD:
            return TensorKind.ACTIVATION
        if any(reader.phase is Phase.OPTIMIZER for reader in readers):
            return TensorKind.GRADIENT
        return TensorKind.TEMPORARY


def _num_workspaces(is_global: Sequence[bool], use: _Use) -> int:
    """Count the tensors at the end that are cuDNN workspaces.

    The published simulator numbers them after all others, in launch order, and lists them as first output
    of their only kernel: they are the longest run of last ids that nothing reads, each the first output of
    exactly one kernel, these kernels ascending.
    """
    count = 0
    following = None
    for tensor in reversed(range(len(is_global))):
        writers = use.writers[tensor]
        if is_global[tensor] or use.readers[tensor] or len(writers) != 1:
            break
        writer = writers[0]
        if writer.outputs[0] != tensor or (following is not None and writer.id >= following):
            break
        following = writer.id
        count += 1
    return count
