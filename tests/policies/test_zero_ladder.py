"""How large a model each step of the ZeRO family trains, with the memories of a DGX-2 and one of its GPUs."""

import pytest

from g10sim.analysis.footprint import peak_live_bytes
from g10sim.config.behaviour import BehaviourSpec
from g10sim.config.presets import load_system
from g10sim.errors import UnsupportedError
from g10sim.policies.interface.registry import create
from g10sim.sim.preparation import with_chosen_kernels
from g10sim.trace.transformer import Transformer
from g10sim.trace.workload import Job, Workload

DGX2 = load_system(
    {
        "preset": "v100-16g-pcie3-optane",
        "gpu": {"memory": "32 GB"},
        "host": {"memory": "1.5 TB"},
        "ssd": {"capacity": "28 TB"},
        "cpu": {"optimizer_rate": "4 G/s"},
    }
)


def step(layers, hidden):
    """One sequence of 1024 tokens, of which only the inputs of layers are kept."""
    sizes = {"sequence": 1024, "batch": 1, "flops_per_second": 70e12, "bytes_per_second": 0.8e12}
    return Transformer(layers, hidden, recomputes=True, **sizes)


def plan(policy, model):
    policy, workload = create(policy), Workload((Job(model.trace()),))
    policy.plan(with_chosen_kernels(workload, DGX2, policy), DGX2, BehaviourSpec())


def test_without_offloading_two_billion_parameters_fit():
    # 16 bytes a parameter and the activations; the paper has 1.4 billion.
    assert peak_live_bytes(step(38, 2048).trace()) < DGX2.gpu.memory < peak_live_bytes(step(42, 2048).trace())


@pytest.mark.parametrize(
    ("policy", "fits", "too_large", "reason"),
    [
        # Weights in 16 bits fill the GPU: 13 billion parameters in the paper.
        ("zero_offload", (65, 4096), (80, 4096), "weights and activations on the GPU"),
        # 16 bytes a parameter fill host memory: 70 to 100 billion in the paper.
        ("zero_infinity", (110, 8192), (120, 8192), "in the tier 'host'"),
        # With all on the SSD gradients fill host memory: a trillion in the paper, which stores them, too.
        (
            {"name": "zero_infinity", "offload_param": "ssd", "offload_optimizer": "ssd", "pipeline": True},
            (390, 12288),
            (430, 12288),
            "in the tier 'host'",
        ),
    ],
)
def test_the_ladder(policy, fits, too_large, reason):
    plan(policy, step(*fits))
    with pytest.raises(UnsupportedError, match=reason):
        plan(policy, step(*too_large))
