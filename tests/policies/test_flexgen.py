"""FlexGen's schedule in closed form, shares of data, attention on the CPU, and the order of its ablation."""

import pytest
from test_zero_infinity import PAGE, SECOND, machine

from g10sim.config.system import SystemSpec
from g10sim.errors import UnsupportedError
from g10sim.policies.designs.flexgen import FlexGen
from g10sim.sim.engine import run
from g10sim.trace.batches import block_of
from g10sim.trace.model import Phase, TensorKind
from g10sim.trace.synthetic import TraceBuilder
from g10sim.trace.transformer import Generation
from g10sim.trace.workload import Job, Workload
from tools.block_schedule import Block, Placement, Rates, Shares, cost

GB = 10**9
TENTH = SECOND // 10
CPU = {"optimizer_rate": "1 G/s", "memory_bandwidth": "10 GB/s"}


def step(layers=3, batches=2, *, weight=2 * GB, cache=0):
    """One token of each batch: three kernels a layer, of a tenth of a second each."""
    builder = TraceBuilder("step")
    weights = [
        builder.tensor(f"weight{i}", weight, TensorKind.WEIGHT, persistent=True) for i in range(layers)
    ]
    states = [builder.tensor("input", PAGE, TensorKind.INPUT) for _ in range(batches)]
    for layer, own in enumerate(weights):
        for batch in range(batches):

            def kernel(name, inputs, layer=layer, batch=batch):
                made = builder.tensor(name, PAGE, TensorKind.ACTIVATION)
                where = Phase.FORWARD, f"layers.{layer}"
                builder.kernel(name, TENTH, inputs, [made], *where, micro_batch=batch + 1)
                return made

            query = kernel("query", [states[batch], own])
            past = builder.tensor("past", cache, TensorKind.BUFFER, persistent=True) if cache else None
            result = kernel("attention", [query] if past is None else [query, past])
            states[batch] = kernel("mlp", [result])
    return builder.build()


def last(trace, system, **parameters):
    work = Workload((Job(trace, iterations=3),))
    return run(work, system, FlexGen(**parameters), check=True, record=("kernels",)).iterations[-1]


def system(**changes):
    return SystemSpec(**machine().model_dump(mode="json") | changes)


def seconds(iteration):
    return (iteration.end - iteration.start) / SECOND


@pytest.mark.parametrize(
    ("weight", "overlap", "expected"),
    [
        # Loaded in 0.2 s while the batches of the layer before compute for 0.3 s each.
        (2 * GB, "all", 3 * 0.6),
        # In 0.4 s, as long as the first of them takes and 0.1 s more, for which the second waits.
        (4 * GB, "all", 3 * (0.4 + 0.3)),
        (4 * GB, "batches", 3 * (0.4 + 0.6)),
        (4 * GB, "none", 3 * (0.4 + 0.6)),
    ],
)
def test_weights_come_once_for_all_batches_of_a_layer(weight, overlap, expected):
    found = last(step(weight=weight), machine(), percent=[0, 100, 100, 0, 100, 0], overlap=overlap)
    assert seconds(found) == pytest.approx(expected, rel=1e-3)
    assert found.traffic["host_to_gpu_bytes"] == 3 * weight
    assert found.traffic["gpu_to_host_bytes"] == 0
    layers_at_a_time = 2 if overlap == "all" else 1
    assert found.peak_gpu_bytes == pytest.approx(layers_at_a_time * weight, rel=1e-2)


@pytest.mark.parametrize(
    ("overlap", "expected"), [("all", 6 * 0.3), ("batches", 6 * 0.3), ("none", 6 * (0.3 + 0.2))]
)
def test_keys_and_values_come_for_each_batch(overlap, expected):
    found = last(step(cache=2 * GB), machine(), percent=[100, 0, 0, 100, 100, 0], overlap=overlap)
    assert seconds(found) == pytest.approx(expected, rel=1e-3)
    # They are only read: nothing leaves.
    assert found.traffic["host_to_gpu_bytes"] == 6 * 2 * GB
    assert found.traffic["gpu_to_host_bytes"] == 0


def test_keys_and_values_are_not_pinned():
    pinned = {"memory": "100 GB", "pinned": {"pageable_bandwidth": "2 GB/s"}}
    found = last(step(cache=2 * GB), system(host=pinned), percent=[100, 0, 0, 100, 100, 0])
    assert seconds(found) == pytest.approx(6 * 1.0, rel=1e-3)


@pytest.mark.parametrize(
    ("home", "overlap", "expected"),
    [
        # 2 GB are read in 0.2 s where they lie, instead of 0.1 s on the GPU.
        ([0, 100], "all", 6 * 0.4),
        ([0, 100], "none", 6 * 0.4),
        # From the SSD they come beside the batch before, in 0.2 s from its attention on; or after its own
        # batch's queries.
        ([0, 0], "all", 6 * 0.4),
        ([0, 0], "none", 6 * 0.6),
    ],
)
def test_the_cpu_computes_attention(home, overlap, expected):
    policy = {"percent": [100, 0, *home, 100, 0], "overlap": overlap, "cpu_attention": True}
    found = last(step(cache=2 * GB), system(cpu=CPU), **policy)
    assert seconds(found) == pytest.approx(expected, rel=1e-2)
    # Queries leave, results come; what lies on the SSD is dropped from host memory without a copy.
    assert found.traffic["host_to_gpu_bytes"] == found.traffic["gpu_to_host_bytes"] == 6 * PAGE
    assert found.cpu.fetched_bytes == (0 if home[1] else 6 * 2 * GB)
    assert found.traffic["gpu_to_ssd_bytes"] == 0


