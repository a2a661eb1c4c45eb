"""ZeRO-Offload: the CPU runs the optimizer, whose states never leave host memory."""

from __future__ import annotations

from g10sim.config.effects import Effect
from g10sim.looks import Look
from g10sim.policies.interface.parameters import Count, Share, parameter
from g10sim.policies.interface.registry import register_policy
from g10sim.policies.planning.offloading.on_cpu import InBuckets, OptimizerBelow
from g10sim.policies.planning.offloading.takeover import Schedule
from g10sim.trace.model import Trace

_NOT_DELAYED = Effect(
    lambda run, policy: not policy.delayed_update,
    "without delayed_update",
    "all steps run beside the next iteration",
)


@register_policy
class ZeroOffload(InBuckets, OptimizerBelow):
    """Weights and activations stay on the GPU, optimizer states in host memory, where the CPU updates.

    While the backward pass makes gradients, they leave in buckets. The CPU updates the parameters, and the
    new weights come back, those of one kernel while the next one computes. Two bytes a parameter leave in 16
    bits, and two return: an eighth of what moving the states would take. Each of several replicas has its
    part of gradients and states: buckets are reduce-scattered before they leave, and new weights all-gathered
    when they are back. A workload whose weights and activations the GPU cannot hold, or whose states host
    memory cannot, is unsupported.
    """

    name = "zero_offload"
    label = "ZeRO-Offload"
    look = Look("#0077BB", "//-", "1", "3 1 1 1")
    paper = "Ren et al., ZeRO-Offload: Democratizing Billion-Scale Model Training, USENIX ATC 2021"
    overlap: bool = parameter(default=False, effect=_NOT_DELAYED)
    """Update what is in a bucket as soon as it has left; otherwise everything after the last gradient, when
    its norm is known."""
    delayed_update: bool = parameter(default=False)
    """Update during the next iteration, whose weights are then one step old."""
    ratio: Share = parameter(default=1.0, published="1, DeepSpeed (ZeRO-Offload++)")
    """Share of the parameters that the CPU updates; the GPU updates the first ones, whose states it keeps
    (Twin-Flow)."""
    pass_bytes: Count = parameter(default=0, published="14, DeepSpeed (stage_1_and_2.py)")
    """Bytes of memory for each parameter that the CPU reads and writes besides those of its step. DeepSpeed
    scales gradients in float32 (8 B) and rounds weights from 32 to 16 bits (6 B)."""

    def _schedule(self, trace: Trace) -> Schedule:
        overlap, bucket_bytes = self.overlap and not self.delayed_update, self._bucket_bytes(trace)
        return Schedule(overlap, bucket_bytes, self.delayed_update, pass_bytes=self.pass_bytes)
