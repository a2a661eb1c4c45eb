"""Rules of a trace that a file cannot show, and the order in which problems are told."""

from dataclasses import replace

import pytest

from g10sim.errors import TraceError
from g10sim.trace.check import check_trace, cut_durations, other_gpu, problems
from g10sim.trace.model import Device, FaultProfile, TensorKind
from g10sim.trace.synthetic import TraceBuilder, chain


def changed_kernel(trace, index, **changes):
    kernels = list(trace.kernels)
    kernels[index] = replace(kernels[index], **changes)
    return replace(trace, kernels=tuple(kernels))


def test_good_trace_has_no_problems():
    assert list(problems(chain(3))) == []


def test_no_kernels():
    with pytest.raises(TraceError, match=r"^trace: found no kernels; allowed: at least one$"):
        check_trace(replace(chain(1), kernels=()))


def test_all_durations_zero():
    trace = chain(1, forward_ticks=0, backward_ticks=0, optimizer_ticks=0)
    with pytest.raises(
        TraceError, match=r"^x: found only kernels of duration 0; allowed: at least one that takes"
    ):
        check_trace(trace, "x")


def test_some_durations_zero_are_fine():
    assert list(problems(chain(1, forward_ticks=0))) == []


def test_too_many_bytes_or_seconds():
    many_bytes = chain(1, activation_bytes=2**62)
    assert [str(problem) for problem in problems(many_bytes)] == [
        "found tensors of more than 2^63-1 bytes together; allowed: at most that"
    ]
    long = chain(1, forward_ticks=10**16)
    assert [str(problem) for problem in problems(long)] == [
        "found durations of more than 1000000 seconds together; allowed: at most that"
    ]


def test_every_problem_is_told_with_its_place():
    trace = chain(2)
    tensors = (replace(trace.tensors[0], size_bytes=-4), *trace.tensors[1:])
    trace = changed_kernel(replace(trace, tensors=tensors), 1, outputs=(3, 99))
    found = [(problem.subject, problem.index) for problem in problems(trace)]
    assert found[:2] == [("tensor", 0), ("kernel", 1)]


@pytest.mark.parametrize(
    ("kind", "persistent", "good"),
    [
        (TensorKind.INPUT, False, True),
        (TensorKind.OPTIMIZER_STATE, True, True),
        (TensorKind.ACTIVATION, False, False),
        (TensorKind.WORKSPACE, False, False),
    ],
)
def test_what_may_be_read_before_a_kernel_wrote_it(kind, persistent, good):
    builder = TraceBuilder("reader")
    tensor = builder.tensor("t", 1, kind, persistent=persistent)
    builder.kernel("Read", 1, [tensor], [])
    assert (not list(problems(builder.build()))) == good


def test_update_in_place_does_not_create_its_tensor():
    builder = TraceBuilder("in_place")
    tensor = builder.tensor("t", 1, TensorKind.ACTIVATION)
    builder.kernel("Update", 1, [tensor], [tensor])
    assert [problem.index for problem in problems(builder.build())] == [0]


@pytest.mark.parametrize(
    ("durations", "clock_hz", "share"),
    [
        ([1500, 500], 10**9, ""),  # whole cycles of 1 ns
        ([1500, 500], 10**8, ""),  # of 10 ns
        ([1509, 1509], 10**8, "0.60%"),  # 150.9 cycles become 150
        ([9, 10**6], 10**8, ""),  # a whole kernel is lost, but it is 9 parts of a million
        ([10_009], 10**8, ""),
        ([5], 10**8, "100.00%"),
    ],
)
def test_durations_that_whole_cycles_cut_by_more_than_a_thousandth_are_told(durations, clock_hz, share):
    warning = cut_durations(durations, 10**9, clock_hz)
    assert (
        warning.startswith(f"whole cycles of 100 MHz cut {share} off the durations") if share else not warning
    )


@pytest.mark.parametrize(
    ("origin", "gpu", "told"),
    [
        ({"gpu": "a100-40g"}, "a100-40g", ""),
        ({"gpu": "a100-40g-g10"}, "a100-40g", ""),  # another description of the same GPU
        ({"gpu": "a100-40g"}, "a100-80g", "a100-40g"),
        ({"gpu": "h200"}, "gh200", "h200"),
        ({"gpu": "a100-40g", "device": "NVIDIA A100-SXM4-40GB"}, "a100-40g", ""),  # what was measured counts
        ({"gpu": "a100-40g", "device": "NVIDIA GeForce RTX 4090"}, "rtx-4090", ""),
        ({"gpu": "a100-40g", "device": "NVIDIA H100 PCIe"}, "a100-40g", "NVIDIA H100 PCIe"),
        ({}, "a100-40g", ""),
        ({"gpu": "a100-40g"}, "", ""),
    ],
)
def test_kernel_times_for_another_gpu_are_told(origin, gpu, told):
    assert other_gpu(origin, gpu) == told


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"device": Device.CPU, "duration": 0, "parameters": 3}, ""),
        ({"device": Device.CPU, "duration": 5}, ""),
        ({"device": Device.CPU, "duration": 5, "parameters": 3}, "found parameters 3 and duration 5;"),
        ({"device": Device.CPU, "duration": 0, "parameters": -1}, "found parameters -1;"),
        ({"parameters": 3}, "found parameters 3 on the GPU; allowed: with device cpu"),
        ({"device": Device.CPU, "duration": 5, "fault_profile": FaultProfile(6, 7)}, "found a fault_profile"),
        (
            {"device": Device.LINKS, "duration": 5},
            "found duration, parameters or a fault_profile on the links",
        ),
        ({"device": Device.LINKS, "duration": 0}, "found a kernel on the links that does not either send or"),
    ],
)
def test_what_a_kernel_on_the_cpu_may_say(changes, found):
    builder = TraceBuilder("offloaded")
    builder.kernel("First", 1, [], [])
    builder.kernel("Second", 1, [], [])
    trace = builder.build()
    trace = replace(trace, kernels=(trace.kernels[0], replace(trace.kernels[1], **changes)))
    messages = [problem.message for problem in problems(trace)]
    assert [message.partition(": ")[2].startswith(found) for message in messages] == [True] * bool(found)


def test_something_has_to_take_time_on_the_gpu():
    builder = TraceBuilder("offloaded")
    builder.kernel("Step", 100, [], [], device=Device.CPU)
    (problem,) = problems(builder.build())
    assert str(problem).startswith("found only kernels of duration 0 on the GPU;")
