"""Kernels on the CPU: timelines worked out by hand, on the machines of ``machines``."""

from itertools import pairwise

import pytest
from drives import drive
from machines import GPG10, PAGE, iteration_times, kernel_times, machine, simulate

from g10sim.config.behaviour import BehaviourSpec
from g10sim.config.links import NvlinkSpec
from g10sim.config.sharing import ExchangeSpec, SharingSpec
from g10sim.config.system import SystemSpec
from g10sim.errors import CapacityError, ConfigError, UnsupportedError
from g10sim.policies.designs.base_uvm import BaseUvm
from g10sim.policies.designs.ideal import Ideal
from g10sim.policies.interface.moves import Evict, Fetch, Free
from g10sim.policies.interface.policy import Policy, Requirements
from g10sim.records import StallReason
from g10sim.sim.engine import run
from g10sim.trace.model import Device, Phase, TensorKind
from g10sim.trace.synthetic import TraceBuilder
from g10sim.trace.workload import Job, Workload


def system(*args, cpu=None, tiers=None, **changes):
    """A machine with a CPU that updates a parameter a cycle, and no page faults' latency."""
    host = {key: changes.pop(key) for key in ("memory_bandwidth", "sockets") if key in changes}
    plain = machine(*args, **{"fault": "0 s", "flash_latency": "0 s"} | changes).model_dump(mode="json")
    plain["host"] |= host
    plain |= {"tiers": tiers, "cpu": cpu or {"optimizer_rate": "1 G/s"}}
    return SystemSpec(**plain)


def trace_of(tensors, kernels):
    """A trace from {name: pages} ("*": persistent) and (duration, inputs, outputs); "cpu" marks the CPU."""
    builder, ids = TraceBuilder("offloaded"), {}
    for key, pages in tensors.items():
        name, kind = key.rstrip("*"), TensorKind.WEIGHT if "*" in key else TensorKind.ACTIVATION
        ids[name] = builder.tensor(name, pages * PAGE, kind, persistent="*" in key)
    for number, (work, inputs, outputs, *on_cpu) in enumerate(kernels):
        reads, writes = ([ids[name] for name in names.split()] for names in (inputs, outputs))
        options = {"device": Device.CPU} if on_cpu else {}
        if "parameters" in on_cpu:
            work, options["parameters"] = 0, work
        builder.kernel(f"Kernel{number}", work, reads, writes, **options)
    return builder.build()


def cpu_spans(records, iteration=0):
    return [(one.start, one.end) for one in records.cpu_kernels if one.iteration == iteration]


def stalls(records, iteration=0):
    return [dict(kernel.stalls) for kernel in records.kernels if kernel.iteration == iteration]


# The GPU makes g, the CPU turns it into s while the GPU works on something else and then needs s.
BESIDE = trace_of(
    {"g": 4, "s": 2, "x": 1},
    [(10_000, "", "g"), (20_000, "g", "s", "cpu"), (15_000, "", "x"), (1000, "s x", "")],
)


def test_a_kernel_on_the_cpu_runs_beside_one_on_the_gpu():
    records = simulate(BESIDE, system(), BaseUvm(), iterations=1)
    # First touch of g takes 4000. It leaves from 14,000 to 18,000; then the CPU computes.
    assert cpu_spans(records) == [(18_000, 38_000)]
    # x is touched first for 1000, and the GPU computes until 30,000; s comes back for 2000.
    assert kernel_times(records) == [14_000, 0, 16_000, 8000 + 2000 + 1000]
    assert stalls(records)[3] == {StallReason.CPU: 8000, StallReason.FAULT_HOST: 2000}
    (iteration,) = records.iterations
    assert iteration.cpu.busy_cycles == 20_000
    assert (iteration.traffic["gpu_to_host_bytes"], iteration.traffic["host_to_gpu_bytes"]) == (4000, 2000)
    assert (iteration.compute_cycles, iteration.ideal_cycles) == (26_000, 26_000)


