"""Groups of GPUs that are alike and far apart: one of them tells how all fare."""

import dataclasses

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from vdnn_networks import drawn_chain, titan_x

from g10sim.config.sharing import ExchangeSpec, VariationSpec
from g10sim.config.system import SystemSpec
from g10sim.errors import CapacityError, UnsupportedError
from g10sim.policies.interface.policy import Policy, Requirements
from g10sim.policies.interface.registry import create
from g10sim.sim.engine import run
from g10sim.sim.preparation import one_group
from g10sim.trace.workload import Job, Workload

PAIRS = ([0, 1], [2, 3])


def node(*groups, uplink="10 GB/s", own="10 GB/s", gpus=4, **more):
    """GPUs of which each group shares an uplink."""
    plain = titan_x(own, host="1024 GiB").model_dump(mode="json")
    plain["gpu"]["count"] = gpus
    plain["pcie"]["shared"] = [
        {"name": f"uplink {number}", "gpus": list(group), "bandwidth": uplink}
        for number, group in enumerate(groups)
    ]
    for part, values in more.items():
        plain[part] = {**(plain[part] or {}), **values}
    return SystemSpec(**plain)


def chain(*sizes):
    return drawn_chain([("Conv2d", size, 10, 20) for size in sizes])


TRACE = chain(8, 16, 8)


def workload(gpus=4, trace=TRACE, **more):
    return Workload(tuple(Job(trace, gpu=gpu) for gpu in range(gpus)), **more)


def simulated(system, given=None):
    return [job.gpu for job in one_group(given or workload(system.gpu.count), system).jobs]


def test_gpus_belong_together_where_they_fill_a_link():
    assert simulated(node(*PAIRS)) == [0, 1]
    assert simulated(node()) == [0]
    assert simulated(node([0, 1, 2, 3])) == [0, 1, 2, 3]
    assert simulated(node(*PAIRS, uplink="20 GB/s")) == [0]
    assert simulated(node(*PAIRS, uplink="19 GB/s")) == [0, 1]


def test_links_above_others_join_what_fills_them():
    def tree(root):
        plain = node(*PAIRS).model_dump(mode="json")
        plain["pcie"]["shared"].append({"name": "root", "gpus": [0, 1, 2, 3], "bandwidth": root})
        return SystemSpec(**plain)

    assert simulated(tree("20 GB/s")) == [0, 1]
    assert simulated(tree("19 GB/s")) == [0, 1, 2, 3]


def test_memory_of_a_socket_is_read_and_written_at_once():
    sockets = [{"name": "a", "gpus": [0, 1]}, {"name": "b", "gpus": [2, 3]}]
    assert simulated(node(host={"memory_bandwidth": "40 GB/s", "sockets": sockets})) == [0]
    assert simulated(node(host={"memory_bandwidth": "39 GB/s", "sockets": sockets})) == [0, 1]
    assert simulated(node(host={"memory_bandwidth": "79 GB/s"})) == [0, 1, 2, 3]
    assert simulated(node(host={"memory_bandwidth": "80 GB/s"})) == [0]


def test_all_are_simulated_where_groups_or_jobs_differ():
    everyone = [0, 1, 2, 3]
    assert simulated(node([0, 1])) == everyone
    assert simulated(node(*PAIRS), workload(3)) == [0, 1, 2]
    jobs = workload().jobs
    for other in ({"trace": chain(8, 16, 8)}, {"arrival_cycles": 1}, {"iterations": 3}):
        assert (
            simulated(node(*PAIRS), Workload((*jobs[:3], dataclasses.replace(jobs[3], **other)))) == everyone
        )
    assert simulated(node(), Workload((jobs[0], jobs[0]))) == [0, 0]
    assert simulated(node(*PAIRS), workload(variation=VariationSpec(magnitude=0.1))) == everyone


