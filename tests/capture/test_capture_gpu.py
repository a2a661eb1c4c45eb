import math
from fractions import Fraction

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from g10sim.capture.gpu import GpuTimingSpec, gpu_names, load_gpu
from g10sim.capture.operator_kinds import KernelCost, NumberFormat, OperatorClass
from g10sim.config.data import data_path
from g10sim.errors import ConfigError


def test_each_bundled_gpu_names_itself_and_a_source_for_every_number():
    assert {"a100-40g", "h100", "v100"} <= set(gpu_names())
    for name in gpu_names():
        gpu = load_gpu(name)
        assert gpu.name == name
        assert all(gpu.sources.values())
        assert len(gpu.sources) == 3 + len(gpu.peak) + len(gpu.compute_efficiency) + len(OperatorClass)


def test_a_computing_kernel_takes_its_flops_at_the_share_of_the_peak_it_reaches():
    gpu = load_gpu("a100-40g")
    flops = 2 * 4096**3
    expected = flops / (0.57 * 19.5e12) * 1e9 + 9200
    assert gpu.duration_ns(KernelCost("mm", OperatorClass.MATMUL, flops=flops)) == math.ceil(expected)


def test_a_moving_kernel_takes_its_bytes_at_the_share_of_the_bandwidth_it_reaches():
    gpu = load_gpu("a100-40g")
    expected = 3 * 2**30 / (0.58 * 1555e9) * 1e9 + 9200
    assert gpu.duration_ns(KernelCost("add", OperatorClass.ELEMENTWISE, moved_bytes=3 * 2**30)) == math.ceil(
        expected
    )


@given(
    name=st.sampled_from(["a100-40g", "h100", "v100"]),
    kind=st.sampled_from(list(OperatorClass)),
    flops=st.integers(0, 10**15),
    moved=st.integers(0, 10**12),
)
def test_no_kernel_beats_the_hardware(name, kind, flops, moved):
    gpu = load_gpu(name)
    seconds = Fraction(
        gpu.duration_ns(KernelCost("any", kind, NumberFormat.FLOAT16, flops=flops, moved_bytes=moved)), 10**9
    )
    assert seconds >= Fraction(flops, gpu.peak[NumberFormat.FLOAT16])
    assert seconds >= Fraction(moved, gpu.memory_bandwidth)


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
    data = yaml.safe_load(data_path("configs", "gpus", "a100-40g.yaml").read_text())
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
        ({"compute_efficiency__matmul": None}, "compute_efficiency.matmul: found no efficiency"),
        (
            {"compute_efficiency__copy": 0.5},
            "compute_efficiency.copy: found an efficiency that no operator uses",
        ),
        ({"bandwidth_efficiency__other": None}, "bandwidth_efficiency.other: found no efficiency"),
        ({"sources__memory": None}, "found no source for 'memory'"),
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
