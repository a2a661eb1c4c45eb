"""Properties of every run with kernels on the CPU, whatever the trace, machine, policy and behaviour."""

import random
from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from machines import simulate
from test_properties import PAGE, Restless, cases, pages, relaxed, small_system

from g10sim.config.behaviour import BehaviourSpec
from g10sim.config.host import CpuSpec, KernelAccessSpec
from g10sim.errors import UnsupportedError
from g10sim.policies.designs.ideal import Ideal
from g10sim.policies.interface.policy import Policy
from g10sim.policies.interface.registry import available, create
from g10sim.trace.model import Device
from g10sim.trace.synthetic import chain, random_trace

CHOICES = {
    "recency": ["use", "arrival"],
    "dead_tensors": ["released", "kept"],
    "running_tensors": ["pinned", "evictable"],
}
behaviours = st.builds(BehaviourSpec, **{name: st.sampled_from(values) for name, values in CHOICES.items()})


def offloaded(trace, seed):
    """The trace with some of its kernels on the CPU, but for the first."""
    draw = random.Random(seed)
    share = draw.choice([0.2, 0.3, 0.6])
    kernels = [trace.kernels[0]]
    for kernel in trace.kernels[1:]:
        if draw.random() < share:
            kernel = replace(kernel, device=Device.CPU)
            if draw.random() < 0.3:
                kernel = replace(kernel, duration=0, parameters=draw.randint(1, 10**6))
        kernels.append(kernel)
    return replace(trace, kernels=tuple(kernels))


def with_cpu(system, trace, seed):
    """The machine with a CPU and host memory for everything, sometimes of little bandwidth."""
    everything = sum(map(pages, trace.tensors)) * PAGE
    bandwidth = random.Random(seed).choice([None, 10**9, 14 * 10**9])
    host = system.host.model_copy(update={"memory": 2 * everything, "memory_bandwidth": bandwidth})
    return system.model_copy(update={"cpu": CpuSpec(optimizer_rate="1 G/s"), "host": host})


def check(trace, system, policy, behaviour):
    """Simulate with every invariant tested, and compare with what needs no copies."""
    records = simulate(trace, system, policy, behaviour, iterations=3, record=("timeline",))
    best = simulate(trace, system, Ideal(), behaviour, iterations=3)
    for ours, ideal in zip(records.iterations, best.iterations, strict=True):
        assert ours.end >= ideal.end
        assert ours.end - ours.start >= ours.ideal_cycles == ideal.ideal_cycles
    assert [(one.iteration, one.kernel) for one in records.cpu_kernels] == [
        (iteration, kernel.id) for iteration in range(3) for kernel in trace.cpu_kernels
    ]
    time = 0
    for one in records.cpu_kernels:
        assert one.launch <= one.start
        assert time <= one.start
        kernel = trace.kernels[one.kernel]
        assert one.end - one.start >= trace.cpu_cycles(kernel, system.gpu.clock, system.cpu.optimizer_rate)
        time = one.end
    assert records.jobs[0].end >= time


@relaxed
@given(cases(), behaviours, st.integers(0, 10**6))
def test_every_run_keeps_its_books(case, behaviour, seed):
    given_trace, system, policy = case
    trace = offloaded(given_trace, seed)
    if trace.kernels[0].duration:
        check(trace, with_cpu(system, trace, seed), policy, behaviour)


@pytest.mark.slow
@pytest.mark.parametrize("policy", [*sorted(set(available()) - {"replay"}), Restless])
def test_shipped_designs_serve_kernels_on_the_cpu_or_say_that_they_cannot(policy):
    for seed in range(6):
        trace = offloaded(random_trace(seed, kernels=25) if seed % 3 else chain(6), seed)
        assert trace.cpu_kernels
        everything = sum(map(pages, trace.tensors))
        needed = max(sum(pages(trace.tensors[t]) for t in kernel.tensors) for kernel in trace.kernels)
        system = with_cpu(small_system(max(needed, everything * 6 // 10), 0, everything), trace, seed)
        if policy == "in_place":
            host = system.host.model_copy(update={"kernel_access": KernelAccessSpec()})
            system = system.model_copy(update={"host": host})
        made = policy() if isinstance(policy, type) else create(policy)
        if made.requirements.placement == "contiguous":
            with pytest.raises(UnsupportedError, match=r"copies whole tensors, and kernel \d+ .* on the CPU"):
                check(trace, system, made, BehaviourSpec())
        elif type(made).choose_kernels is not Policy.choose_kernels:  # may be faster than Ideal, or need more
            with suppress(UnsupportedError):
                simulate(trace, system, made, BehaviourSpec(), iterations=3)
        else:
            check(trace, system, made, BehaviourSpec())
