"""10Cache: what its cache of weights holds, and what prefetches and pinned buffers are worth."""

from dataclasses import replace

import pytest
from test_zero_infinity import PAGE, SECOND, layers, machine, seconds

from g10sim.config.host import HostSpec
from g10sim.errors import PolicyError, UnsupportedError
from g10sim.policies.designs.tencache import TenCache, cached
from g10sim.policies.designs.zero_infinity import ZeroInfinity
from g10sim.policies.interface.policy import Requirements
from g10sim.sim.engine import run
from g10sim.trace.model import TensorKind
from g10sim.trace.synthetic import TraceBuilder
from g10sim.trace.transformer import Transformer
from g10sim.trace.workload import Job, Workload

BILLION = 10**9
FOUR = layers(4, BILLION, forward=SECOND, backward=SECOND)


def pageable(rate="4 GB/s", limit=None, **changes):
    """A link of 10 GB/s, over which memory that is not pinned goes at another rate."""
    system = machine(**changes)
    pinned = {"pageable_bandwidth": rate, "limit": limit}
    return system.model_copy(
        update={"host": HostSpec(memory=f"{system.host.memory} B", pinned=pinned)},
    )


def records(trace, system, policy=TenCache, **parameters):
    return run(Workload((Job(trace, iterations=3),)), system, policy(**parameters), check=True)


def there_and_back(count, capacity, *, looks_ahead):
    """Weights of a byte, read in order and then in reverse: (weight, first kernel there, last), and hits."""
    builder = TraceBuilder("there and back")
    for weight in range(count):
        builder.tensor(f"weight{weight}", 1, TensorKind.WEIGHT, persistent=True)
    for kernel in (*range(count), *reversed(range(count))):
        builder.kernel("Read", 1, [kernel], [])
    trace = builder.build()
    stays, share = cached(trace, range(count), [1] * count, capacity, looks_ahead=looks_ahead)
    return [(stay.tensor, stay.fetched, stay.last) for stay in stays], share * 2 * count


def test_the_cache_slides_along_the_uses():
    # With room for two, each weight makes room for the next one when it has been used. Those used last in the
    # forward pass, 2 and 3, are there for the backward pass.
    stays, hits = there_and_back(4, 2, looks_ahead=True)
    assert stays == [(0, 0, 0), (1, 0, 1), (2, 1, 5), (3, 2, 4), (1, 5, 6), (0, 6, 7)]
    assert hits == 8


def test_without_looking_ahead_what_is_used_last_makes_room_when_it_has_to():
    stays, hits = there_and_back(4, 2, looks_ahead=False)
    assert stays == [(0, 0, 1), (1, 1, 2), (2, 2, 5), (3, 3, 4), (1, 6, 6), (0, 7, 7)]
    assert hits == 2


def test_what_fits_comes_once():
    stays, hits = there_and_back(4, 4, looks_ahead=True)
    assert stays == [(0, 0, 7), (1, 0, 6), (2, 0, 5), (3, 0, 4)]
    assert hits == 8


def test_a_kernel_has_its_weights_even_if_they_do_not_fit():
    stays, hits = there_and_back(2, 0, looks_ahead=True)
    assert stays == [(0, 0, 0), (1, 1, 2), (0, 3, 3)]
    assert hits == 1


@pytest.mark.parametrize(
    ("parameters", "time", "note"),
    [
        # A weight comes in 0.5 s from pageable memory and in 0.2 s from pinned memory, and so do gradients
        # leave: the last one after the passes of 8 s. Without prefetches six weights are waited for, with
        # them the first one.
        ({"prefetch": False, "buffers": "none"}, 8 + 6 * 0.5 + 0.5, "asked ahead for 25.0% of uses; 0 GB"),
        ({"prefetch": False}, 8 + 6 * 0.2 + 0.2, "asked ahead for 25.0% of uses; 16 GB"),
        ({"buffers": "none"}, 8 + 0.5 + 0.5, "asked ahead for 100.0% of uses; 0 GB"),
        ({}, 8 + 0.2 + 0.2, "asked ahead for 100.0% of uses; 16 GB pinned for 8 of 8 tensors"),
    ],
)
def test_ablation_with_a_cache_of_two_weights(parameters, time, note):
    found = records(FOUR, pageable(), cache="4 GB", **parameters)
    last = found.iterations[-1]
    assert seconds(last) == pytest.approx(time, rel=1e-3)
    assert last.traffic["host_to_gpu_bytes"] == pytest.approx(6 * 2 * BILLION, rel=1e-3)
    assert last.traffic["gpu_to_host_bytes"] == 4 * 2 * BILLION
    assert note in found.note


