"""Jobs on several GPUs: copies that cross a link share it, whichever of them is new."""

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from machines import machine, trace_of

from g10sim.config.behaviour import BehaviourSpec
from g10sim.config.sharing import SharingSpec
from g10sim.config.system import SystemSpec
from g10sim.errors import CapacityError, UnsupportedError
from g10sim.policies.interface.moves import Evict, Fetch
from g10sim.policies.interface.policy import Policy, Requirements
from g10sim.policies.interface.registry import create
from g10sim.records import MigrationCause
from g10sim.sim.engine import run
from g10sim.trace.synthetic import random_trace
from g10sim.trace.workload import Job, Workload

FAR = {
    "name": "far",
    "capacity": "1 GB",
    "read": "1 GB/s",
    "write": "1 GB/s",
    "latency": "0 ns",
    "at": "gpu1",
}


def system(gpus, pages=100, *, service="fair", shared=(), duplex=None, **more):
    plain = machine(pages, 10**6, gpus=gpus, shared=shared, fault="0 s", duplex=duplex).model_dump(
        mode="json"
    )
    plain["pcie"]["service"] = service
    return SystemSpec(**plain | more)


class FromFar(Policy):
    """The first job's weight lies at the second GPU, whose job sends a tensor to host memory."""

    name = "from_far"
    requirements = Requirements(addresses="own")

    def homes(self, job):
        return {} if job else {0: "far"}

    def on_kernel_start(self, view):
        return [Evict(0, "host")] if view.job and view.kernel == 1 else []


def test_a_copy_waits_for_one_of_another_gpus_job_that_crosses_its_own_link():
    """The eviction begins when its tensor has been mapped and made; demanded pages go first."""
    fetching = trace_of({"w*": 4}, [(14_000, "", ""), (1000, "w", "")])
    evicting = trace_of({"a": 10}, [(1000, "", "a"), (20_000, "", ""), (1000, "a", "")])
    workload = Workload((Job(fetching, iterations=1), Job(evicting, iterations=1, gpu=1)))
    records = run(workload, system(2, tiers=[FAR, "host", "ssd"]), FromFar(), record=("migrations",))
    evicted = [one for one in records.migrations if one.cause is MigrationCause.PLANNED_EVICTION]
    assert [(one.start, one.end) for one in evicted] == [(11_000, 14_000), (18_000, 25_000)]


def test_a_copy_gains_what_another_loses_that_shares_no_link_with_the_cause():
    """Two evictions share host memory; while the fetch has the link of one of them, the other is alone.

    Each moves 2.25 of 10 pages until the fetch begins, one of them 4 more until it ends.
    """
    fetching = trace_of({"w*": 4}, [(14_000, "", ""), (1000, "w", "")])
    evicting = trace_of({"a": 10}, [(1000, "", "a"), (30_000, "", ""), (1000, "a", "")])
    jobs = Job(fetching, iterations=1), *(Job(evicting, iterations=1, gpu=gpu) for gpu in (1, 2))
    host = {"memory": "1 GB", "memory_bandwidth": "1.5 GB/s"}
    tree = system(3, tiers=[FAR, "host", "ssd"], host=host)
    records = run(Workload(jobs), tree, FromFar(), record=("migrations",))
    evicted = [one for one in records.migrations if one.cause is MigrationCause.PLANNED_EVICTION]
    assert [max(one.end for one in evicted if one.job == job) for job in (1, 2)] == [27_000, 23_000]


class Spilled(Policy):
    """A tensor is to leave for a tier that is full until the weight there has come."""

    name = "spilled"
    requirements = Requirements(addresses="own", pins_on_use=True)

    def homes(self, job):
        return {1: "far"}

    def on_kernel_start(self, view):
        return [Evict(0, "far")] if view.kernel == 1 else []


def test_what_leaves_for_another_place_than_before_goes_as_fast_as_it_does_there():
    """Pageable host memory takes a page in 2,000 cycles: seven until the tier has room, which takes 1,000."""
    trace = trace_of({"w*": 4, "a": 10}, [(1000, "", "a"), (10_000, "", ""), (20_000, "w", ""), (1, "a", "")])
    host = {"memory": "1 GB", "pinned": {"limit": "0 B", "pageable_bandwidth": "0.5 GB/s"}}
    tiny = system(1, tiers=[FAR | {"capacity": "4 kB", "at": "gpu0"}, "host", "ssd"], host=host)
    records = run(Workload((Job(trace, iterations=1),)), tiny, Spilled(), record=("migrations",))
    evicted = [one for one in records.migrations if one.cause is MigrationCause.PLANNED_EVICTION]
    found = [(one.target.name, one.size_bytes, one.start, one.end) for one in evicted]
    assert found == [("HOST", 7000, 11_000, 25_000), ("FAR", 3000, 25_000, 28_000)]


