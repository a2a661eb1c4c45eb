"""Iterations that are reported as steady go on as they are."""

from g10sim.experiment.cells import make_policy
from g10sim.policies.registry import available
from g10sim.sim.engine import run
from g10sim.trace.workload import Job, Workload

# Trial iterations choose among its designs, and how many these are depends on the number of iterations.
CHOOSING = {"g10_paced": {"method": "waiting"}}
NEEDS_A_FILE = {"replay"}
POLICIES = sorted(set(available()) - NEEDS_A_FILE)


def going_on(case, policy):
    """Return the records of a run that ended when it was steady, and of one with eight periods more."""
    words = {"name": policy, **CHOOSING.get(policy, {})}

    def simulated(iterations):
        workload = Workload((Job(case.trace, iterations=iterations),))
        return run(workload, case.system, make_policy(words, 0), case.behaviour).iterations

    ended = simulated("auto")
    return ended, simulated(len(ended) + 8 * (ended[-1].period or 1)) if ended[-1].steady else ()


def what_happens(record):
    return [record.end - record.start, *record.traffic.values()]
