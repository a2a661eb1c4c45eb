import math
from dataclasses import replace
from fractions import Fraction

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from g10sim.analysis.efficiency import Conditions, PeakRate
from g10sim.analysis.gpus import GpuTimingSpec, gpu_names, load_gpu
from g10sim.config.data import data_path
from g10sim.errors import ConfigError
from g10sim.trace.model import Phase
from g10sim.trace.work import KernelCost, NumberFormat, OperatorClass


@pytest.mark.slow
def test_each_bundled_gpu_names_itself_and_a_source_for_every_number():
    assert {"a100-40g", "a100-80g", "h100", "h200", "v100", "rtx-4090"} <= set(gpu_names())
    for name in gpu_names():
        gpu = load_gpu(name)
        assert gpu.name == name
        assert all(gpu.sources.values())
        assert gpu.numbers() - set(gpu.sources) <= {"host_issue", "sustained"}
        assert set(gpu.sources) <= gpu.numbers()
        assert {"memory", "peak.float32", "bandwidth_efficiency.copy"} <= gpu.numbers()


@pytest.mark.parametrize(
    ("name", "memory_gib", "bandwidth_gbs", "float32_tflops", "float16_tflops"),
    [
        ("a100-40g", 40, 1555, 19.5, 312),
        ("a100-80g", 80, 2039, 19.5, 312),
        ("h100", 80, 3352, 66.9, 989.4),
        ("h200", 141, 4800, 67, 989.5),
        ("v100", 32, 900, 15.7, 125),
        ("rtx-4090", 24, 1008, 82.6, 165.2),
        ("b200", 180, 8000, 80, 2250),
        ("gb200", 186, 8000, 90, 2500),
        ("mi300x", 192, 5300, 163.4, 1307.4),
        ("rtx-5090", 32, 1792, 104.8, 236),  # in 16 bits what cards reach: they run above the stated clock
        ("l40s", 48, 864, 91.6, 362.05),
        ("a6000", 48, 768, 38.7, 154.8),
    ],
)
def test_the_rates_are_the_vendors(name, memory_gib, bandwidth_gbs, float32_tflops, float16_tflops):
    gpu = load_gpu(name)
    assert gpu.memory == memory_gib * 2**30
    assert gpu.memory_bandwidth == bandwidth_gbs * 10**9
    assert gpu.peak[NumberFormat.FLOAT32] == pytest.approx(float32_tflops * 1e12)
    assert gpu.peak[NumberFormat.FLOAT16] == pytest.approx(float16_tflops * 1e12)


@pytest.mark.parametrize(
    ("name", "float8_tflops", "int8_tops"),
    [
        ("a100-40g", None, 624),
        ("h100", 1978.9, 1978.9),
        ("h200", 1979, 1979),
        ("b200", 4500, 4500),
        ("gb200", 5000, 5000),
        ("mi300x", 2614.8, 2614.8),
        ("rtx-4090", 330.3, 660.6),
        ("rtx-5090", 419, 838),
        ("l40s", 733, 733),
        ("a6000", None, 309.7),
        ("v100", None, None),
    ],
)
def test_the_rates_of_eight_bits_are_the_vendors_and_older_gpus_have_none(name, float8_tflops, int8_tops):
    peak = load_gpu(name).peak
    found = [peak.get(number_format) for number_format in (NumberFormat.FLOAT8, NumberFormat.INT8)]
    wanted = (float8_tflops, int8_tops)
    assert found == [None if rate is None else pytest.approx(rate * 1e12) for rate in wanted]


@pytest.mark.slow
def test_narrower_formats_are_never_slower():
    order = (NumberFormat.FLOAT64, NumberFormat.FLOAT32, NumberFormat.FLOAT16, NumberFormat.INT8)
    for name in gpu_names():
        rates = [load_gpu(name).peak[wanted] for wanted in order if wanted in load_gpu(name).peak]
        assert rates == sorted(rates), name


def test_a_computing_kernel_takes_its_flops_at_the_share_of_the_peak_it_reaches():
    gpu = load_gpu("a100-40g-2023")
    flops = 2 * 4096**3
    expected = flops / (0.6 * 19.5e12) * 1e9 + 9200
    assert gpu.duration_ns(KernelCost("mm", OperatorClass.MATMUL, flops=flops)) == math.ceil(expected)