MACHINES = {
    "apart": {},
    "pairs": {"shared": [("left", (0, 1), "1.2 GB/s"), ("right", (2, 3), "1.2 GB/s")]},
    "root": {"shared": [("root", (0, 1, 2, 3), "1.5 GB/s")]},
    "far": {"tiers": ["host", FAR, "ssd"]},
    "nvlink": {"tiers": [FAR, "host", "ssd"], "nvlink": {"bandwidth": "2 GB/s"}},
}
POLICIES = ["base_uvm", "g10", "pressure", "vdnn", {"name": "vdnn_multi", "headroom": 0.1}]


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.integers(0, 10**6),
    st.sampled_from(sorted(MACHINES)),
    st.sampled_from(["fair", "first_come", "deadline"]),
    st.sampled_from(POLICIES),
    st.sampled_from([0.4, 0.7]),
)
def test_to_watch_or_to_share_all_links_anew_changes_nothing(seed, kind, service, policy, share):
    traces = [random_trace(seed + gpu, kernels=12, largest_tensor_bytes=1 << 16) for gpu in range(4)]
    pages = max(sum(tensor.size_bytes for tensor in trace.tensors) for trace in traces) * share // 1000
    jobs = (Job(trace, gpu=gpu, arrival_cycles=77 * gpu) for gpu, trace in enumerate(traces))
    workload, found = Workload(tuple(jobs)), []
    # With a limit of both directions together, here what both have, all links are shared anew each time.
    for duplex, record in ((None, ()), (None, ("timeline",)), ("2 GB/s", ("timeline",))):
        node = system(4, int(pages), service=service, duplex=duplex, **MACHINES[kind])
        try:
            found.append(run(workload, node, create(policy), record=record))
        except (CapacityError, UnsupportedError):
            assume(False)
    alone, watched, anew = found
    assert alone.iterations == watched.iterations
    assert watched == anew


ARRIVING = ((616709, 16, 0), (519109, 17, 777), (7396, 25, 777))
"""Seeds and kernels of random traces, and the cycles at which their jobs come."""


@pytest.mark.parametrize(
    ("policy", "jobs", "pages", "host_pages"),
    [("stream", ((432238, 25, 0),), 31_117, 10**6), ("pressure", ARRIVING, 14_566, 3000)],
)
def test_watching_changes_nothing_where_pages_of_a_running_kernel_leave(policy, jobs, pages, host_pages):
    """They fault again, so that others move than foreseen."""
    node = machine(pages, host_pages, fault="0 s" if policy == "stream" else "1 us", group_pages=8)
    workload = Workload(
        tuple(Job(random_trace(seed, kernels=count), arrival_cycles=start) for seed, count, start in jobs),
        sharing=SharingSpec(compute="concurrent"),
    )
    behaviour = BehaviourSpec(running_tensors="evictable", flash_capacity="unlimited", tensor_order="trace")
    found = [run(workload, node, create(policy), behaviour, record=names) for names in ((), ("timeline",))]
    assert found[0].iterations == found[1].iterations


def test_watching_changes_nothing_of_what_gpus_exchange():
    """On each GPU pages leave while others come from two places: in what parts decides who leaves next."""
    node = machine(17_211, 100_000, gpus=2, duplex="1.7 GB/s")
    workload = Workload(tuple(Job(random_trace(38 + gpu, kernels=7), gpu=gpu) for gpu in range(2)))
    found = [run(workload, node, create("pressure"), record=names) for names in ((), ("timeline",))]
    assert found[0].iterations == found[1].iterations


class Exchange(Policy):
    """A tensor leaves while another one takes its room, page by page."""

    name = "exchange"
    requirements = Requirements(addresses="own")

    def on_kernel_start(self, view):
        return [Evict(0, "host"), Fetch(1)] if view.kernel == 1 else []


def test_steps_do_not_grow_with_the_pages_that_two_gpus_exchange():
    def steps(gpus, pages):
        kernels = [(1, "", "a"), (1, "", ""), (1, "", "b"), (1, "b", ""), (1, "a", "")]
        trace = trace_of({"a": pages, "b": pages}, kernels)
        jobs = (Job(trace, iterations=1, gpu=gpu) for gpu in range(gpus))
        return run(Workload(tuple(jobs)), system(gpus, pages + 10), Exchange()).events

    assert steps(2, 50) == steps(2, 500)
