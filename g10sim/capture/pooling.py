"""Pooling as cuDNN has it: its gradient is made from input and output, and no indices are kept."""

from __future__ import annotations

from collections.abc import Sequence

from g10sim.capture.recorder import KernelDraft, StorageRecord

_FORWARD, _BACKWARD = "max_pool2d_with_indices", "max_pool2d_with_indices_backward"


def forget_indices(kernels: Sequence[KernelDraft]) -> None:
    """Let max pooling keep no indices: its backward kernel reads the pooling's output instead of them.

    PyTorch's kernels keep the position of every maximum in 8 bytes, twice the output in 32 bits; the backward
    pooling of cuDNN takes input and output (cuDNN API reference, ``cudnnPoolingBackward``).
    """
    outputs: dict[StorageRecord, StorageRecord] = {}
    for kernel in kernels:
        if kernel.operator == _FORWARD:
            output, indices = sorted(kernel.writes, key=lambda record: record.size_bytes)
            del kernel.writes[indices]
            outputs[indices] = output
        elif kernel.operator == _BACKWARD:
            for indices in [record for record in kernel.reads if record in outputs]:
                del kernel.reads[indices]
                kernel.reads[outputs[indices]] = outputs[indices].size_bytes
        else:
            continue
        kernel.count_bytes()
