"""Copies of pinned and pageable host memory, in closed form, and weights that a device map places.

Four weights of 1 GB are read by one kernel of 0.01 s each. The link carries 10 GB/s, copies of pageable
memory 2 GB/s. Nothing is fetched ahead, so that an iteration is the sum of its copies and kernels.
"""

import pytest

from g10sim.config.system import SystemSpec
from g10sim.errors import UnsupportedError
from g10sim.policies.designs.stream.stream import Stream
from g10sim.sim.engine import run
from g10sim.trace.model import TensorKind
from g10sim.trace.synthetic import TraceBuilder
from g10sim.trace.workload import Job, Workload

SECOND, GB, KERNEL = 10**9, 10**9, 10**7
PAGEABLE = {"pageable_bandwidth": "2 GB/s"}


def machine(pinned=None, memory=None, host="100 GB", **changes):
    plain = {
        "name": "one link",
        "gpu": {"memory": "10 GB", "clock": "1 GHz", "page_size": "100 kB", "allocation_rate": "1000 TB/s"},
        "host": {"memory": host, "pinned": pinned, "memory_bandwidth": memory},
        "ssd": {
            "capacity": "1 TB",
            "read_bandwidth": "1 GB/s",
            "write_bandwidth": "1 GB/s",
            "latency": "0 s",
        },
        "pcie": {"bandwidth": "10 GB/s"},
        "page_fault": {"latency": "0 s"},
    }
    return SystemSpec(**plain | changes)


def layers():
    builder = TraceBuilder("layers")
    for number in range(4):
        weight = builder.tensor(f"layers.{number}.weight", GB, TensorKind.WEIGHT, persistent=True)
        builder.kernel("Read", KERNEL, [weight], [])
    return builder.build()


def iterations(policy, system):
    return run(Workload((Job(layers(), iterations=3),)), system, policy, check=True).iterations


def streamed(pinned, system, **parameters):
    made = Stream(**{"device_map": {"": "host"}, "overlap": False, "pinned": pinned} | parameters)
    return iterations(made, system)


@pytest.mark.parametrize(
    ("pinned", "spec", "memory", "copies"),
    [
        (True, PAGEABLE, None, 4 / 10),
        (False, PAGEABLE, None, 4 / 2),
        # Two weights find room in what may be pinned, and keep it.
        (True, {**PAGEABLE, "limit": "2 GB"}, None, 2 / 10 + 2 / 2),
        (True, {**PAGEABLE, "limit": "0 B"}, None, 4 / 2),
        # The host copies pageable data once more: it crosses its memory three times.
        (False, PAGEABLE, "3 GB/s", 4 / 1),
        (True, PAGEABLE, "3 GB/s", 4 / 3),
    ],
)
def test_a_stream_takes_its_bytes_over_the_rate(pinned, spec, memory, copies):
    for one in streamed(pinned, machine(spec, memory)):
        assert one.end - one.start == pytest.approx(copies * SECOND + 4 * KERNEL, rel=1e-8)
        assert one.traffic["host_to_gpu_bytes"] == 4 * GB
        assert one.traffic["gpu_to_host_bytes"] == 0


def test_pinning_takes_its_time_when_a_buffer_is_used_first():
    first, second, _ = streamed(True, machine({"limit": "2 GB", "pin_rate": "5 GB/s", "pin_latency": "1 ms"}))
    assert second.end - second.start == pytest.approx(0.4 * SECOND + 4 * KERNEL, rel=1e-8)
    pinning = 2 * (0.2 + 0.001) * SECOND
    assert first.end - first.start - (second.end - second.start) == pytest.approx(pinning, rel=1e-6)


def test_a_device_map_says_what_stays_and_what_lies_where():
    places = {"layers": "gpu", "layers.1": "host", "layers.2.weight": "ssd", "layers.3.w": "ssd"}
    last = streamed(True, machine(), device_map=places)[-1]
    assert last.traffic == {
        "ssd_to_gpu_bytes": GB,
        "gpu_to_ssd_bytes": 0,
        "host_to_gpu_bytes": GB,
        "gpu_to_host_bytes": 0,
    }
    assert last.end - last.start == pytest.approx((0.1 + 1) * SECOND + 4 * KERNEL, rel=1e-8)
    assert last.peaks["peak_host_bytes"] == GB
    with pytest.raises(UnsupportedError, match="the tier 'cxl', which the machine has not"):
        streamed(True, machine(), device_map={"": "cxl"})
    with pytest.raises(ValueError, match="keep: found '1 GB' beside device_map"):
        Stream(device_map={}, keep="1 GB")


def test_copies_that_tiers_keep_are_those_of_weights_that_leave():
    # Two weights stay on the GPU. Host memory has room for the other two, which are read from nowhere else.
    system = machine(host="2 GB")
    last = iterations(Stream(keep="2 GB", keeps_copies=True), system)[-1]
    assert last.traffic["ssd_to_gpu_bytes"] == 0
    assert last.traffic["host_to_gpu_bytes"] == pytest.approx(2 * GB, rel=0.06)
