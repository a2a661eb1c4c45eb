"""Objects at a prompt and in a notebook: a line, or a small table, however large they are."""

from math import isnan

import pytest

import g10sim
from g10sim.config.sharing import SharingSpec
from g10sim.display import Displayed
from g10sim.trace.synthetic import chain, long_chain
from g10sim.trace.workload import Job, Workload

SYSTEM = g10sim.system("a100-40g-pcie3-znand", gpu={"memory": "12 MiB"})


@pytest.mark.parametrize("kernels", [10, 5000])
@pytest.mark.slow
def test_traces_systems_and_results_are_short(kernels):
    trace = long_chain(kernels)
    for shown in (trace, SYSTEM, g10sim.simulate(trace, "a100-40g-pcie3-znand", "ideal")):
        assert str(shown) == repr(shown)
        assert len(repr(shown)) < 500
        assert len(shown._repr_html_()) < 1000


def test_what_they_say():
    trace = chain(12)
    words = "model: chain12, batch size: 1, kernels: 36, computing: 37.2 ms, tensors: 50, footprint: 32.0 MiB"
    assert repr(trace) == f"<Trace {words}>"
    result = g10sim.simulate(trace, SYSTEM, "base_uvm")
    facts, row = result.display(), result.summary
    assert facts["of ideal"] == f"{row['performance']:.1%}"
    assert facts["page faults"] == f"{row['page_faults']:,}"
    assert "link: 12.15 GB/s, tiers: host 128 GiB, ssd 745 GiB" in repr(SYSTEM)
    two_ways = g10sim.system(
        {"preset": "a100-40g-pcie3-znand"},
        pcie={"bandwidth": None, "to_device": "50 GB/s", "from_device": "40 GB/s"},
    )
    assert "link: 50 GB/s in, 40 GB/s out" in repr(two_ways)


def test_a_job_that_was_refused_has_no_metrics():
    sharing = SharingSpec(compute="concurrent", admission="refuse", admission_memory="footprint")
    jobs = Job(chain(12), arrival_cycles=1000), Job(chain(12))
    result = g10sim.simulate(Workload(jobs, sharing=sharing), SYSTEM, "base_uvm")
    assert repr(result) == "<Result trace: chain12, outcome: refused>"
    assert isnan(result.performance)
    assert not any(result.summary.values())


def test_names_of_others_are_shortened_and_harmless_in_notebooks():
    class Named(Displayed):
        def display(self):
            return {"name": "<b>" + "x" * 1000}

    assert len(repr(Named())) < 100
    assert "<b>" not in Named()._repr_html_()
