"""FlexGen's cost model: rows of its paper in closed form, and the shares that its search finds."""

import pytest

import g10sim
from g10sim.trace.model import TensorKind
from g10sim.trace.synthetic import TraceBuilder
from tools.block_schedule import (
    Block,
    Placement,
    Rates,
    Room,
    Shares,
    cost,
    needed,
    place,
    search,
)

GIB = 2**30
OPT_30B, OPT_175B = (48, 7168), (96, 12288)
T4 = Room(gpu=15 * GIB, host=208 * 10**9, drive=1500 * 10**9)


def placed(weights, cache, hidden):
    return Placement(Shares(*weights), Shares(*cache), Shares(*hidden))


def below(gpu):
    """Weights on the GPU and in host memory, all else in host memory."""
    return placed((gpu, 1 - gpu), (0, 1), (0, 1))


CACHE_ON_GPU = placed((0, 1), (1, 0), (1, 0))
ON_DRIVE = placed((0, 0.5), (0, 0), (0, 1))


def drive(rate):
    """A drive that reads at so many bytes/second, without a page cache, and writes at 1.3 GB/s."""
    return Rates(drive_to_host=rate, prompt_cache_to_drive=1.3e9, to_drive=1.3e9)


@pytest.mark.parametrize(
    ("model", "prompt", "batches", "placement", "rates", "tokens_per_second"),
    [
        (OPT_30B, 512, (48, 3), below(0.2), Rates(), 7.136),
        (OPT_30B, 512, (48, 3), below(0), Rates(), 6.854),
        (OPT_30B, 512, (48, 1), below(0.2), Rates(), 5.371),
        (OPT_30B, 1024, (20, 4), below(0.04), Rates(), 3.622),
        (OPT_30B, 512, (8, 1), CACHE_ON_GPU, Rates(), 1.707),
        (OPT_30B, 256, (160, 2), below(0.1), Rates(), 12.97),
        (OPT_30B, 512, (1, 1), below(0.2), Rates(), 0.285),
        (OPT_175B, 512, (32, 8), ON_DRIVE, drive(1.6e9), 0.438),
        (OPT_30B, 512, (32, 8), ON_DRIVE, drive(1.6e9), 1.749),
        (OPT_175B, 512, (32, 8), ON_DRIVE, drive(2.8e9), 0.686),
    ],
)
def test_tokens_per_second(model, prompt, batches, placement, rates, tokens_per_second):
    found = cost(Block(*model, prompt, 32, *batches), placement, rates)
    assert found.tokens_per_second == pytest.approx(tokens_per_second, rel=1e-3)


def test_times_of_a_layer_by_hand():
    # Two prompts of 3 tokens that get 2; 24 bytes of weights, 8 of keys and values and 4 of states a token.
    block = Block(layers=1, hidden=1, prompt=3, output=2, gpu_batch=1, batches=2)
    rates = Rates(24, 4, 2, 8, 16, 2, 12, 6, 3, 4, 1)
    found = cost(block, placed((0, 0.5), (0.5, 0.25), (0, 1)), rates)
    prefill, decode = found.prefill, found.decode
    # Weights and 12 bytes of states come; half of the 32 bytes of keys and values of 4 tokens leave.
    assert (prefill.host_to_gpu, prefill.gpu_to_host) == (36 / 24, 16 / 4 + 12 / 2)
    assert (prefill.drive_to_host, prefill.host_to_drive) == (12 / 8, 8 / 16)
    assert (prefill.gpu, prefill.cpu) == (24 * 6 / 12 + 4 * 6 * 3 / 6, 0)
    # Attention reads 32 bytes of keys and values, half of them on the CPU, a quarter from the drive.
    assert (decode.host_to_gpu, decode.gpu_to_host) == (28 / 24, 4 / 2)
    assert (decode.drive_to_host, decode.host_to_drive) == ((12 + 8) / 8, 2 / 2)
    slower = max(0.1, 1 + 0.0168 * 6 * 12 - 0.0328 * 6 - 0.0621 * 12)
    assert (decode.gpu, decode.cpu) == (24 * 2 / 3 + 16 / 4, 16 / slower)
    assert found.seconds == max(found.prefill_sums) + max(found.decode_sums)


