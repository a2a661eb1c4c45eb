"""A trace may have kernels and no tensors: nothing moves, and kernels take their own time."""

from dataclasses import replace

import pytest

from g10sim.config.presets import load_system
from g10sim.policies.interface.registry import available, create
from g10sim.sim.engine import run
from g10sim.trace.synthetic import chain
from g10sim.trace.workload import Job, Workload

# They read a plan, need memory that kernels access in place, or let the CPU update parameters.
OTHERS = {"replay", "in_place", "lohan", "tencache", "torch_offload", "zero_infinity", "zero_offload"}


@pytest.mark.parametrize("policy", sorted(set(available()) - OTHERS))
def test_kernels_take_their_own_time(policy):
    system, trace = load_system("a100-40g-pcie3-znand"), chain(4)
    kernels = tuple(replace(kernel, inputs=(), outputs=(), reads=()) for kernel in trace.kernels)
    bare = replace(trace, tensors=(), kernels=kernels)
    last = run(Workload((Job(bare, iterations=2),)), system, create(policy), check=True).iterations[-1]
    assert last.end - last.start == sum(bare.durations_cycles(system.gpu.clock))
