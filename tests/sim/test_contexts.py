"""GPU memory that contexts of jobs take."""

import pytest
from machines import OWN, machine, trace_of

from g10sim.config.sharing import SharingSpec
from g10sim.errors import CapacityError
from g10sim.policies.designs.base_uvm import BaseUvm
from g10sim.policies.designs.ideal import Ideal
from g10sim.sim.engine import run
from g10sim.trace.workload import Job, Workload

# Two of the three tensors of two pages fit into five pages.
TRACE = trace_of(
    {"a": 2, "b": 2, "c": 2}, [(1000, "", "a"), (1000, "", "b"), (1000, "b", "c"), (1000, "a c", "")]
)


def system(pages, context_bytes):
    found = machine(pages)
    return found.model_copy(update={"gpu": found.gpu.model_copy(update={"context_memory": context_bytes})})


def jobs(count, compute="time_sliced"):
    return Workload(tuple(Job(TRACE) for _ in range(count)), sharing=SharingSpec(compute=compute))


@pytest.mark.parametrize(("workload", "contexts"), [(Workload((Job(TRACE),)), 1), (jobs(3), 3)])
def test_a_context_takes_its_memory_from_tensors(workload, contexts):
    with_contexts = run(workload, system(8 + 2 * contexts, 2000), BaseUvm(), OWN, check=True)
    assert with_contexts == run(workload, machine(8), BaseUvm(), OWN, check=True)
    without = run(workload, machine(8 + 2 * contexts), BaseUvm(), OWN)
    assert (without == with_contexts) == (contexts == 1)


def test_jobs_one_after_another_have_one_context_at_a_time():
    one = run(jobs(3, "exclusive"), system(7, 2000), BaseUvm(), OWN, check=True)
    assert one == run(jobs(3, "exclusive"), machine(5), BaseUvm(), OWN, check=True)


def test_unlimited_memory_has_room_for_every_context():
    assert run(jobs(2), system(8, 3500), Ideal(), OWN) == run(jobs(2), machine(8), Ideal(), OWN)


def test_contexts_that_leave_no_page_are_refused():
    message = "system.gpu.context_memory: found 2 kB, 8 kB for all jobs on a GPU; allowed: less than its 8 kB"
    with pytest.raises(CapacityError, match=message):
        run(jobs(4), system(8, 2000), BaseUvm(), OWN)
