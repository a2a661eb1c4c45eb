"""LoHan: steps beside the backward pass, and the choice between swaps and recomputation."""

import pytest
from test_zero_infinity import SECOND, layers, machine, seconds

from g10sim.errors import UnsupportedError
from g10sim.policies.designs.lohan import LoHan
from g10sim.sim.engine import run
from g10sim.trace.model import Phase, TensorKind
from g10sim.trace.synthetic import TraceBuilder
from g10sim.trace.transformer import Transformer
from g10sim.trace.workload import Job, Workload

BILLION = 10**9


def records(trace, system, **parameters):
    return run(Workload((Job(trace, iterations=3),)), system, LoHan(**parameters), check=True)


def model(batch):
    """Four layers 2048 wide."""
    return Transformer(4, 2048, sequence=1024, batch=batch, flops_per_second=100e12, bytes_per_second=1e12)


def test_steps_run_beside_the_backward_pass():
    four = layers(4, BILLION, forward=SECOND, backward=SECOND)
    system = machine(link="1000 TB/s", drive="24 GB/s", rate="2 G/s")
    last = records(four, system, pipeline=True).iterations[-1]
    # The first weight comes, and after the last gradient its states: they are updated, and leave with the
    # weight. All other steps are over by then.
    assert seconds(last) == pytest.approx(2 / 24 + 8 + 12 / 24 + 0.5 + 14 / 24, rel=1e-3)
    assert last.cpu.busy_cycles == 2 * SECOND
    assert last.cpu.fetched_bytes == 4 * 12 * BILLION
    assert last.traffic["gpu_to_host_bytes"] == 4 * 2 * BILLION
    assert last.traffic["gpu_to_ssd_bytes"] == 0


def test_reads_updates_and_writes_take_turns():
    four = layers(4, BILLION, forward=SECOND, backward=SECOND)
    last = records(four, machine(link="1000 TB/s", drive="24 GB/s", rate="2 G/s")).iterations[-1]
    # From the first gradient on, in second 5, four times: states come, are updated, and leave with a weight.
    assert seconds(last) == pytest.approx(2 / 24 + 5 + 4 * (12 / 24 + 0.5 + 14 / 24), rel=1e-3)


def test_a_slow_cpu_is_what_counts():
    four = layers(4, BILLION, forward=SECOND, backward=SECOND)
    system = machine(link="1000 TB/s", drive="24 GB/s", rate="0.5 G/s")
    last = records(four, system, pipeline=True).iterations[-1]
    # From the first gradient on, in second 5: its states come, and all steps take 2 s each.
    assert seconds(last) == pytest.approx(2 / 24 + 5 + 12 / 24 + 8 + 14 / 24, rel=1e-3)


@pytest.mark.parametrize(
    ("drive", "swap_ratio", "note", "drops"),
    [
        # All that the forward pass saves: a layer's input (1) and 9 units of 33.6 MB in each of 4 layers.
        (
            "100 GB/s",
            1.0,
            "swaps 1.34 GB of activations, 0 GB of them to the SSD, and computes 0 GB again",
            0,
        ),
        # The inputs of layers are always swapped.
        (
            "100 GB/s",
            0.0,
            "swaps 0.134 GB of activations, 0 GB of them to the SSD, and computes 1.21 GB again",
            4 * 4,
        ),
    ],
)
def test_what_leaves_in_the_forward_pass_is_swapped_and_the_rest_computed_again(
    drive, swap_ratio, note, drops
):
    found = records(model(8).trace(), machine(link="1000 TB/s", drive=drive), swap_ratio=swap_ratio)
    assert found.note == note
    assert found.jobs[0].drops == 3 * drops


FULL = "0.7 GB"
"""Host memory for gradients of four layers 2048 wide, 403 MB, states of one step, 235 MB, and little else."""


def test_what_takes_long_to_compute_again_is_swapped_first():
    trace = model(8).trace()
    half = records(trace, machine(link="1000 TB/s", drive="20 GB/s", host=FULL), swap_ratio=0.5)
    none = records(trace, machine(drive="20 GB/s", host=FULL), swap_ratio=0.0).iterations[-1]
    assert half.iterations[-1].traffic["gpu_to_ssd_bytes"] > none.traffic["gpu_to_ssd_bytes"]
    assert 0 < half.jobs[0].drops < 3 * 16