def test_a_moving_kernel_takes_its_bytes_at_the_share_of_the_bandwidth_it_reaches():
    gpu = load_gpu("a100-40g-2023")
    expected = 3 * 2**30 / (0.67 * 1555e9) * 1e9 + 9200
    assert gpu.duration_ns(KernelCost("add", OperatorClass.ELEMENTWISE, moved_bytes=3 * 2**30)) == math.ceil(
        expected
    )


GPUS = {name: load_gpu(name) for name in gpu_names()}
OPERATORS = sorted(
    {name for gpu in GPUS.values() for one in gpu.operators.values() for name in one.operators or ()}
)
WINOGRAD = 9
"""Positions of the kernel of a convolution that a fast algorithm needs 2.25 times fewer products for."""


def least_seconds(gpu, cost):
    """The time of a kernel's work at the peak rates of the datasheet."""
    number_format = cost.number_format if cost.number_format in gpu.peak else NumberFormat.FLOAT32
    is_fast = cost.operator_class is OperatorClass.CONVOLUTION and cost.window == WINOGRAD
    is_fast = is_fast and number_format is NumberFormat.FLOAT32
    computing = Fraction(cost.flops, gpu.peak[number_format]) / (Fraction(9, 4) if is_fast else 1)
    return max(computing, Fraction(cost.moved_bytes, gpu.memory_bandwidth))


SIZES_OF_CONVOLUTIONS = {
    "groups": st.sampled_from([1, 4, 64]),
    "window": st.sampled_from([1, 9, 49]),
    "stride": st.sampled_from([1, 2]),
    "channels": st.sampled_from([3, 64]),
    "channels_first": st.sampled_from([0, 1]),
}


@given(
    gpu=st.sampled_from(sorted(GPUS)).map(GPUS.get),
    cost=st.builds(
        KernelCost,
        operator=st.sampled_from([*OPERATORS, "any"]),
        operator_class=st.sampled_from(OperatorClass),
        number_format=st.sampled_from([NumberFormat.FLOAT32, NumberFormat.TF32, NumberFormat.FLOAT16]),
        phase=st.sampled_from(Phase),
        layer_type=st.sampled_from(["", "AdaptiveAvgPool2d"]),
        flops=st.integers(0, 10**15),
        moved_bytes=st.integers(0, 10**12),
        weight_bytes=st.integers(0, 10**10),
        keys=st.integers(0, 10**6),
        head=st.sampled_from([64, 128]),
        causal=st.sampled_from([0, 1]),
        masked=st.sampled_from([0, 1]),
        dropout=st.sampled_from([0, 1]),
        alignment=st.sampled_from([0, 2, 8]),
        unvectorized=st.integers(0, 10**11),
        steps=st.integers(0, 100),
        **SIZES_OF_CONVOLUTIONS,
    ),
)
def test_no_kernel_beats_the_hardware(gpu, cost):
    assert Fraction(gpu.duration_ns(cost), 10**9) >= least_seconds(gpu, cost)


@pytest.mark.parametrize(("number_format", "sustained"), [("float32", 1.0), ("bfloat16", 0.7)])
def test_products_of_long_steps_keep_the_share_of_their_format(number_format, sustained):
    gpu = load_gpu("h100")
    cost = KernelCost("mm", OperatorClass.MATMUL, NumberFormat(number_format), flops=10**12)
    share = gpu.compute_efficiency["matmul"][number_format] * sustained
    # Start and launch take 5 and 3 us.
    assert gpu.duration_ns(cost) == pytest.approx(1e21 / (gpu.peak[number_format] * share) + 8000, abs=1)


@pytest.mark.parametrize("name", gpu_names())
def test_no_format_and_class_of_any_gpu_has_a_share_above_1(name):
    gpu = GPUS[name]
    shares = [*gpu.bandwidth_efficiency.values()]
    for found in (gpu.sustained, *gpu.compute_efficiency.values()):
        shares += found.values() if isinstance(found, dict) else [found]
    for entry in gpu.operators.values():
        shares += [entry.compute_efficiency or 1, entry.bandwidth_efficiency or 1]
    assert all(0 < share <= 1 for share in shares)
    for kind in OperatorClass:
        for number_format in gpu.peak:
            for flops, moved in ((10**13, 0), (0, 10**11), (10**13, 10**11), (10**6, 10**3)):
                cost = KernelCost("any", kind, number_format, flops=flops, moved_bytes=moved)
                assert Fraction(gpu.duration_ns(cost), 10**9) >= least_seconds(gpu, cost)


