"""The memory of a trace against PyTorch's own tracker and against a plain sum of allocations."""

import warnings
import weakref

import pytest

from g10sim.analysis.footprint import peak_live_bytes
from g10sim.capture import capture_step


@pytest.fixture(params=["language", "conv_net", "attention"])
def build(request, models):
    return {
        "language": lambda: models.language(batch_size=64),
        "conv_net": lambda: models.conv_net(batch_size=256),
        "attention": models.attention(),
    }[request.param]


@pytest.fixture
def measured_step(torch):
    """Run a step twice under a measuring context, which sees the second, on fake tensors."""
    from g10sim.capture.options import StepOptions
    from g10sim.capture.step import fake_device
    from g10sim.capture.workload import Model, Step

    options = StepOptions()

    def measure(build, make_context):
        with fake_device(options):
            step = Step(Model(*build()), options)
            step.run()
            context = make_context(step)
            with context:
                step.run()
        return context

    return measure


def test_the_footprint_agrees_with_pytorchs_memory_tracker(build, measured_step):
    from torch.distributed._tools.mem_tracker import MemTracker

    def tracker(step):
        made = MemTracker()
        values = step.inputs.values() if isinstance(step.inputs, dict) else step.inputs
        made.track_external(step.network, step.optimizer, *values)
        return made

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tracked = measured_step(build, tracker)
    snapshot = next(iter(tracked.get_tracker_snapshot("peak").values()))
    peak = next(amount for kind, amount in snapshot.items() if str(kind) == "Total")
    assert peak_live_bytes(capture_step(build)) == pytest.approx(peak, rel=0.01)


def test_the_footprint_agrees_with_a_plain_sum_of_allocations(torch, build, measured_step):
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    class Allocations(TorchDispatchMode):
        def __init__(self):
            super().__init__()
            self.alive, self.peak = {}, 0

        def note(self, tree):
            for leaf in tree_leaves(tree):
                if isinstance(leaf, torch.Tensor):
                    storage = leaf.untyped_storage()
                    key = storage._cdata
                    if key not in self.alive:
                        self.alive[key] = (
                            storage.nbytes(),
                            weakref.ref(storage, lambda _, k=key: self.alive.pop(k)),
                        )
            self.peak = max(self.peak, sum(size for size, _ in self.alive.values()))

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            result = func(*args, **(kwargs or {}))
            self.note((args, kwargs, result))
            return result

    def counter(step):
        made = Allocations()
        states = [list(state.values()) for state in step.optimizer.state.values()]
        made.note((list(step.network.parameters()), list(step.network.buffers()), states, step.inputs))
        return made

    peak = measured_step(build, counter).peak
    assert peak_live_bytes(capture_step(build)) == pytest.approx(peak, rel=0.01)


def test_the_trace_says_its_footprint_and_what_was_allocated(build):
    trace = capture_step(build)
    assert trace.origin["peak_live_bytes"] == str(peak_live_bytes(trace))
    assert int(trace.origin["allocated_peak_bytes"]) == pytest.approx(peak_live_bytes(trace), rel=0.01)
