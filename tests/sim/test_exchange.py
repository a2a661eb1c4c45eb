"""Data-parallel replicas that exchange gradients, on links of several kinds."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from machines import GPG10, PAGE, machine

from g10sim.analysis.gradients import Bucket, gradient_buckets
from g10sim.config.sharing import ExchangeSpec, VariationSpec
from g10sim.config.system import SystemSpec
from g10sim.errors import ConfigError
from g10sim.policies.designs.base_uvm import BaseUvm
from g10sim.policies.designs.ideal import Ideal
from g10sim.records import StallReason
from g10sim.sim.engine import run
from g10sim.trace.model import Phase, TensorKind
from g10sim.trace.synthetic import TraceBuilder
from g10sim.trace.workload import Job, Workload


def training(gradients=(4,), backward=10_000, optimizer=1000):
    """A backward kernel for every gradient (sizes in pages), then an optimizer kernel for every one."""
    builder = TraceBuilder("training")
    weights, grads = [], []
    for number, pages in enumerate(gradients):
        weights.append(builder.tensor(f"w{number}", PAGE, TensorKind.WEIGHT, persistent=True))
        grads.append(builder.tensor(f"g{number}", pages * PAGE, TensorKind.GRADIENT))
    for weight, grad in zip(weights, grads, strict=True):
        builder.kernel(f"Backward{weight}", backward, [weight], [grad], phase=Phase.BACKWARD)
    for weight, grad in zip(weights, grads, strict=True):
        builder.kernel(f"Update{weight}", optimizer, [weight, grad], [weight], phase=Phase.OPTIMIZER)
    return builder.build()


def system(gpus, **changes):
    """A machine whose links carry a byte per cycle, with further keys of ``host``, ``pcie``, ``nvlink``."""
    plain = machine(gpus=gpus).model_dump(mode="json")
    for key, value in changes.items():
        plain[key] = {**(plain.get(key) or {}), **value}
    return SystemSpec(**plain)


def replicate(trace, number, where=None, policy=None, *, exchange="ring", bucket="1 B", **options):
    iterations = options.pop("iterations", 1)
    jobs = tuple(Job(trace, gpu=gpu, iterations=iterations) for gpu in range(number))
    spec = ExchangeSpec(method=exchange, bucket=bucket)
    workload = Workload(jobs, options.pop("variation", None), exchange=spec)
    return run(workload, where or system(number), policy or Ideal(), check=True, **options)


def times(records):
    return [iteration.end - iteration.start for iteration in records.iterations]


def test_buckets_hold_gradients_in_order_of_completion():
    trace = training((4, 2, 3))
    assert gradient_buckets(trace, 1) == (
        Bucket(4 * PAGE, 0, frozenset({3})),
        Bucket(2 * PAGE, 1, frozenset({4})),
        Bucket(3 * PAGE, 2, frozenset({5})),
    )
    assert gradient_buckets(trace, 5 * PAGE) == (
        Bucket(6 * PAGE, 1, frozenset({3, 4})),
        Bucket(3 * PAGE, 2, frozenset({5})),
    )
    assert gradient_buckets(trace, 10**9) == (Bucket(9 * PAGE, 2, frozenset({3, 4, 5})),)


def test_an_optimizer_that_does_not_wait_for_the_backward_pass_gets_smaller_buckets():
    builder = TraceBuilder("interleaved")
    for number in range(2):
        weight = builder.tensor(f"w{number}", PAGE, TensorKind.WEIGHT, persistent=True)
        grad = builder.tensor(f"g{number}", 4 * PAGE, TensorKind.GRADIENT)
        builder.kernel(f"Backward{number}", 10_000, [weight], [grad], phase=Phase.BACKWARD)
        builder.kernel(f"Update{number}", 1000, [weight, grad], [weight], phase=Phase.OPTIMIZER)
    trace = builder.build()
    assert [bucket.ready for bucket in gradient_buckets(trace, 10**9)] == [0, 2]
    assert times(replicate(trace, 2, bucket="1 GB")) == [2 * (10_000 + 4000 + 1000)] * 2


@pytest.mark.parametrize(("gpus", "share"), [(2, 1), (4, 1.5)])
def test_a_ring_sends_twice_the_gradients_less_the_own_part(gpus, share):
    # 10,000 cycles of backward; then 2 (N - 1) / N of 4000 bytes at a byte per cycle; then the optimizer.
    expected = 10_000 + int(share * 4000) + 1000
    assert times(replicate(training(), gpus)) == [expected] * gpus


def test_waiting_for_the_exchange_is_a_barrier():
    records = replicate(training(), 2)
    assert [dict(i.stalls) for i in records.iterations] == [{StallReason.BARRIER: 4000}] * 2


def test_the_exchange_overlaps_the_backward_pass():
    # The first bucket (4000) hides behind the second kernel; the second behind the first update, in part.
    assert times(replicate(training((4, 4)), 2)) == [2 * 10_000 + 4000 + 1000] * 2
    # Together they wait for both kernels.
    together = replicate(training((4, 4)), 2, bucket="8 kB")
    assert times(together) == [2 * 10_000 + 8000 + 2 * 1000] * 2


def test_by_way_of_the_host_gradients_go_up_and_sums_come_down():
    assert times(replicate(training(), 2, exchange="host")) == [10_000 + 4000 + 4000 + 1000] * 2


def test_gradients_go_up_as_fast_as_links_carry_away_from_the_gpus():
    slow_up = {"bandwidth": None, "to_device": "1 GB/s", "from_device": "0.5 GB/s"}
    replicas = replicate(training(), 2, system(2, pcie=slow_up), exchange="host")
    assert times(replicas) == [10_000 + 8000 + 4000 + 1000] * 2


def test_the_hosts_memory_is_read_and_written_by_all():
    where = system(2, host={"memory_bandwidth": "1 GB/s"})
    assert times(replicate(training(), 2, where, exchange="host")) == [10_000 + 8000 + 8000 + 1000] * 2
    sockets = [{"name": "left", "gpus": [0]}, {"name": "right", "gpus": [1]}]
    apart = system(2, host={"memory_bandwidth": "1 GB/s", "sockets": sockets})
    assert times(replicate(training(), 2, apart, exchange="host")) == [10_000 + 4000 + 4000 + 1000] * 2


def test_no_exchange_means_no_waiting():
    assert times(replicate(training(), 2, exchange="none")) == [11_000] * 2


def test_one_replica_is_the_single_gpu():
    trace = training((4, 2))
    alone = run(Workload((Job(trace),)), machine(6, 100), BaseUvm(), check=True)
    assert replicate(trace, 1, machine(6, 100), BaseUvm(), iterations=2) == alone


def test_the_slowest_replica_decides():
    variation = VariationSpec(magnitude=0.5)
    records = replicate(training(), 4, variation=variation)
    ends = {i.job: i.end for i in records.iterations}
    own = {i.job: i.ideal_cycles for i in records.iterations}
    backward = {i.job: i.end - dict(i.stalls).get(StallReason.BARRIER, 0) for i in records.iterations}
    assert len(set(own.values())) == 4
    assert backward == own
    waits = {i.job: dict(i.stalls).get(StallReason.BARRIER, 0) for i in records.iterations}
    assert min(waits.values()) == 6000
    assert max(ends.values()) >= max(own.values()) + 6000


PATHS = {
    "own links": ({}, 4000),
    "nvlink": ({"nvlink": {"bandwidth": "4 GB/s"}}, 1000),
    "common switch": ({"pcie": {"shared": [{"name": "up", "gpus": [0, 1], "bandwidth": "0.1 GB/s"}]}}, 4000),
    "two switches": (
        {
            "pcie": {
                "shared": [
                    {"name": "one", "gpus": [0], "bandwidth": "0.5 GB/s"},
                    {"name": "two", "gpus": [1], "bandwidth": "0.5 GB/s"},
                ]
            }
        },
        8000,
    ),
    "two sockets": (
        {
            "host": {
                "sockets": [{"name": "one", "gpus": [0]}, {"name": "two", "gpus": [1]}],
                "inter_socket_bandwidth": "0.25 GB/s",
            }
        },
        16_000,
    ),
}


@pytest.mark.parametrize(("changes", "cycles"), PATHS.values(), ids=PATHS.keys())
def test_peers_talk_over_what_lies_between_them(changes, cycles):
    assert times(replicate(training(), 2, system(2, **changes))) == [10_000 + cycles + 1000] * 2


def reader(pages):
    builder = TraceBuilder("reader")
    weight = builder.tensor("w", pages * PAGE, TensorKind.WEIGHT, persistent=True)
    builder.kernel("Read", 1000, [weight], [])
    return builder.build()


@pytest.mark.parametrize(("service", "ends"), [("fair", (20, 20)), ("first_come", (10, 20))])
def test_links_serve_transfers_at_once_or_one_after_another(service, ends):
    where = SystemSpec(
        **{
            **machine(
                gpus=2, read="10 GB/s", fault="0 us", flash_latency="0 us", shared=[("up", (0, 1), "1 GB/s")]
            ).model_dump(mode="json"),
        }
        | {
            "pcie": {
                "bandwidth": "1 GB/s",
                "shared": [{"name": "up", "gpus": [0, 1], "bandwidth": "1 GB/s"}],
                "service": service,
            }
        }
    )
    jobs = tuple(Job(reader(10), gpu=gpu, iterations=1) for gpu in (0, 1))
    records = run(Workload(jobs), where, BaseUvm(), check=True)
    assert [i.end for i in records.iterations] == [cycles * 1000 + 1000 for cycles in ends]


def test_replicas_that_are_not_alike_are_refused():
    spec = ExchangeSpec()
    other = Workload((Job(training()), Job(training(), gpu=1)), exchange=spec)
    with pytest.raises(ConfigError, match=r"^workload\.replicas: found replicas that are not alike"):
        run(other, machine(gpus=2), Ideal())
    trace = training()
    same = Workload((Job(trace), Job(trace)), exchange=spec)
    with pytest.raises(ConfigError, match="each replica on a GPU of its own"):
        run(same, machine(gpus=2), Ideal())
    with pytest.raises(ConfigError, match="batched"):
        run(Workload((Job(trace),), exchange=spec), machine(), Ideal(), GPG10)


sizes = st.lists(st.integers(1, 8), min_size=1, max_size=5)


@settings(max_examples=60, deadline=None)
@given(
    sizes,
    st.integers(1, 4),
    st.sampled_from(["ring", "host"]),
    st.sampled_from(["fair", "first_come", "deadline"]),
    st.integers(1, 20_000),
    st.integers(12, 60),
)
def test_no_iteration_beats_the_bytes_on_any_link(gradients, gpus, method, service, bucket, gpu_pages):
    trace = training(gradients)
    plain = machine(gpu_pages, gpus=gpus).model_dump(mode="json")
    plain["pcie"]["service"] = service
    where = SystemSpec(**plain)
    records = replicate(trace, gpus, where, BaseUvm(), exchange=method, bucket=f"{bucket} B", iterations=2)
    assert len(records.iterations) == 2 * gpus
    total = sum(gradients) * PAGE if gpus > 1 else 0
    sent = total * 2 * (gpus - 1) / gpus if method == "ring" else total
    start, end = min(i.start for i in records.iterations), max(i.end for i in records.iterations)
    assert end - start >= 2 * max(sum(gradients) and records.iterations[0].ideal_cycles, sent)
    assert records == replicate(
        trace, gpus, where, BaseUvm(), exchange=method, bucket=f"{bucket} B", iterations=2
    )