def test_all_are_simulated_where_they_share_more_than_links():
    everyone = [0, 1, 2, 3]
    free = {"pageable_bandwidth": "5 GB/s"}
    assert simulated(node(*PAIRS, host={"pinned": free})) == [0, 1]
    for cost in ({"limit": "1 TiB"}, {"pin_latency": "1 us"}, {"unpin_rate": "1 GB/s"}):
        assert simulated(node(*PAIRS, host={"pinned": free | cost})) == everyone
    rings = node(*PAIRS, nvlink={"bandwidth": "300 GB/s"})
    for method, system, expected in (
        ("ring", node(*PAIRS), everyone),
        ("ring", rings, [0, 1]),
        ("host", rings, everyone),
        ("none", node(*PAIRS), [0, 1]),
    ):
        assert simulated(system, workload(exchange=ExchangeSpec(method=method))) == expected


@settings(max_examples=25, deadline=None)
@example([16, 32, 1, 1, 1], "K2", "deadline", PAIRS, 6, 30, None)
@given(
    st.lists(st.integers(1, 60), min_size=2, max_size=5),
    st.sampled_from(["K1", "K2", "K4"]),
    st.sampled_from(["fair", "first_come", "deadline"]),
    st.sampled_from([((0, 1), (2, 3)), ((0, 2), (1, 3)), ()]),
    st.integers(6, 22),
    st.integers(30, 90),
    st.sampled_from([None, {"pageable_bandwidth": "5 GB/s"}]),
)
def test_every_group_fares_as_the_simulated_one(sizes, step, service, groups, uplink, memory, pinned):
    trace, host = chain(*sizes), {"memory_bandwidth": f"{memory} GB/s", "pinned": pinned}
    system = node(*groups, uplink=f"{uplink} GB/s", host=host)
    policy = {"name": "vdnn_multi", "ladder": step, "headroom": 0.05, "arbitration": service}
    policy |= {"offload": "conv"} if step == "K4" else {}
    all_jobs, few = workload(trace=trace), one_group(workload(trace=trace), system)

    def times(jobs):
        records = run(jobs, system, create(policy))
        return [(jobs.jobs[i.job].gpu, i.iteration, i.start, i.end) for i in records.iterations]

    try:
        expected = times(all_jobs)
    except (UnsupportedError, CapacityError):
        return
    found = times(few)
    assert found == [row for row in expected if row[0] in {job.gpu for job in few.jobs}]
    groups = len(all_jobs.jobs) // len(few.jobs)
    assert sorted(row[1:] for row in found * groups) == sorted(row[1:] for row in expected)


class Curious(Policy):
    """Asks how long it takes."""

    name = "curious"
    requirements = Requirements(placement="contiguous")

    def __init__(self, *, asks_for="vdnn_multi"):
        self.asks_for = asks_for

    def settle(self, obstacle):
        design = {"name": self.asks_for, **({"ladder": "K2"} if self.asks_for == "vdnn_multi" else {})}
        self.cycles = obstacle.cycles(create(design))
        return create(design)


@pytest.mark.parametrize(("plenty", "simulated_jobs"), [(True, 2), (False, 4)])
def test_a_trial_simulates_all_where_host_memory_is_not_plenty(plenty, simulated_jobs):
    records = run(workload(), node(*PAIRS), create({"name": "vdnn_multi", "ladder": "K2"}))
    most = max(record.peaks["peak_host_bytes"] for record in records.iterations)
    curious = Curious()
    memory = most if plenty else most - 512
    run(workload(), node(*PAIRS, host={"memory": f"{memory} B"}), curious)
    assert len(curious.cycles) == simulated_jobs


@pytest.mark.parametrize(("capacity", "simulated_jobs"), [("1 TB", 4), ("0 B", 2)])
def test_a_trial_simulates_all_where_they_use_the_ssd(capacity, simulated_jobs):
    curious = Curious(asks_for="flashneuron")
    run(workload(), node(*PAIRS, gpu={"memory": "3500 KiB"}, ssd={"capacity": capacity}), curious)
    assert len(curious.cycles) == simulated_jobs


def test_what_finds_flash_full_stays_in_host_memory():
    records = run(workload(1), node(gpus=1, gpu={"memory": "3500 KiB"}), create({"name": "flashneuron"}))
    traffic = records.iterations[-1].traffic
    assert traffic["gpu_to_host_bytes"] == traffic["host_to_gpu_bytes"] > 0
    assert traffic["gpu_to_ssd_bytes"] == traffic["ssd_to_gpu_bytes"] == 0
