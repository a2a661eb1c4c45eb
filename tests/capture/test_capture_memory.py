"""The memory of a trace against PyTorch's own tracker and against a plain sum of allocations."""

import subprocess
import sys
import weakref

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'g10sim[capture]'")

from g10sim.analysis.footprint import peak_live_bytes
from g10sim.capture import capture_step
from g10sim.capture.source import make_torchvision_importable

pytestmark = pytest.mark.slow

CASES = {
    "language": ("language", {}),
    "language, checkpointed": ("language", {"activation_checkpointing": True}),
    "language, mixed precision": ("language", {"autocast": "bfloat16"}),
    "language, inference": ("language", {"inference": True}),
    "language, sgd": ("language", {"optimizer": "sgd", "dtype": "bfloat16"}),
    "attention": ("attention", {}),
    "perceptron of more weights than activations": ("perceptron", {"optimizer": "adamw"}),
    "conv_net": ("conv_net", {"optimizer": "sgd", "momentum": 0.9}),
    "conv_net, inference": ("conv_net", {"inference": True}),
    "resnet18": ("torchvision:resnet18", {"optimizer": "sgd"}),
    "resnet18, checkpointed": (
        "torchvision:resnet18",
        {"optimizer": "sgd", "activation_checkpointing": True},
    ),
    "resnet18, inference": ("torchvision:resnet18", {"inference": True}),
    "inception_v3": ("torchvision:inception_v3", {"optimizer": "sgd"}),
    "vit": ("timm:vit_tiny_patch16_224", {}),
    "vit, eager": ("timm:vit_tiny_patch16_224", {"attention": "eager"}),
    "bert": ("hf:distilbert-base-uncased", {}),
    "bert, checkpointed": ("hf:distilbert-base-uncased", {"activation_checkpointing": True}),
}


LARGE = ("inception_v3", "vit", "vit, eager", "bert, checkpointed", "resnet18, checkpointed")


@pytest.fixture(
    params=[pytest.param(name, marks=pytest.mark.nightly if name in LARGE else ()) for name in CASES]
)
def case(request, models):
    """Source of a model, and the options of the step."""
    name, options = CASES[request.param]
    prefix, colon, _ = name.partition(":")
    if not colon:
        sizes = {
            "language": {"batch_size": 64},
            "conv_net": {"batch_size": 256},
            "perceptron": {"batch_size": 2},
        }.get(name, {})
        made = getattr(models, name)(**sizes)
        return (made if callable(made) else lambda: getattr(models, name)(**sizes)), options
    from g10sim.capture.options import StepOptions
    from g10sim.capture.source import LIBRARIES, find_source

    library = LIBRARIES[prefix][0]
    make_torchvision_importable()
    pytest.importorskip(library, reason=f"{library} is not installed: pip install 'g10sim[capture]'")
    found = find_source(name, StepOptions(**options), batch_size=16, seq_len=None, image_size=None)
    return found.build, options


def captured_peak(case):
    return peak_live_bytes(capture_step(case[0], **case[1]))


def test_the_footprint_agrees_with_pytorchs_memory_tracker(case, tracked_peak):
    assert captured_peak(case) == pytest.approx(tracked_peak(*case), rel=0.01)


@pytest.mark.nightly
def test_the_footprint_agrees_with_a_plain_sum_of_allocations(torch, case, measured_step):
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
        optimizer = {} if step.optimizer is None else step.optimizer.state
        states = [list(state.values()) for state in optimizer.values()]
        kept = (list(step.network.parameters()), list(step.network.buffers()), states)
        made.note((*kept, step.inputs, step.model.targets))
        return made

    peak = measured_step(*case, counter).peak
    assert captured_peak(case) == pytest.approx(peak, rel=0.01)


def test_the_trace_says_its_footprint_and_what_was_allocated(case):
    trace = capture_step(case[0], **case[1])
    assert trace.origin["peak_live_bytes"] == str(peak_live_bytes(trace))
    assert int(trace.origin["allocated_peak_bytes"]) == pytest.approx(peak_live_bytes(trace), rel=0.01)


def test_what_a_capture_leaves_out_of_searches_for_garbage_is_searched_again():
    """Also where Python itself leaves some objects out from the start, as 3.12 does."""
    script = """
import gc
gc.freeze()
import weakref
from g10sim.capture.devices import without_earlier_objects

class Ring:
    pass

ring = Ring()
ring.itself, known = ring, weakref.ref(ring)
with without_earlier_objects():
    with without_earlier_objects():
        del ring
    gc.collect()
    assert known() is not None
gc.collect()
assert known() is None
"""
    subprocess.run([sys.executable, "-c", script], check=True)