def test_ideal_waits_for_the_cpu_and_for_no_copy():
    records = simulate(BESIDE, system(), Ideal(), iterations=1)
    assert cpu_spans(records) == [(10_000, 30_000)]
    assert kernel_times(records) == [10_000, 0, 15_000, 5000 + 1000]
    assert stalls(records)[3] == {StallReason.CPU: 5000}
    assert iteration_times(records) == [31_000]


def test_an_optimizer_step_takes_its_parameters_over_the_rate_of_the_cpu():
    trace = trace_of({"g": 1, "w*": 1}, [(1000, "", "g"), (3001, "g w", "w", "cpu", "parameters")])
    records = simulate(trace, system(cpu={"optimizer_rate": "0.5 G/s"}), Ideal(), iterations=1)
    assert cpu_spans(records) == [(1000, 1000 + 6002)]


def test_kernels_on_the_cpu_run_one_after_another_in_the_order_of_their_launches():
    # b's data are there at once, but a was launched first.
    trace = trace_of(
        {"g": 4, "a": 1, "b*": 1}, [(1000, "", "g"), (500, "g", "a", "cpu"), (700, "b", "b", "cpu")]
    )
    records = simulate(trace, system(tiers=["host"]), BaseUvm(), iterations=1)
    assert cpu_spans(records) == [(9000, 9500), (9500, 10_200)]
    assert iteration_times(records) == [5000]
    assert records.jobs[0].end == 10_200


def test_one_cpu_serves_all_gpus_of_its_socket():
    trace = trace_of({"g": 1, "a": 1}, [(1000, "", "g"), (5000, "g", "a", "cpu")])
    workload = Workload(tuple(Job(trace, gpu=gpu, iterations=1) for gpu in (0, 1)))
    together = run(workload, system(gpus=2), Ideal(), record=("kernels",), check=True)
    assert cpu_spans(together) == [(1000, 6000), (6000, 11_000)]
    sockets = [{"name": "near", "gpus": [0]}, {"name": "far", "gpus": [1]}]
    apart = run(workload, system(gpus=2, sockets=sockets), Ideal(), record=("kernels",), check=True)
    assert cpu_spans(apart) == [(1000, 6000)] * 2


def test_what_is_written_and_not_read_is_not_copied():
    trace = trace_of({"w*": 4}, [(1000, "w", ""), (500, "", "w", "cpu")])
    records = simulate(trace, system(tiers=["host"]), BaseUvm(), iterations=3)
    assert [one.traffic["gpu_to_host_bytes"] for one in records.iterations] == [0, 0, 0]
    # The kernel of the next iteration waits for the CPU, and then for what it wrote.
    assert kernel_times(records, 1)[0] == 500 + 4000 + 1000
    assert stalls(records, 1)[0] == {StallReason.CPU: 500, StallReason.FAULT_HOST: 4000}


def test_data_on_the_ssd_come_to_host_memory_directly():
    trace = trace_of({"m*": 5, "g": 1}, [(1000, "", "g"), (500, "m g", "m", "cpu")])
    records = simulate(trace, system(), BaseUvm(), iterations=2)
    # The SSD reads half a byte per cycle, so that five pages take 10,000; g leaves meanwhile.
    assert cpu_spans(records) == [(12_000, 12_500)]
    assert records.iterations[0].traffic["ssd_to_gpu_bytes"] == 0
    assert [one.cpu.fetched_bytes for one in records.iterations] == [0, 5000]
    # From then on they are in host memory. The launch waits for that of the iteration before.
    assert stalls(records, 1)[0] == {StallReason.CPU: 10_500, StallReason.FIRST_TOUCH: 1000}


