"""Records steps of a small model with the installed PyTorch: ``recorded_step.py DIRECTORY``."""

import sys
from itertools import pairwise
from pathlib import Path

import torch
from torch.profiler import ExecutionTraceObserver, ProfilerActivity, profile, record_function, schedule

BATCH = 512
WIDTHS = (64, 256, 128, 10)


def make_step():
    """Return a step of training, which can be called again and again."""
    torch.manual_seed(0)
    layers = [torch.nn.Linear(*pair) for pair in pairwise(WIDTHS)]
    network = torch.nn.Sequential(layers[0], torch.nn.ReLU(), layers[1], torch.nn.ReLU(), layers[2])
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9, foreach=False)
    samples, labels = torch.randn(BATCH, WIDTHS[0]), torch.randint(0, WIDTHS[-1], (BATCH,))

    def step():
        loss = torch.nn.functional.cross_entropy(network(samples), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def main(directory):
    step = make_step()
    step()
    observer = ExecutionTraceObserver()
    observer.register_callback(str(directory / "execution.json"))
    options = {"activities": [ProfilerActivity.CPU], "record_shapes": True, "profile_memory": True}
    with profile(**options, execution_trace_observer=observer) as recorded, record_function("ProfilerStep#7"):
        step()
    recorded.export_chrome_trace(str(directory / "profile.json"))
    several = schedule(wait=0, warmup=1, active=2, repeat=1)
    with profile(
        **options,
        schedule=several,
        on_trace_ready=lambda found: found.export_chrome_trace(str(directory / "steps.json.gz")),
    ) as recorded:
        for _ in range(3):
            step()
            recorded.step()
    with profile(activities=[ProfilerActivity.CPU]) as recorded:
        step()
    recorded.export_chrome_trace(str(directory / "no_shapes.json"))
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as recorded:
        step()
    recorded.export_chrome_trace(str(directory / "no_memory.json"))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