@pytest.mark.parametrize("name", ["a100-80g", "h100", "v100", "rtx-3090", "rtx-4090", "t4"])
def test_narrow_formats_take_products_no_longer_than_wide_ones(name):
    times = [
        GPUS[name].duration_ns(KernelCost("mm", OperatorClass.MATMUL, number_format, flops=10**13))
        for number_format in (NumberFormat.FLOAT32, NumberFormat.TF32, NumberFormat.FLOAT16)
    ]
    assert times == sorted(times, reverse=True)


def convolution(**sizes):
    usual = {"groups": 1, "window": 9, "stride": 1, "channels": 64}
    return KernelCost(
        "convolution", OperatorClass.CONVOLUTION, NumberFormat.FLOAT16, flops=10**12, **{**usual, **sizes}
    )


def test_a_convolution_takes_longer_the_less_its_shape_suits_tensor_cores():
    gpu = load_gpu("a100-80g")
    usual, points, grouped, depthwise = (
        gpu.duration_ns(convolution(**sizes)) for sizes in ({}, {"window": 1}, {"groups": 4}, {"groups": 64})
    )
    assert usual < points < grouped < depthwise
    in_float32 = 10**12 / (0.2 * 0.8 * 19.5e12) * 1e9 + 13_000
    assert depthwise == pytest.approx(in_float32, abs=1)


def gradient(name, width, groups, **changes):
    """Time of a weight gradient of 3x3, as wide in as out, over 2**20 positions."""
    channels = width * groups
    flops = 2 * 2**20 * channels * 9 * width
    cost = KernelCost(
        "convolution_backward_weight", OperatorClass.CONVOLUTION, NumberFormat.FLOAT16, Phase.BACKWARD
    )
    sizes = {"products": 2**20, "groups": groups, "window": 9, "stride": 1, "channels": channels}
    return load_gpu(name).duration_ns(replace(cost, flops=flops, **{**sizes, **changes}))


def test_weight_gradients_of_groups_without_a_kernel_of_their_own_are_slow_with_channels_last():
    fast, slow = gradient("rtx-3090", 32, 12), gradient("rtx-3090", 48, 12)
    # 0.3 of 71 TFLOP/s beside 0.026 of 35.6 TFLOP/s in float32; 48 x 48 pairs for 32 x 32.
    assert slow / fast == pytest.approx(0.3 * 71 / (0.026 * 35.6) * 48**2 / 32**2, rel=0.01)
    first = gradient("rtx-3090", 48, 12, channels_first=1)
    assert first / fast < 3
    uneven = gradient("rtx-3090", 32, 12, products=2**19)  # twice as many outputs as inputs
    assert uneven > 20 * fast


def test_weight_gradients_of_depthwise_convolutions_move_few_bytes_at_a_time():
    slow = gradient("rtx-3090", 1, 512, moved_bytes=2**31)
    assert slow == pytest.approx(2**31 / (0.08 * 936), rel=0.01)


def test_products_that_may_be_rounded_are_float32_where_there_is_no_tf32():
    cost = KernelCost("convolution", OperatorClass.CONVOLUTION, NumberFormat.TF32, flops=10**12)
    cost = replace(cost, groups=1, window=9, stride=1, channels=64)
    assert load_gpu("v100").duration_ns(cost) == load_gpu("v100").duration_ns(
        replace(cost, number_format=NumberFormat.FLOAT32)
    )


def test_channels_first_adds_passes_at_the_rate_of_copies():
    gpu = load_gpu("a100-80g")
    first, last = (
        gpu.duration_ns(replace(convolution(channels_first=order), moved_bytes=10**9)) for order in (1, 0)
    )
    assert first - last == pytest.approx(0.5 * 10**9 / (0.87 * 2039e9) * 1e9, abs=1)