def test_copies_and_the_cpu_share_the_bandwidth_of_host_memory():
    trace = trace_of(
        {"m*": 10, "w*": 10, "x": 1}, [(10_000, "m", "", "cpu"), (1000, "w", ""), (30_000, "", "x")]
    )
    alone = system(tiers=["host"], memory_bandwidth="4 GB/s")
    records = simulate(trace, alone, BaseUvm(), iterations=1)
    # 10 kB in 10,000 cycles are a byte per cycle, and w comes in at another one.
    assert cpu_spans(records) == [(0, 10_000)]
    assert kernel_times(records)[1] == 11_000
    narrow = system(tiers=["host"], memory_bandwidth="1 GB/s")
    records = simulate(trace, narrow, BaseUvm(), iterations=1)
    # Half a byte per cycle each: both are done after 20,000.
    assert cpu_spans(records) == [(0, 20_000)]
    assert kernel_times(records)[1] == 21_000
    # Alone with 1.5 GB/s: the copy is no faster than its link, and then the CPU goes at its own speed.
    middle = system(tiers=["host"], memory_bandwidth="1.5 GB/s")
    records = simulate(trace, middle, BaseUvm(), iterations=1)
    # 0.75 each until 10,000 bytes of both have moved.
    assert cpu_spans(records) == [(0, 13_334)]
    assert kernel_times(records)[1] == 13_334 + 1000


def test_the_cpu_takes_what_other_copies_leave_of_host_memory():
    # The CPU wants 2 bytes per cycle of 2.5; the copy takes 1 over its link, for 4000 cycles.
    trace = trace_of({"m*": 10, "w*": 4}, [(5000, "m", "", "cpu"), (1000, "w", "")])
    records = simulate(trace, system(tiers=["host"], memory_bandwidth="2.5 GB/s"), BaseUvm(), iterations=1)
    # 1.5 * 4000, then the other 4000 at 2.
    assert cpu_spans(records) == [(0, 6000)]
    assert kernel_times(records)[1] == 5000


@pytest.mark.parametrize(("own", "cycles"), [(None, 1000), ("2 GB/s", 5000), ("50 GB/s", 1000)])
def test_the_cpu_may_have_a_bandwidth_of_its_own(own, cycles):
    trace = trace_of({"m*": 5, "x": 1}, [(1000, "m", "m", "cpu"), (1, "", "x")])
    cpu = {"optimizer_rate": "1 G/s"} | ({"memory_bandwidth": own} if own else {})
    assert cpu_spans(simulate(trace, system(cpu=cpu), Ideal(), iterations=1)) == [(0, cycles)]


class Asks(Policy):
    """Asks for moves of tensors while a kernel on the CPU uses them."""

    name = "asks"
    requirements = Requirements(addresses="own")

    def __init__(self, *, moves=()):
        self.moves = moves

    def on_kernel_start(self, view):
        return self.moves if view.kernel == 2 else ()


MOVED = trace_of(
    {"g": 2, "w*": 2, "x": 1},
    [(1000, "w", "g"), (5000, "g", "w", "cpu"), (9000, "", "x"), (1000, "w x", "")],
)


def test_a_prefetch_of_what_the_cpu_uses_starts_when_it_has_ended():
    where = system(tiers=["host"])
    slow = simulate(MOVED, where, Asks(), iterations=1)
    # w comes for 2000 while g is touched first, 3000 in all; g leaves, the CPU computes from 5000 to 10,000.
    assert cpu_spans(slow) == [(5000, 10_000)]
    assert kernel_times(slow)[2:] == [10_000, 2000 + 1000]
    fast = simulate(MOVED, where, Asks(moves=(Fetch(0),)), iterations=1)
    assert kernel_times(fast)[2:] == [10_000, 1000]


@pytest.mark.parametrize("moves", [(Evict(0, "host"),), (Free(1),), (Fetch(0), Fetch(1), Free(1))])
def test_moves_of_what_the_cpu_uses_do_no_harm(moves):
    records = simulate(MOVED, system(tiers=["host"]), Asks(moves=moves), iterations=3)
    assert cpu_spans(records) == [(5000, 10_000)]


def test_nothing_is_left_behind_when_the_job_ends():
    records = simulate(BESIDE, system(), BaseUvm(), iterations=3, record=("timeline",))
    assert records.iterations[-1].cpu.busy_cycles == 20_000
    assert len(records.cpu_kernels) == 3


def refused(error, trace, where, policy=None, behaviour=None):
    with pytest.raises(error) as caught:
        simulate(trace, where, policy or BaseUvm(), behaviour, iterations=1)
    return str(caught.value)


