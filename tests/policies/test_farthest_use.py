"""Victims by the farthest next use, while tensors come, go and are used."""

import pytest
from machines import machine, simulate, trace_of

from g10sim.policies.designs.farthest_use import FarthestUse
from g10sim.policies.interface.moves import Evict
from g10sim.policies.interface.policy import Policy, Requirements
from g10sim.trace.synthetic import random_trace


class Compared(Policy):
    """Evicts the farthest idle tensor, and keeps what a look at every tensor would have named."""

    name = "compared"
    requirements = Requirements(placement="contiguous")

    def __init__(self):
        self._farthest = FarthestUse()
        self.victims = []

    def on_out_of_memory(self, view):
        tensors = range(len(view.trace.tensors))
        assert view.whole_tensors == {i for i in tensors if view.is_whole(i)}
        idle = [i for i in view.whole_tensors if not view.is_needed(i)]
        expected = max(idle, key=lambda i: (view.next_use(i), view.size_bytes(i), -i), default=None)
        victim = self._farthest.idle(view)
        assert victim == expected
        self.victims.append(victim)
        return () if victim is None else (Evict(victim),)


def test_the_last_needed_and_of_equal_ones_the_largest_leaves():
    kernels = [(1000, "", "a b c"), (1000, "", "d"), (1000, "a", ""), (1000, "b c", "")]
    policy = Compared()
    simulate(trace_of({"a": 10, "b": 20, "c": 30, "d": 40}, kernels), machine(90, 1000), policy)
    assert policy.victims == [2, 2]  # c in each of two iterations: as far as b, and larger


@pytest.mark.parametrize("seed", range(12))
def test_it_is_what_a_look_at_every_tensor_finds(seed):
    trace = random_trace(seed, kernels=60, largest_tensor_bytes=64 << 10)
    sizes = [-(-tensor.size_bytes // 1000) for tensor in trace.tensors]
    largest = max(sum(sizes[i] for i in kernel.tensors) for kernel in trace.kernels)
    policy = Compared()
    simulate(trace, machine(2 * largest, 10**6), policy, check=True)
    assert policy.victims