def test_host_memory_takes_activations_first():
    trace = model(8).trace()
    # Beside gradients and states one unit of 33.6 MB has room, 16 of the 40, or all.
    for host, on_ssd in (("0.7 GB", 1.31), ("1.2 GB", 0.806), ("2 GB", 0)):
        found = records(trace, machine(link="1000 TB/s", drive="100 GB/s", host=host))
        assert f"swaps 1.34 GB of activations, {on_ssd:.3g} GB of them to the SSD" in found.note


def _published(drives, batch, **parameters):
    """Return the seconds of a step of the authors' 13 billion parameters on their machine."""
    wide = Transformer(40, 5120, sequence=1024, batch=batch, flops_per_second=150e12, bytes_per_second=1e12)
    system = machine(gpu="24 GiB", host="768 GB", link="21 GB/s", rate="1.2 G/s")
    rates = {"read_bandwidth": "6.5 GB/s", "write_bandwidth": "3.4 GB/s", "drives": drives}
    system = system.model_copy(update={"ssd": system.ssd.model_validate(system.ssd.model_dump() | rates)})
    return seconds(records(wide.trace(), system, **parameters).iterations[-1])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("drives", "batch", "tflops"),
    [
        (12, 8, 42.8),
        (12, 16, 84.3),
        (12, 32, 143.1),
        (6, 32, 121.7),
        (3, 32, 81.1),
        (2, 32, 64.3),
        (1, 32, 37.5),
        (12, 64, 155.8),
        (3, 64, 136.3),
        (1, 64, 70.3),
    ],
)
def test_steps_take_as_long_as_the_authors_measured(drives, batch, tflops):
    parameters = 12 * 5120**2 * 40
    published = 8 * parameters * 1024 * batch / (tflops * 1e12)
    assert _published(drives, batch, swap_ratio=0.3) == pytest.approx(published, rel=0.07)


def test_three_drives_are_twice_as_fast_as_one():
    assert _published(1, 32) / _published(3, 32) == pytest.approx(81.1 / 37.5, rel=0.05)


def test_more_drives_are_faster_until_the_gpu_is_what_counts():
    wide = Transformer(4, 5120, sequence=1024, batch=32, flops_per_second=160e12, bytes_per_second=1e12)
    trace = wide.trace()
    systems = [machine(link="21 GB/s", drive=f"{5 * drives} GB/s", rate="1 G/s") for drives in (1, 3, 12)]
    times = [seconds(records(trace, system, pipeline=True).iterations[-1]) for system in systems]
    computing = sum(kernel.duration for kernel in trace.kernels if kernel.phase != "optimizer") / SECOND
    assert times[0] > 1.8 * times[1] > 1.8 * times[2] > 1.8 * computing


@pytest.mark.parametrize(
    ("system", "message"),
    [
        (machine(cpu=None), "lets the CPU run the optimizer"),
        (machine(host="20 GB"), "keeps gradients and the states of some steps in the tier 'host'"),
        (
            machine(tiers=["host"]),
            "keeps weights and optimizer states in the tier 'ssd', which the machine has not",
        ),
    ],
)
def test_what_does_not_fit_is_unsupported(system, message):
    with pytest.raises(UnsupportedError, match=message):
        records(layers(4, BILLION, forward=SECOND, backward=SECOND), system)


def test_activations_that_host_memory_has_no_room_for_need_an_ssd():
    made = TraceBuilder("no weights")
    batch, kept, gradient = (made.tensor(name, BILLION, TensorKind.ACTIVATION) for name in "xyg")
    made.kernel("Forward", SECOND, [batch], [kept], phase=Phase.FORWARD)
    made.kernel("Loss", SECOND, [], [gradient], phase=Phase.FORWARD)
    made.kernel("Backward", SECOND, [kept, gradient], [], phase=Phase.BACKWARD)
    trace, message = made.build(), "keeps activations in the tier 'ssd', which the machine has not"
    with pytest.raises(UnsupportedError, match=message):
        records(trace, machine(tiers=["host"], host="0.5 GB"))
    assert "swaps 2 GB of activations, 0 GB of them" in records(trace, machine(tiers=["host"])).note