def test_a_fast_algorithm_in_float32_beats_the_products_that_are_counted():
    gpu = load_gpu("v100")
    cost = replace(convolution(), number_format=NumberFormat.FLOAT32)
    expected = 10**12 / 2.25 / (0.7 * 0.96 * 15.7e12) * 1e9 + 13_000
    assert gpu.duration_ns(cost) == pytest.approx(expected, abs=1)
    assert gpu.duration_ns(replace(cost, stride=2)) > 1.5 * expected
    assert gpu.duration_ns(cost) > 10**12 / 2.25 / 15.7e12 * 1e9


def test_attention_reaches_half_of_its_share_at_the_half_length():
    gpu = load_gpu("a100-80g")
    flops = 10**13

    def computing(keys, **sizes):
        cost = KernelCost("attention", OperatorClass.ATTENTION, NumberFormat.FLOAT16, flops=flops, **sizes)
        return gpu.duration_ns(replace(cost, keys=keys)) - 8_000

    assert computing(175, head=64) == pytest.approx(2 * flops / (0.565 * 0.8 * 312e12) * 1e9, abs=1)
    assert computing(480, head=64, causal=1) == computing(175, head=64)
    assert computing(175, head=128) < computing(175, head=64)
    assert computing(10**9, head=64) == pytest.approx(computing(175, head=64) / 2, rel=1e-6)


def test_elements_that_come_one_by_one_take_as_long_as_the_gpu_needs_for_them(tmp_path):
    gpu = _described(tmp_path, element_rate="100 G/s", sources={"element_rate": "a test"})
    cost = KernelCost("add", OperatorClass.ELEMENTWISE, moved_bytes=10**9)
    vectorized = gpu.duration_ns(cost)
    assert gpu.duration_ns(replace(cost, unvectorized=10**9)) == 10_000_000 + 9_200
    assert gpu.duration_ns(replace(cost, unvectorized=10**6)) == vectorized
    assert load_gpu("a100-40g-2023").duration_ns(replace(cost, unvectorized=10**9)) == vectorized


def test_a_kernel_of_few_channels_reaches_less_of_the_bandwidth(tmp_path):
    entry = {"operators": ["native_batch_norm"], "bandwidth_efficiency": 0.5, "full_channels": 400}
    gpu = _described(tmp_path, operators={"mine": entry}, sources={"operators.mine": "a test"})

    def seconds(channels):
        cost = KernelCost("native_batch_norm", OperatorClass.NORMALIZATION, moved_bytes=1555 * 10**6)
        return (gpu.duration_ns(replace(cost, channels=channels)) - 9_200) / 10**9

    found = [seconds(channels) for channels in (0, 100, 200, 400, 800)]
    assert found == pytest.approx([0.002, 0.008, 0.004, 0.002, 0.002])


def test_a_kernel_that_is_the_limit_moves_as_much_whatever_the_memory_could(tmp_path):
    entry = {"operators": ["native_layer_norm"], "bandwidth": "500 GB/s"}
    sources = {"operators.mine": "a test", "memory_bandwidth": "a test"}
    cost = KernelCost("native_layer_norm", OperatorClass.NORMALIZATION, moved_bytes=5 * 10**9)
    found = []
    for memory in ("100 GB/s", "1000 GB/s", "4000 GB/s"):
        gpu = _described(tmp_path, memory_bandwidth=memory, operators={"mine": entry}, sources=sources)
        found.append(gpu.duration_ns(cost) - 9_200)
    share = load_gpu("a100-40g-2023").bandwidth_efficiency["normalization"]
    assert found == pytest.approx([0.05e9 / share, 10_000_000, 10_000_000])


def test_products_of_a_vocabulary_of_odd_size_are_several_times_slower_on_tensor_cores():
    gpu = load_gpu("h200")
    cost = KernelCost("mm", OperatorClass.MATMUL, NumberFormat.BFLOAT16, flops=10**13)
    aligned, even, odd = (gpu.duration_ns(replace(cost, alignment=rows)) for rows in (0, 4, 2))
    assert (even / aligned, odd / aligned) == (pytest.approx(3, rel=0.1), pytest.approx(6, rel=0.1))
    in_float32 = replace(cost, number_format=NumberFormat.FLOAT32)
    assert gpu.duration_ns(in_float32) == gpu.duration_ns(replace(in_float32, alignment=4))