def test_shares_are_whole_tensors_spread_over_the_layers():
    half = last(step(layers=6), machine(), percent=[50, 50, 100, 0, 100, 0])
    assert half.traffic["host_to_gpu_bytes"] == 3 * 2 * GB
    # Every layer that stays makes the next one come while this one computes: 2 GB at a time.
    assert half.peak_gpu_bytes == pytest.approx(4 * 2 * GB, rel=1e-2)
    third = last(step(layers=6), machine(), percent=[33.4, 66.6, 100, 0, 100, 0])
    assert third.traffic["host_to_gpu_bytes"] == 4 * 2 * GB


RATES = Rates()
OPT_30B, OPT_175B = 7168, 12288


def generated(hidden, prompt, sizes, layers=3, tokens=3):
    model = Generation(
        layers,
        hidden,
        prompt,
        tokens,
        sizes[0],
        prompt_rate=RATES.prompt_projection,
        prompt_attention_rate=RATES.prompt_attention,
        token_rate=RATES.projection,
        token_attention_rate=RATES.attention,
    )
    return block_of(model.trace(), sizes[1]) if sizes[1] > 1 else model.trace()


def t4(rates, block):
    """A T4 with the rates of the authors' program; what leaves the GPU and what is not pinned: 4.82 GiB/s."""
    slow, cpu = f"{rates.hidden_to_host:.0f} B/s", f"{rates.cpu_attention_of(block):.0f} B/s"
    gpu = {"memory": "15 GiB", "clock": "1 GHz", "page_size": "2 MiB", "allocation_rate": "1000 TB/s"}
    drive = {"read_bandwidth": f"{rates.drive_to_host:.0f} B/s", "write_bandwidth": "1.3 GB/s"}
    return system(
        gpu=gpu,
        host={"memory": "208 GB", "pinned": {"pageable_bandwidth": slow}},
        cpu=CPU | {"memory_bandwidth": cpu},
        pcie={"to_device": f"{rates.host_to_gpu:.0f} B/s", "from_device": slow},
        ssd=drive | {"capacity": "1500 GB", "latency": "0 s"},
    )


def tokens_per_second(hidden, prompt, sizes, percent, rates=RATES, **parameters):
    """By simulation and by the model."""
    trace = generated(hidden, prompt, sizes)
    block = Block(3, hidden, prompt, 3, *sizes)
    pairs = (Shares(*(share / 100 for share in percent[kind : kind + 2])) for kind in (0, 2, 4))
    work = Workload((Job(trace, iterations=2),))
    step = run(work, t4(rates, block), FlexGen(percent=percent, **parameters)).iterations[-1]
    return block.size * block.output / seconds(step), cost(block, Placement(*pairs), rates).tokens_per_second


IN_HOST = [0, 100, 0, 100]


@pytest.mark.parametrize(
    ("hidden", "prompt", "sizes", "percent", "drive"),
    [
        (OPT_30B, 512, (48, 3), [33, 67, *IN_HOST], None),
        (OPT_30B, 512, (48, 1), [0, 100, *IN_HOST], None),
        (OPT_30B, 256, (160, 2), [0, 100, *IN_HOST], None),
        (OPT_175B, 512, (32, 8), [0, 50, 0, 0, 0, 100], 1.6e9),
    ],
)
def test_the_schedule_takes_as_long_as_the_model_says(hidden, prompt, sizes, percent, drive):
    rates = RATES if drive is None else Rates(drive_to_host=drive)
    simulated, modelled = tokens_per_second(
        hidden, prompt, sizes, percent, rates, overlap="batches", cpu_attention=True
    )
    assert simulated == pytest.approx(modelled, rel=0.1)


def test_ablation_in_the_published_order():
    """7.32, 7.26, 5.86, 4.03 and 1.57 tokens/s: with everything, and without one part each (OPT-30B)."""
    sizes, attention = (48, 3), {"cpu_attention": True}
    found = [
        tokens_per_second(OPT_30B, 512, sizes, [33, 67, *IN_HOST], **attention),
        tokens_per_second(OPT_30B, 512, sizes, [0, 100, *IN_HOST], **attention),
        tokens_per_second(OPT_30B, 512, sizes, [33, 67, *IN_HOST], overlap="none", **attention),
        tokens_per_second(OPT_30B, 512, (8, 1), [0, 100, 100, 0, 100, 0]),
    ]
    rates = [simulated for simulated, _ in found]
    assert rates == sorted(rates, reverse=True)


@pytest.mark.parametrize(
    ("system", "parameters", "message"),
    [
        (
            machine(gpu="5 GB"),
            {},
            r"what comes to a layer, on the GPU: 6.0007 GB at kernel 0",
        ),
        (machine(host="3 GB"), {"percent": [0, 100, 100, 0, 100, 0]}, "keeps its shares in the tier 'host'"),
        (machine(cpu=None), {"cpu_attention": True}, "lets the CPU compute attention, .* allowed: with sys"),
        (machine(), {"cpu_attention": True}, "with system.cpu, its memory_bandwidth"),
    ],
)
def test_what_does_not_fit_is_unsupported(system, parameters, message):
    with pytest.raises(UnsupportedError, match=message):
        last(step(), system, **parameters)


@pytest.mark.parametrize(
    ("percent", "message"),
    [
        ([60, 50, 0, 0, 0, 0], "percent: found 110 % of weights on GPU and host; allowed: at most 100 %"),
        ([60, 50], r"percent: found \[60, 50\]; allowed: six numbers from 0 to 100"),
    ],
)
def test_percentages_are_checked(percent, message):
    with pytest.raises(ValueError, match=message):
        FlexGen(percent=percent)