def test_the_program_finds_the_published_shares():
    """OPT-30B on a T4, 48 x 3: the paper has 20 % of the weights on the GPU, all else in host memory."""
    found = place(Block(*OPT_30B, 512, 32, 48, 3), Rates(), T4)
    shares = found.placement
    assert shares.weights.gpu == pytest.approx(0.2, abs=0.005)
    assert shares.weights.host == pytest.approx(0.8, abs=0.005)
    assert (shares.cache.gpu, shares.cache.host) == pytest.approx((0, 1), abs=1e-6)
    assert (shares.hidden.gpu, shares.hidden.host) == pytest.approx((0, 1), abs=1e-6)
    assert found.cost.tokens_per_second == pytest.approx(7.136, rel=1e-3)


def test_what_fits_on_the_gpu_lies_there():
    found = place(Block(24, 2048, 64, 8, 1, 1), Rates(), T4)
    assert found.placement.weights.gpu == pytest.approx(1)


def test_the_room_of_what_is_found_is_enough():
    block = Block(*OPT_175B, 512, 32, 32, 8)
    gpu, host, on_drive = needed(block, place(block, Rates(), T4).placement)
    assert max(gpu) <= T4.gpu * (1 + 1e-6)
    assert max(host) <= T4.host * (1 + 1e-6)
    assert on_drive <= T4.drive


def test_without_room_nothing_is_found():
    assert place(Block(*OPT_175B, 512, 32, 1, 1), Rates(), Room(GIB, GIB, GIB)) is None
    assert search(Block(*OPT_175B, 512, 32, 1, 1), Rates(), Room(GIB, GIB, GIB)) is None


def test_of_small_memories_the_search_takes_the_fastest_block():
    """Whatever batches it may choose, none of those tried by hand is faster."""
    room, block = Room(GIB, 4 * GIB, 100 * GIB), Block(4, 4096, 512, 8, 1, 1)
    found = search(block, Rates(), room)
    others = [place(Block(4, 4096, 512, 8, *sizes), Rates(), room) for sizes in ((1, 1), (4, 2), (8, 1))]
    assert found.cost.tokens_per_second >= max(one.cost.tokens_per_second for one in others if one)


def decode_step(block, times):
    """One token of each prompt: weights, keys and values of every layer persist."""
    builder = TraceBuilder("decode", block.size)
    states = [builder.tensor(f"state{i}", block.hidden_bytes, TensorKind.TEMPORARY) for i in range(2)]
    builder.kernel("Embed", 1, [], [states[0]])
    for layer in range(block.layers):
        weights = builder.tensor(f"weights{layer}", block.weight_bytes, TensorKind.WEIGHT, persistent=True)
        size = block.cache_bytes * (block.prompt + block.output)
        cache = builder.tensor(f"cache{layer}", size, TensorKind.BUFFER, persistent=True)
        old, new = states[layer % 2], states[1 - layer % 2]
        builder.kernel("Layer", round(times.computing * 1e9), [old, weights, cache], [new, cache])
    return builder.build()


def test_simulated_weights_stream_as_fast_as_the_model_says():
    """The paper's third baseline, DeepSpeed's placement: nothing but the weights moves, and hides computing.

    The model adds the two, 0.0891 and 0.0038 s a layer.
    """
    block = Block(8, 7168, 512, 32, 8, 1)
    found = cost(block, CACHE_ON_GPU, Rates())
    system = g10sim.system(
        "a100-40g-pcie3-znand",
        gpu={"memory": "4 GiB", "page_size": "2 MiB"},
        host={"memory": "208 GB"},
        tiers=["host"],
        pcie={"bandwidth": f"{Rates().host_to_gpu:.0f} B/s"},
    )
    policy = {"name": "stream", "keep": "1.01 GB", "keeps_copies": True}
    result = g10sim.simulate(decode_step(block, found.decode), system, policy, iterations=4)
    seconds = result.summary["exec_cycles"] / system.gpu.clock
    modelled = block.layers * max(found.decode_sums)
    assert block.layers * found.decode.host_to_gpu * 0.99 <= seconds
    assert seconds == pytest.approx(modelled, rel=0.1)


@pytest.mark.nightly
def test_the_search_is_no_worse_than_the_published_block():
    found = search(Block(*OPT_30B, 512, 32, 1, 1), Rates(), T4)
    assert 7.136 <= found.cost.tokens_per_second <= 1.1 * 7.136
