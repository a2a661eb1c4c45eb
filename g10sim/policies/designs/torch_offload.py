"""Plain PyTorch's offloading of the optimizer: a copy out and a copy back for each parameter."""

from __future__ import annotations

from typing import ClassVar

from g10sim.looks import Look
from g10sim.policies.interface.parameters import parameter
from g10sim.policies.interface.registry import register_policy
from g10sim.policies.planning.offloading.on_cpu import OptimizerBelow
from g10sim.policies.planning.offloading.takeover import Schedule
from g10sim.trace.model import Trace


@register_policy
class TorchOffload(OptimizerBelow):
    """Each gradient leaves when the backward pass has made it, and the CPU updates its parameter alone.

    Nothing is gathered in buckets, and the GPU waits for no copy: gradients stay in its memory until they
    have left. The CPU takes its first step when it has launched the kernels of the backward pass. The new
    weight returns when its step has ended. A workload whose weights and activations the GPU cannot hold, or
    whose states host memory cannot, is unsupported.
    """

    name = "torch_offload"
    label = "PyTorch offload"
    look = Look("#0099AA", "//.", "$T$", "2 1")
    paper = "torchao, CPUOffloadOptimizer (github.com/pytorch/ao, torchao/optim/cpu_offload.py, 2024)"
    _has_two_buffers: ClassVar[bool] = False

    overlap: bool = parameter(default=True, published="true, torchao")
    """Update a parameter as soon as its gradient has left, during the backward pass; otherwise all after the
    last gradient."""
    launch_time: float = parameter(default=5e-5, ge=0, le=1)
    """Seconds that the CPU needs to launch a kernel (measured, 45 to 58 us for captured kernels of two ViTs,
    PyTorch 2.11)."""
    call_time: float = parameter(default=2.5e-4, ge=0, le=1)
    """Seconds for which the CPU is busy with a parameter besides its step: a hook, a call of the optimizer,
    and the copy back (measured, .22 to .36 ms, AdamW of PyTorch 2.11)."""

    def _schedule(self, trace: Trace) -> Schedule:
        return Schedule(self.overlap, call_seconds=self.call_time, launch_seconds=self.launch_time)
