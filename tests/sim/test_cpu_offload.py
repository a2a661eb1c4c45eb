"""Optimizer steps on the CPU, as ZeRO-Offload (ATC 2021) and its successors run them, in closed form.

A layer of 10^9 parameters: 1 s forward, 2 s backward, in which ten buckets of gradients become ready, one by
one. The link carries 10 GB/s each way, and the CPU updates 10^9 parameters a second: a bucket crosses the
link in 0.02 s, either way, and is updated in 0.1 s.
"""

import pytest

from g10sim.config.system import SystemSpec
from g10sim.policies.designs.ideal import Ideal
from g10sim.policies.interface.moves import Evict, Fetch
from g10sim.policies.interface.policy import Policy, Requirements
from g10sim.records import StallReason
from g10sim.sim.engine import run
from g10sim.trace.model import Device, TensorKind
from g10sim.trace.synthetic import TraceBuilder
from g10sim.trace.workload import Job, Workload

SECOND = 10**9
BUCKETS, PARAMETERS = 10, 10**8
HALF = 2 * PARAMETERS
STATE = 12 * PARAMETERS

SYSTEM = SystemSpec(
    name="one link",
    gpu={"memory": "30 GB", "clock": "1 GHz", "page_size": "100 kB", "allocation_rate": "100 TB/s"},
    host={"memory": "100 GB"},
    ssd=None,
    tiers=["host"],
    cpu={"optimizer_rate": "1 G/s"},
    pcie={"bandwidth": "10 GB/s"},
    page_fault={"latency": "0 s"},
)


