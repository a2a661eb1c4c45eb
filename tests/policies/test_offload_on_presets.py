"""Designs that let the CPU run the optimizer have its rates on every machine that comes with g10sim."""

import pytest
from test_zero_infinity import layers

from g10sim.config.presets import load_system, system_names
from g10sim.errors import UnsupportedError
from g10sim.policies.interface.registry import create
from g10sim.sim.engine import run
from g10sim.trace.workload import Job, Workload


@pytest.mark.parametrize("policy", ["zero_offload", "zero_infinity", "lohan", "tencache", "torch_offload"])
@pytest.mark.parametrize("system", system_names())
def test_the_cpu_of_every_preset_runs_optimizers(system, policy):
    machine = load_system(system)
    workload = Workload((Job(layers(2, 10**6, forward=10**6, backward=10**6), iterations=1),))
    if policy == "lohan" and machine.ssd.capacity == 0:
        with pytest.raises(UnsupportedError, match="its capacity, 0 B"):
            run(workload, machine, create(policy), check=True)
        return
    last = run(workload, machine, create(policy), check=True).iterations[-1]
    least = 2 * 10**6 * machine.gpu.clock // machine.cpu.optimizer_rate
    assert last.cpu.busy_cycles >= least
