"""A small trace, written to a file."""

from dataclasses import replace

import pytest
from layerwise import LayerSpec, layerwise_trace

from g10sim.trace.format import save_trace
from g10sim.trace.model import Phase, Tensor, TensorKind

MB = 10**6


@pytest.fixture(scope="package")
def trace_file(tmp_path_factory):
    """A chain of layers whose weights are updated at the end, with a result that no kernel reads."""
    layers = [
        LayerSpec(f"pool{i}", "MaxPool2d", (10 - i) * MB, 300_000, 500_000, reads_output=True)
        if i % 3 == 2
        else LayerSpec(f"conv{i}", "Conv2d", (12 - i) * MB, 700_000, 1_400_000, MB, 2 * MB, 3 * MB, True)
        for i in range(8)
    ]
    layers.append(LayerSpec("fc", "Linear", MB, 400_000, 800_000, weight_bytes=6 * MB))
    trace = layerwise_trace("small", 16, 8 * MB, layers)
    unread = Tensor(len(trace.tensors), "statistics", 5 * MB, TensorKind.ACTIVATION, False)
    kernels = [*trace.kernels]
    kernels[8] = replace(kernels[8], outputs=(*kernels[8].outputs, unread.id))
    kernels.sort(key=lambda kernel: kernel.phase is Phase.OPTIMIZER)
    kernels = [
        replace(kernel, name=f"{kernel.name}_relu") if kernel.id == 1 else kernel for kernel in kernels
    ]
    numbered = tuple(replace(kernel, id=number) for number, kernel in enumerate(kernels))
    path = tmp_path_factory.mktemp("traces") / "small.g10t"
    save_trace(replace(trace, tensors=(*trace.tensors, unread), kernels=numbered), path)
    return str(path)
