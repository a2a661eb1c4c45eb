"""A trace may have kernels without tensors, or such as take no time."""

from dataclasses import replace

import pytest

from g10sim.config.presets import load_system
from g10sim.policies.interface.registry import available, create
from g10sim.sim.engine import run
from g10sim.trace.synthetic import chain
from g10sim.trace.workload import Job, Workload

# They read a plan, need memory that kernels access in place, or let the CPU update parameters.
OTHERS = {"replay", "in_place", "lohan", "tencache", "torch_offload", "zero_infinity", "zero_offload"}


DESIGNS = pytest.mark.parametrize("policy", sorted(set(available()) - OTHERS))


@DESIGNS
def test_kernels_take_their_own_time(policy):
    system, trace = load_system("a100-40g-pcie3-znand"), chain(4)
    kernels = tuple(replace(kernel, inputs=(), outputs=(), reads=()) for kernel in trace.kernels)
    bare = replace(trace, tensors=(), kernels=kernels)
    last = run(Workload((Job(bare, iterations=2),)), system, create(policy), check=True).iterations[-1]
    assert last.end - last.start == sum(bare.durations_cycles(system.gpu.clock))


@DESIGNS
@pytest.mark.parametrize("memory", ["40 GiB", "2 GiB"])
def test_kernels_may_take_no_time(policy, memory):
    system, trace = load_system({"preset": "a100-40g-pcie3-znand", "gpu": {"memory": memory}}), chain(4)
    instant = replace(trace, kernels=tuple(replace(kernel, duration=0) for kernel in trace.kernels))
    records = run(Workload((Job(instant, iterations=2),)), system, create(policy), check=True)
    assert [iteration.compute_cycles for iteration in records.iterations] == [0, 0]
