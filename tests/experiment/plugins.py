"""Policies that misbehave, for tests of what becomes of their cells."""

import os
import signal
import time
from pathlib import Path

from g10sim.errors import UnsupportedError
from g10sim.policies.interface.moves import Evict
from g10sim.policies.interface.policy import Policy


class Killed(Policy):
    """Kills its own process."""

    name = "killed"

    def plan_job(self, job, system, behaviour):
        os.kill(os.getpid(), signal.SIGKILL)


class Leaves(Policy):
    """Ends its own process."""

    name = "leaves"

    def plan_job(self, job, system, behaviour):
        os._exit(7)


class Raises(Policy):
    """Raises during simulation."""

    name = "raises"

    def on_kernel_start(self, view):
        raise KeyError("lost")


class EvictsRunning(Policy):
    """Evicts what the kernel needs that is about to start."""

    name = "evicts_running"

    def on_kernel_start(self, view):
        kernel = view.trace.kernels[view.kernel]
        return [Evict(kernel.inputs[0])] if view.kernel else []


class Unsupported(Policy):
    """Can run nothing."""

    name = "unsupported"

    def plan_job(self, job, system, behaviour):
        raise UnsupportedError("needs a\nbigger machine")


class Broken(Policy):
    """Cannot be made."""

    name = "broken"

    def __init__(self):
        raise KeyError("no luck")


class Seeded(Policy):
    """Takes a seed."""

    name = "seeded"

    def __init__(self, *, seed):
        self.seed = seed


class Slow(Policy):
    """Takes its time, and leaves a line in a file each time it plans: its tag and the parent process.

    With ``gate``, a directory, it takes at least until there is a file ``open`` in it.
    """

    name = "slow"

    def __init__(self, *, seconds=0.0, log=None, tag="", gate=None):
        self.seconds = seconds
        self.gate = gate
        self.log = log
        self.tag = tag

    def plan_job(self, job, system, behaviour):
        if self.log:
            with Path(self.log).open("a") as file:
                file.write(f"planned {self.tag} {os.getppid()}\n")
        time.sleep(self.seconds)
        while self.gate and not Path(self.gate, "open").exists():
            time.sleep(0.02)


class Flaky(Policy):
    """Fails until a file exists."""

    name = "flaky"

    def __init__(self, *, marker):
        self.marker = marker

    def plan_job(self, job, system, behaviour):
        if not Path(self.marker).exists():
            raise RuntimeError("not yet")


class Alternates(Policy):
    """Evicts everything at the end of some iterations, in an order that never repeats."""

    name = "alternates"

    def state(self, view):
        return view.iteration

    def on_kernel_end(self, view):
        trace = view.trace
        if view.iteration.bit_count() % 2 and view.kernel == len(trace.kernels) - 1:
            yield from (Evict(tensor.id) for tensor in trace.tensors if view.resident_bytes(tensor.id))