class Layer:
    """The trace of the layer, put together step by step."""

    def __init__(self):
        self.builder = TraceBuilder("layer")
        self.kernels = {}
        self.weights = self._tensors("weights", HALF, TensorKind.WEIGHT)
        self.gradients = self._tensors("gradients", HALF, TensorKind.GRADIENT, persistent=False)
        self.state = self._tensors("state", STATE, TensorKind.OPTIMIZER_STATE)
        self.builder.kernel("Forward", SECOND, self.weights, [])

    def _tensors(self, name, size, kind, *, persistent=True):
        return [self.builder.tensor(f"{name}{i}", size, kind, persistent=persistent) for i in range(BUCKETS)]

    def backward(self, bucket):
        self.builder.kernel("Backward", SECOND // 5, [self.weights[bucket]], [self.gradients[bucket]])

    def norm(self, buckets):
        """No step begins before all gradients have been seen."""
        self.norm_of = self.builder.tensor("norm", 4, TensorKind.OTHER)
        gradients = [self.gradients[bucket] for bucket in buckets]
        self.builder.kernel("Norm", 0, gradients, [self.norm_of], device=Device.CPU)

    def step(self, bucket, written=None):
        state, written = self.state[bucket], written or self.weights
        reads = [self.gradients[bucket], state, *([self.norm_of] if hasattr(self, "norm_of") else [])]
        outputs = [state, written[bucket]]
        self.builder.kernel("Step", 0, reads, outputs, device=Device.CPU, parameters=PARAMETERS)

    def build(self):
        return self.builder.build()


class Offloads(Policy):
    """Sends gradients to host memory as they become ready, and brings back what steps on the CPU write."""

    name = "offloads"
    requirements = Requirements(addresses="own")

    def on_kernel_start(self, view):
        """Give the gradients of the next kernel on the GPU their memory."""
        on_gpu = [kernel for kernel in view.trace.kernels if kernel.name == "Backward"]
        after = next((kernel for kernel in on_gpu if kernel.id > view.kernel), None)
        return [] if after is None else [Fetch(tensor) for tensor in after.outputs]

    def on_kernel_end(self, view):
        kernel = view.trace.kernels[view.kernel]
        if kernel.name == "Backward":
            return [Evict(tensor) for tensor in kernel.outputs if self._goes_to_cpu(view, tensor)]
        return [Fetch(kernel.outputs[-1])] if kernel.name == "Step" else []

    @staticmethod
    def _goes_to_cpu(view, tensor):
        return any(tensor in kernel.inputs for kernel in view.trace.cpu_kernels)


def after_the_last_gradient():
    layer = Layer()
    for bucket in range(BUCKETS):
        layer.backward(bucket)
    layer.norm(range(BUCKETS))
    for bucket in range(BUCKETS):
        layer.step(bucket)
    return layer.build()


def bucket_by_bucket():
    layer = Layer()
    for bucket in range(BUCKETS):
        layer.backward(bucket)
        layer.step(bucket)
    return layer.build()


def delayed():
    """Steps write new weights, which replace the old ones when the next iteration has used these."""
    layer = Layer()
    new = layer._tensors("new", HALF, TensorKind.WEIGHT)
    for bucket in range(BUCKETS):
        layer.backward(bucket)
    layer.builder.kernel("Replace", 0, new, layer.weights)
    layer.norm(range(BUCKETS))
    for bucket in range(BUCKETS):
        layer.step(bucket, new)
    return layer.build()


def half_on_the_gpu():
    """The GPU updates five buckets, at 10^10 parameters a second."""
    layer, half = Layer(), BUCKETS // 2
    for bucket in range(BUCKETS):
        layer.backward(bucket)
    layer.norm(range(half, BUCKETS))
    for bucket in range(half, BUCKETS):
        layer.step(bucket)
    for bucket in range(half):
        state = layer.state[bucket]
        reads, writes = [layer.gradients[bucket], state], [state, layer.weights[bucket]]
        layer.builder.kernel("Update", SECOND // 100, reads, writes)
    return layer.build()


def simulated(trace, policy=None, system=SYSTEM, iterations=4):
    workload = Workload((Job(trace, iterations=iterations),))
    return run(workload, system, policy or Offloads(), check=True)


@pytest.mark.parametrize(
    ("trace", "cycles", "buckets"),
    [
        # The last bucket leaves, all steps, the last weights return: all others cross beside that.
        (after_the_last_gradient, SECOND * (1 + 2 + 0.02 + 1 + 0.02), BUCKETS),
        # One bucket's way there, its step, and its way back after the last gradient is ready.
        (bucket_by_bucket, SECOND * (3 + 0.02 + 0.1 + 0.02), BUCKETS),
        # All of it beside the next iteration: max(3, 1 + 0.2 + 0.2).
        (delayed, SECOND * 3, BUCKETS),
        # The GPU's half takes 0.05 beside the CPU's.
        (half_on_the_gpu, SECOND * (3 + 0.02 + 0.5 + 0.02), BUCKETS // 2),
    ],
)
def test_time_and_traffic_of_an_iteration(trace, cycles, buckets):
    for iteration in simulated(trace()).iterations[2:]:
        assert iteration.end - iteration.start == round(cycles)
        assert iteration.traffic == {
            "host_to_gpu_bytes": buckets * HALF,
            "gpu_to_host_bytes": buckets * HALF,
        }
        assert iteration.cpu.busy_cycles == buckets * SECOND // 10


def test_the_wait_for_the_cpu_has_an_owner():
    last = simulated(after_the_last_gradient()).iterations[-1]
    # Until the last step; the weights of the last bucket are then prefetched.
    assert dict(last.stalls) == {
        StallReason.CPU: round(1.02 * SECOND),
        StallReason.LATE_PREFETCH: round(0.02 * SECOND),
    }


def test_a_step_slows_down_with_the_bandwidth_that_it_finds():
    slow = SYSTEM.model_copy(update={"host": SYSTEM.host.model_copy(update={"memory_bandwidth": 10**10})})
    (*_, last) = simulated(after_the_last_gradient(), Ideal(), slow).iterations
    # The norm reads 2 bytes a parameter, all steps 14, and write 14: 3 s at 10 GB/s, and a cycle for the 4
    # bytes that each of the eleven kernels reads or writes of the norm.
    assert last.cpu.busy_cycles == 3 * SECOND + 11
    assert last.end - last.start == 6 * SECOND + 11