def test_what_cannot_serve_a_cpu_is_refused():
    no_cpu = refused(ConfigError, BESIDE, machine())
    assert no_cpu.startswith(
        "system.cpu: found nothing, and kernel 1 (Kernel1) of 'offloaded' runs on the CPU;"
    )
    assert refused(ConfigError, BESIDE, system(tiers=["ssd"])).startswith(
        "system.tiers: found no host, and kernel 1"
    )
    assert refused(ConfigError, BESIDE, system(), None, GPG10).startswith(
        "compat.transfers: found 'batched', and kernel"
    )

    class Copies(Policy):
        name = "copies"
        requirements = Requirements(placement="contiguous")

    assert "'copies' copies whole tensors, and kernel 1" in refused(
        UnsupportedError, BESIDE, system(), Copies()
    )
    early = BehaviourSpec(compute_overlap="while_arriving")
    assert "compat.compute_overlap: found" in refused(ConfigError, BESIDE, system(), None, early)
    small = refused(CapacityError, BESIDE, system(1000, 5))
    assert small.startswith("kernel 1 (Kernel1) of 'offloaded' uses 6 kB on the CPU;")


def test_a_wait_for_host_memory_without_end_is_explained():
    # k fills host memory, and the only kernel that would take it away waits for the CPU.
    trace = trace_of({"k*": 4, "g": 3, "s": 1}, [(1000, "", "g"), (1000, "g", "s", "cpu"), (1000, "k s", "")])
    message = refused(CapacityError, trace, system(1000, 6, tiers=["host"]))
    assert message.startswith("kernel 1 (Kernel1) on the CPU waits indefinitely for 2 kB in host memory")


def replicas(policy, system):
    """Two GPUs make 4 pages of gradients in 10,000 cycles and exchange them; the CPU steps in 500."""
    builder = TraceBuilder("replicas")
    weight = builder.tensor("w", PAGE, TensorKind.WEIGHT, persistent=True)
    gradient = builder.tensor("g", 4 * PAGE, TensorKind.GRADIENT)
    builder.kernel("Backward", 10_000, [weight], [gradient], phase=Phase.BACKWARD)
    builder.kernel("Step", 500, [weight, gradient], [weight], phase=Phase.OPTIMIZER, device=Device.CPU)
    trace = builder.build()
    jobs = tuple(Job(trace, gpu=gpu, iterations=1) for gpu in (0, 1))
    workload = Workload(jobs, exchange=ExchangeSpec(method="ring", bucket="1 B"))
    return run(workload, system, policy, record=("kernels",), check=True)


def test_a_step_of_replicas_waits_for_the_exchange_of_its_gradient():
    records = replicas(Ideal(), system(gpus=2))
    # The GPUs go on; the CPU steps when 4000 bytes have gone around, for one replica after the other.
    assert [one.end - one.start for one in records.iterations] == [10_000] * 2
    assert cpu_spans(records) == [(14_000, 14_500), (14_500, 15_000)]


def test_what_a_step_needs_comes_to_host_memory_during_the_exchange():
    linked = system(gpus=2).model_copy(update={"nvlink": NvlinkSpec(bandwidth="1 GB/s")})
    records = replicas(BaseUvm(), linked)
    launch = records.cpu_kernels[0].launch
    # The exchange takes 4000 cycles over NVLink, weight and gradient 5000 over PCIe.
    assert [start - launch for start, _ in cpu_spans(records)] == [5000, 5500]


@pytest.mark.parametrize("compute", ["time_sliced", "concurrent"])
def test_jobs_that_share_a_gpu_share_the_cpu(compute):
    jobs = tuple(Job(BESIDE, iterations=2, arrival_cycles=3000 * number) for number in range(2))
    workload = Workload(jobs, sharing=SharingSpec(compute=compute, time_slice="1 us"))
    records = run(workload, system(8), BaseUvm(), record=("kernels",), check=True)
    spans = sorted(span for iteration in range(2) for span in cpu_spans(records, iteration))
    assert len(spans) == 4
    assert all(end - start == 20_000 for start, end in spans)
    assert all(one[1] <= other[0] for one, other in pairwise(spans))