def test_steps_that_wait_for_each_other_each_pay_a_startup():
    one, many = (
        load_gpu("v100").duration_ns(KernelCost("recurrent", OperatorClass.RECURRENT, steps=steps))
        for steps in (1, 25)
    )
    assert (one, many) == (3_000 + 35_000, 3_000 + 25 * 35_000)


def test_float32_products_rounded_to_tf32_run_in_float32_without_tensor_cores_for_them():
    gpu = load_gpu("v100")
    rounded, plain = (
        gpu.duration_ns(KernelCost("mm", OperatorClass.MATMUL, number_format, flops=10**12))
        for number_format in (NumberFormat.TF32, NumberFormat.FLOAT32)
    )
    assert rounded == plain


def test_a_format_without_a_peak_rate_is_refused():
    with pytest.raises(
        ConfigError, match=r"'v100': found an operator in bfloat16.*allowed: float16, float32, float64"
    ):
        load_gpu("v100").duration_ns(KernelCost("mm", OperatorClass.MATMUL, NumberFormat.BFLOAT16, flops=1))


def test_an_unknown_gpu_is_refused_with_the_nearest_name():
    with pytest.raises(
        ConfigError, match=r"unknown GPU 'a100-40gb' \(did you mean 'a100-40g'\?\); allowed: "
    ):
        load_gpu("a100-40gb")


def _description(**changes):
    data = yaml.safe_load(data_path("configs", "gpus", "a100-40g-2023.yaml").read_text())
    for key, value in changes.items():
        *tables, last = key.split("__")
        place = data
        for table in tables:
            place = place[table]
        if value is None:
            del place[last]
        else:
            place[last] = value
    return data


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"memory_bandwidth": 1555}, "found 1555 without a unit"),
        ({"memory_bandwidth": "0 GB/s"}, "found 0; allowed: more than zero"),
        ({"peak__float32": "0 TFLOP/s"}, "found 0; allowed: more than zero"),
        ({"compute_efficiency__matmul": 1.2}, "less than or equal to 1"),
        ({"compute_efficiency__matmul": 0}, "greater than 0"),
        ({"compute_efficiency__matmul": {"float32": 1.01}}, "less than or equal to 1"),
        ({"compute_efficiency__matmul": {"float31": 0.5}}, "compute_efficiency.matmul"),
        (
            {"compute_efficiency__matmul": {"float32": 0.5}},
            "compute_efficiency.matmul.bfloat16: found no eff",
        ),
        ({"bandwidth_efficiency__copy": 0}, "greater than 0"),
        ({"sustained": 1.5}, "less than or equal to 1"),
        ({"sustained": {"float32": 0.5}}, "sustained.bfloat16: found no eff"),
        ({"peak__float31": "1 TFLOP/s"}, "peak.float31"),
        ({"compute_efficiency__tensor": 0.5}, "compute_efficiency.tensor"),
        ({"compute_efficiency__matmul": None}, "compute_efficiency.matmul: found no efficiency"),
        (
            {"compute_efficiency__copy": 0.5},
            "compute_efficiency.copy: found an efficiency that no operator uses",
        ),
        ({"bandwidth_efficiency__other": None}, "bandwidth_efficiency.other: found no efficiency"),
        ({"sources__memory": None}, "found no source for 'memory'"),
        ({"startup": {"copy": "5 us"}}, "found no source for 'startup.copy'"),
        ({"startup": {"copying": "5 us"}}, "startup.copying"),
        (
            {"operators": {"mine": {"startup": "5 us"}}},
            "operators.mine: found no condition; allowed: at least",
        ),
        ({"operators": {"mine": {"phase": "sideways"}}}, "operators.mine.phase"),
        ({"preset": "a100"}, "preset: found 'a100'; allowed: a100-40g, "),
        ({"sources__speed": "a guess"}, "found a source for 'speed', which is no number here"),
        ({"colour": "green"}, "found an unknown key"),
    ],
)
def test_a_wrong_description_is_refused_with_its_file(tmp_path, changes, message):
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(_description(**changes)))
    with pytest.raises(ConfigError) as refused:
        load_gpu(path)
    assert message in str(refused.value)
    assert str(path) in str(refused.value)


