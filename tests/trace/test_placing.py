"""Layers on the CPU: closed form of a pass of decoding, and what is refused."""

import pytest

from g10sim.config.system import SystemSpec
from g10sim.errors import TraceError
from g10sim.policies.interface.registry import create
from g10sim.sim.engine import run
from g10sim.trace.batches import on_cpu
from g10sim.trace.model import TensorKind
from g10sim.trace.synthetic import TraceBuilder
from g10sim.trace.workload import Job, Workload

MB, MS = 10**6, 10**6


def layers():
    """Four layers of 100 MB, of which each takes the GPU 1 ms, and a result of 1 MB that is passed on."""
    builder, passed = TraceBuilder("layers"), []
    for number in range(4):
        weight = builder.tensor(f"layers.{number}.weight", 100 * MB, TensorKind.WEIGHT, persistent=True)
        result = builder.tensor(f"result{number}", MB, TensorKind.ACTIVATION)
        builder.kernel("Linear", MS, [weight, *passed], [result], layer=f"model.layers.{number}.mlp")
        passed = [result]
    return builder.build()


def test_layers_on_the_cpu_take_as_long_as_their_bytes_in_host_memory():
    system = SystemSpec(
        name="one link",
        gpu={"memory": "1 GB", "clock": "1 GHz", "page_size": "100 kB", "allocation_rate": "1000 TB/s"},
        host={"memory": "10 GB"},
        ssd=None,
        tiers=["host"],
        cpu={"optimizer_rate": "1 G/s", "memory_bandwidth": "50 GB/s"},
        pcie={"bandwidth": "10 GB/s"},
        page_fault={"latency": "0 s"},
    )
    workload = Workload((Job(on_cpu(layers(), {0, 1}), iterations=3),))
    last = run(workload, system, create("stream"), check=True).iterations[-1]
    # 101 and 102 MB at 50 GB/s, a result that crosses the link, and two kernels on the GPU.
    assert last.end - last.start == pytest.approx(2.02 * MS + 2.04 * MS + 0.1 * MS + 2 * MS, rel=1e-6)
    assert last.traffic == {"host_to_gpu_bytes": MB, "gpu_to_host_bytes": 0}


def test_layers_that_are_stored_once_are_told_apart_by_their_weights():
    builder = TraceBuilder("steps")
    first = builder.tensor("layers.*.weight", MB, TensorKind.WEIGHT, persistent=True)
    result = builder.tensor("result", MB, TensorKind.ACTIVATION)
    builder.kernel("Linear", MS, [first], [result], layer="layers.*.up")
    builder.kernel("Add", MS, [result], [], layer="layers.*")
    builder.repeat(2, 3, since=first, tensors=2)
    last = builder.tensor("head", MB, TensorKind.WEIGHT, persistent=True)
    builder.kernel("Linear", MS, [last], [], layer="lm_head")
    placed = on_cpu(builder.build(), [1], modules=["lm_head"])
    assert [kernel.id for kernel in placed.cpu_kernels] == [2, 3, 6]
    with pytest.raises(TraceError, match=r"found no kernel of module 'head'.*; allowed: .*lm_head"):
        on_cpu(builder.build(), [1], modules=["head"])


def test_layers_that_are_not_there_are_refused():
    with pytest.raises(TraceError, match="found no kernel of layer 4; allowed: 0 to 3"):
        on_cpu(layers(), range(2, 9))
    builder = TraceBuilder("plain")
    builder.kernel("Read", 1, [builder.tensor("w", 1, TensorKind.WEIGHT, persistent=True)], [])
    with pytest.raises(
        TraceError, match="found no kernel of layer 0; allowed: none, as no module has a number"
    ):
        on_cpu(builder.build(), [0])


@pytest.mark.parametrize("part", ["²", "9" * 5000])
def test_a_path_may_have_parts_that_are_no_numbers_of_layers(part):
    builder = TraceBuilder("odd")
    for path in (f"{part}.mlp", "layers.1.mlp"):
        builder.kernel("Read", 1, [], [builder.tensor(path, 1, TensorKind.ACTIVATION)], layer=path)
    assert [kernel.id for kernel in on_cpu(builder.build(), [1]).cpu_kernels] == [1]