def test_data_on_flash_come_to_host_memory_as_fast_as_the_drive_reads():
    trace = trace_of({"m*": 4, "x": 1}, [(500, "m", "m", "cpu"), (1000, "", "x")])
    where = system().model_copy(update={"ssd": drive()})
    records = simulate(trace, where, BaseUvm(), iterations=2)
    # Its interface carries a byte per cycle.
    assert cpu_spans(records) == [(4000, 4500)]
    assert sum(one.flash.read_bytes for one in records.iterations) == 4000


@pytest.mark.parametrize(("rates", "cycles"), [({}, 0), ({"read": "0.1 GB/s", "write": "1 GB/s"}, 40_000)])
def test_data_in_other_memory_come_to_host_memory_too(rates, cycles):
    cxl = {"name": "cxl", "kind": "memory", "capacity": "1 MB", "at": "socket0", **rates}
    trace = trace_of({"m*": 4, "x": 1}, [(500, "m", "m", "cpu"), (1000, "", "x")])
    records = simulate(trace, system(tiers=["host", cxl]), BaseUvm(), iterations=1, record=("timeline",))
    assert cpu_spans(records) == [(cycles, cycles + 500)]


@pytest.mark.parametrize(("at", "cycles"), [(None, 2000), ("left", 4000), ("near", 2000), ("far", 8000)])
def test_a_drive_is_read_over_the_links_above_it(at, cycles):
    # Two bytes per cycle from the drive, one up the link that it hangs on, half a byte between sockets.
    plain = system(gpus=2).model_dump(mode="json")
    up = {"from_device": "1 GB/s", "to_device": "0.1 GB/s"}
    plain["pcie"]["shared"] = [{"name": "left", "gpus": [0], **up}]
    sockets = [{"name": "near", "gpus": [0]}, {"name": "far", "gpus": [1]}]
    plain["host"] |= {"sockets": sockets, "inter_socket_bandwidth": "0.5 GB/s"}
    disk = {"name": "disk", "kind": "ssd", "capacity": "1 GB", "read": "2 GB/s", "write": "1 GB/s"}
    plain["tiers"] = ["host", {**disk, "latency": "0 s", "at": at}]
    trace = trace_of({"m*": 4, "x": 1}, [(500, "m", "m", "cpu"), (1000, "", "x")])
    records = simulate(trace, SystemSpec(**plain), BaseUvm(), iterations=1)
    assert cpu_spans(records) == [(cycles, cycles + 500)]


def test_a_kernel_is_not_launched_again_before_it_has_ended():
    trace = trace_of({"m*": 1, "x": 1}, [(50_000, "m", "m", "cpu"), (1000, "", "x")])
    records = simulate(trace, system(), Ideal(), iterations=3)
    assert iteration_times(records) == [1000, 50_000, 50_000]
    assert [one.cpu.busy_cycles for one in records.iterations] == [1000, 50_000, 50_000]
    assert stalls(records, 2) == [{StallReason.CPU: 49_000}, {}]


class FetchesAhead(BaseUvm):
    def on_kernel_start(self, view):
        return [Fetch(1)] if view.kernel == 1 else []


@pytest.mark.parametrize("record", [(), ("timeline",)])
def test_what_has_moved_beyond_a_run_is_not_counted_for_a_later_one(record):
    """Four pages take 1333 1/3 cycles: g out and w in at once, from 14000 on, and w out from 35,334 on."""
    trace = trace_of(
        {"g": 4, "w*": 4},
        [(10_000, "", "g"), (1000, "g", "", "cpu"), (20_000, "w", ""), (1000, "w", "", "cpu")],
    )
    machine = system(host_pages=500, pcie="3 GB/s")
    records = run(Workload((Job(trace, iterations=1),)), machine, FetchesAhead(), record=record)
    assert records.iterations[0].end == 14_000 + 1334 + 20_000
    assert records.jobs[0].end == 35_334 + 1334 + 1000