def test_a_description_of_ones_own_is_used(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(_description(name="mine", launch_overhead="1 us")))
    gpu = load_gpu(path)
    assert isinstance(gpu, GpuTimingSpec)
    assert gpu.duration_ns(KernelCost("copy_", OperatorClass.COPY)) == 1000


def _described(tmp_path, **changes):
    path = tmp_path / "mine.yaml"
    text = yaml.safe_dump({"preset": "a100-40g-2023", "name": "mine"} | changes, sort_keys=False)
    path.write_text(text)
    return load_gpu(path)


def test_a_description_may_build_on_a_bundled_one(tmp_path):
    source = {"memory_bandwidth": "a test"}
    gpu = _described(tmp_path, memory_bandwidth="3110 GB/s", sources=source)
    whole, half = (
        one.duration_ns(KernelCost("add", OperatorClass.ELEMENTWISE, moved_bytes=10**12))
        for one in (load_gpu("a100-40g-2023"), gpu)
    )
    assert whole - 9200 == pytest.approx(2 * (half - 9200), abs=2)
    assert gpu.sources["memory_bandwidth"] == "a test"
    assert gpu.sources["memory"] == load_gpu("a100-40g-2023").sources["memory"]


def test_operators_of_ones_own_come_before_those_of_the_preset_and_replace_their_namesakes(tmp_path):
    own = {
        "mine": {"operator_class": "copy", "startup": "5 us"},
        "attention": {"operator_class": "attention"},
    }
    gpu = _described(
        tmp_path, preset="a100-40g", operators=own, sources={f"operators.{name}": "a test" for name in own}
    )
    preset = load_gpu("a100-40g").operators
    assert list(gpu.operators) == [*own, *(name for name in preset if name not in own)]
    assert preset["attention"].half_length is not None
    assert gpu.operators["attention"].half_length is None


def test_shares_by_format_change_those_of_the_preset_and_a_number_replaces_all(tmp_path):
    own = {"matmul": {"float16": 0.5}, "convolution": 0.25}
    sources = {"compute_efficiency.matmul.float16": "a test", "compute_efficiency.convolution": "another"}
    gpu = _described(tmp_path, preset="a100-40g", compute_efficiency=own, sources=sources)
    preset = load_gpu("a100-40g")
    shares = preset.compute_efficiency | {"convolution": 0.25}
    assert gpu.compute_efficiency == shares | {"matmul": {**shares["matmul"], "float16": 0.5}}
    told = {key: text for key, text in preset.sources.items() if "efficiency.convolution." not in key}
    assert gpu.sources == told | sources


def test_shares_that_a_description_changes_need_sources(tmp_path):
    with pytest.raises(ConfigError, match=r"found no source for 'compute_efficiency\.matmul\.float16'"):
        _described(tmp_path, preset="a100-40g", compute_efficiency={"matmul": {"float16": 0.5}})


def test_startup_is_added_and_small_kernels_reach_less(tmp_path):
    gpu = _described(tmp_path, startup={"copy": "100 us"}, sources={"startup.copy": "a test"})
    half = int(100e-6 * 0.67 * 1555e9)  # startup x share x bandwidth
    copied = gpu.duration_ns(KernelCost("copy_", OperatorClass.COPY, moved_bytes=half))
    assert copied == pytest.approx(9_200 + 2 * 100_000, abs=1)


OWN_TIMES = {
    "transposing": {
        "operator_class": "matmul",
        "phase": "backward",
        "reads_weight": True,
        "compute_efficiency": 0.3,
        "weight_bandwidth": "1 GB/s",
    },
    "pooling": {"layer_types": ["MaxPool2d"], "startup": "1 ms"},
    "big": {"operators": ["bmm"], "bound": "compute", "startup": "2 ms"},
    "any product of matrices": {"operator_class": "matmul", "startup": "3 ms"},
}


