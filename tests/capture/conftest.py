import warnings

import pytest


@pytest.fixture
def torch():
    return pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'g10sim[capture]'")


@pytest.fixture
def models(torch):
    import capture_models

    return capture_models


@pytest.fixture
def measured_step(torch):
    """Run a step twice under a measuring context, which sees the second, on fake tensors."""
    from g10sim.capture.devices import fake_device, known_values
    from g10sim.capture.options import StepOptions
    from g10sim.capture.workload import Model, Step

    def measure(build, options, make_context):
        options = StepOptions(**options)
        with fake_device(options):
            with known_values():
                made = build()
            step = Step(made if isinstance(made, Model) else Model(*made), options)
            step.run()
            context = make_context(step)
            with context:
                step.run()
        return context

    return measure


@pytest.fixture
def tracked_peak(measured_step):
    """Return the most bytes of a step that PyTorch's own memory tracker sees."""

    def tracker(step):
        from torch.distributed._tools.mem_tracker import MemTracker

        made = MemTracker()
        values = list(step.inputs.values() if isinstance(step.inputs, dict) else step.inputs)
        values = [value for value in values if hasattr(value, "untyped_storage")]
        others = [value for value in (step.optimizer, step.model.targets) if value is not None]
        made.track_external(step.network, *others, *values)
        return made

    def measure(build, options):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tracked = measured_step(build, options, tracker)
        snapshot = next(iter(tracked.get_tracker_snapshot("peak").values()))
        return next(amount for kind, amount in snapshot.items() if str(kind) == "Total")

    return measure