@pytest.mark.parametrize(("gpu", "cache"), [("12 GB", "4 GB"), ("14 GB", "6 GB")])
def test_the_cache_has_what_gradients_leave(gpu, cache):
    """All four weights have gradients of 2 GB, which are there until the last of them is made."""
    assert records(FOUR, machine(gpu=gpu)).note.startswith(f"{cache} of cache")


@pytest.mark.parametrize(("buffers", "pinned"), [("size_classes", 11), ("uniform", 7)])
def test_buffers_of_the_size_of_tensors_pin_more_of_them(buffers, pinned):
    """Weights of 6, 2, 8 and 8 MiB in four layers, and their gradients; 60 MiB may be pinned.

    Two layers, 8 MiB of the third and 2 MiB of the last have buffers of their size; of 8 MiB there are seven.
    """
    model = Transformer(4, 1024, sequence=64, batch=1, flops_per_second=1e12, bytes_per_second=1e12)
    found = records(model.trace(), pageable(limit="60 MiB"), buffers=buffers)
    assert f"pinned for {pinned} of 32 tensors" in found.note


def test_weights_that_the_cpu_does_not_update_stay():
    trace = layers(2, BILLION, forward=SECOND, backward=SECOND)
    kept = [kernel for kernel in trace.kernels if kernel.id != 4]
    renumbered = [one.with_tensors(one.inputs, one.outputs, number) for number, one in enumerate(kept)]
    frozen = replace(trace, kernels=tuple(renumbered))
    last = records(frozen, machine()).iterations[-1]
    assert last.traffic["host_to_gpu_bytes"] == 2 * BILLION + PAGE


def test_what_finds_no_room_in_host_memory_lies_on_the_ssd():
    # 60 GB hold the gradients (8), a step on its way (14), three states (36) and a weight (2).
    last = records(FOUR, machine(host="60.001 GB"), optimizer_buffers=1).iterations[-1]
    assert last.cpu.fetched_bytes == 12 * BILLION
    assert last.traffic["ssd_to_gpu_bytes"] == 3 * 2 * BILLION
    assert last.peaks["peak_host_bytes"] <= 60.001 * BILLION


def test_the_optimizer_runs_as_under_zero_infinity():
    system = machine(rate="1 G/s")
    ahead = {"prefetch_bucket_size": 10**10, "max_live_parameters": 10**10, "max_reuse_distance": 10**10}
    other = records(FOUR, system, ZeroInfinity, **ahead, reduce_bucket_size=50_000_000)
    assert seconds(records(FOUR, system).iterations[-1]) == seconds(other.iterations[-1])


@pytest.mark.parametrize(
    ("system", "message"),
    [
        (machine(cpu=None), "lets the CPU run the optimizer"),
        (machine(gpu="5 GB"), "keeps weights of one kernel and activations on the GPU: 1"),
        (machine(host="63 GB", tiers=["host"]), "keeps what is offloaded in the tier 'host': 64.0001 GB"),
    ],
)
def test_what_does_not_fit_is_unsupported(system, message):
    with pytest.raises(UnsupportedError, match=message):
        records(FOUR, system)


class Unknown(TenCache):
    """Names a tensor that does not exist."""

    name = "unknown"

    def pageable(self, job):
        return [13]


class Nowhere(TenCache):
    """Names a tier that does not exist."""

    name = "nowhere"

    def homes(self, job):
        return {0: "tape"}


class Shared(Nowhere):
    """Has no addresses of its own."""

    requirements = Requirements()

    def choose_kernels(self, trace, system):
        return trace

    def _plan_job(self, trace, machine, system):
        return self.job_class({}, {})


@pytest.mark.parametrize(
    ("design", "message"),
    [
        (Unknown, "pageable names tensor 13; allowed: 0 to 12$"),
        (Nowhere, "homes names the tier 'tape'; allowed: host, ssd"),
        (Shared, "homes names tensors that share addresses; allowed: with requirements.addresses 'own'"),
    ],
)
def test_only_tensors_and_tiers_can_be_named(design, message):
    with pytest.raises(PolicyError, match=message):
        records(FOUR, machine(), design)