@pytest.mark.parametrize(
    ("cost", "expected"),
    [
        # 3e9 FLOPs at 30% of 19.5 TFLOP/s, then 1e6 bytes of weights at 1 GB/s
        (
            KernelCost("mm", OperatorClass.MATMUL, phase=Phase.BACKWARD, flops=3 * 10**9, weight_bytes=10**6),
            3e9 / (0.3 * 19.5e12) * 1e9 + 1e6,
        ),
        (KernelCost("mm", OperatorClass.MATMUL, phase=Phase.BACKWARD), 3e6),
        (KernelCost("addmm", OperatorClass.MATMUL, weight_bytes=10**6), 3e6),
        (KernelCost("max_pool2d", OperatorClass.REDUCTION, layer_type="MaxPool2d"), 1e6),
        (KernelCost("max_pool2d", OperatorClass.REDUCTION), 0),
        (KernelCost("bmm", OperatorClass.BATCHED_MATMUL, moved_bytes=1555), 1 / 0.77),
        (
            KernelCost("bmm", OperatorClass.BATCHED_MATMUL, flops=195 * 10**5, moved_bytes=1),
            1000 / 0.42 + 2e6,
        ),
    ],
)
def test_operators_set_apart_have_times_of_their_own(tmp_path, cost, expected):
    sources = {f"operators.{name}": "a test" for name in OWN_TIMES}
    gpu = _described(tmp_path, operators=OWN_TIMES, sources=sources)
    assert gpu.duration_ns(cost) == math.ceil(expected + 9200)


@pytest.mark.parametrize(
    ("condition", "covered", "others"),
    [
        ({"most_channels": 4}, [{"channels": 1}, {"channels": 4}], [{"channels": 5}, {}]),
        ({"least_channels": 4}, [{"channels": 4}, {"channels": 5}], [{"channels": 3}, {}]),
        ({"masked": True}, [{"masked": 1}], [{"masked": 0}]),
        ({"masked": False}, [{"masked": 0}], [{"masked": 1}]),
        ({"causal": True}, [{"causal": 1}], [{"causal": 0}]),
        ({"dropout": True}, [{"dropout": 1}], [{"dropout": 0}]),
        ({"least_head": 64}, [{"head": 64}, {"head": 128}], [{"head": 63}]),
        ({"least_products": 9}, [{"products": 9}], [{"products": 8}]),
        ({"alignments": (2, 4)}, [{"alignment": 2}, {"alignment": 4}], [{"alignment": 8}, {}]),
        ({"reads_weight": True}, [{"weight_bytes": 1}], [{}]),
        (
            {"grouping": "depthwise"},
            [{"groups": 8, "channels": 8}],
            [{"groups": 4, "channels": 8}, {"groups": 1}],
        ),
        ({"grouping": "several"}, [{"groups": 4, "channels": 8}], [{"groups": 8, "channels": 8}, {}]),
    ],
)
def test_conditions_cover_up_to_their_ends_and_no_further(condition, covered, others):
    conditions = Conditions(**condition)
    for sizes in covered:
        assert conditions.covers(KernelCost("one", OperatorClass.OTHER, **sizes), PeakRate.MEMORY)
    for sizes in others:
        assert not conditions.covers(KernelCost("one", OperatorClass.OTHER, **sizes), PeakRate.MEMORY)


def test_only_weight_gradients_with_as_many_inputs_as_outputs_have_a_width_of_groups():
    """16 channels in 4 groups of 4, windows of 9: 16 x 9 x 4 weights, each of 100 products."""
    even = {"groups": 4, "channels": 16, "window": 9, "products": 100, "flops": 2 * 100 * 16 * 9 * 4}
    uneven = even | {"flops": 2 * even["flops"]}
    for width, sizes, is_covered in (4, even, True), (1, even, False), (1, uneven, False), (0, uneven, True):
        cost = KernelCost("convolution_backward", OperatorClass.CONVOLUTION, **sizes)
        assert Conditions(group_widths=(width,)).covers(cost, PeakRate.MEMORY) is is_covered


def test_what_only_moves_may_have_a_format_that_a_gpu_cannot_compute_in():
    gpu = load_gpu("v100")
    cost = KernelCost("add", OperatorClass.ELEMENTWISE, NumberFormat.FLOAT8, moved_bytes=10**9)
    assert NumberFormat.FLOAT8 not in gpu.peak
    assert gpu.duration_ns(cost) == gpu.duration_ns(replace(cost, number_format=NumberFormat.FLOAT16))
