"""Registered policies with their default parameters, and with others, for the tables of recorded results."""

SMALL_POOL = {
    "small_limit": "256 KiB",
    "small_chunk": "1 MiB",
    "large_limit": "2 MiB",
    "large_chunk": "4 MiB",
    "chunk_rounding": "1 MiB",
    "least_large_rest": "128 KiB",
}
G10 = [
    {},
    {"safety_margin": 1.0, "ranking": "benefit_per_cost"},
    {"eager_prefetch": False, "memory_target": 0.9},
    {"safety_margin": 6.0, "memory_target": 0.97, "ranking": "benefit_per_cost"},
]
VDNN = [
    {},
    {"mode": "all"},
    {"mode": "conv", "allocator": "first_fit"},
    {"mode": "alternate", "allocator": "worst_fit", "order": "gradient_first"},
    {"mode": "none", "allocator": "both_ends", "fuse_activations": False},
    {"mode": "all", "allocator": "right_for_resident", "fuse_activations": False, "order": "gradient_first"},
    {"mode": "conv", "allocator": SMALL_POOL},
]

SEARCHING = {"autoswap": [{"score": "combined", "seed": 3, "memory_limit": "55 MiB"}]}
"""Parameters that take long, on a few machines only."""
SEARCHED = ("roomy", "duplex")

DESIGNS = {
    "autoswap": [
        {},
        {"score": "doa", "least_tensor": "64 KiB", "pool": "first_fit"},
        {"score": "aoa", "memory_limit": "60 MiB", "least_tensor": "0 B"},
        {"score": "wdoa", "target": "ssd", "memory_limit": "45 MiB"},
        {"score": "vote", "mode": "no_overhead"},
        {"score": "swdoa", "mode": "no_overhead", "memory_limit": "70 MiB", "target": "ssd"},
    ],
    "base_uvm": [{}, {"access_counter": 0}, {"access_counter": 3}],
    "capuchin": [
        {},
        {"recomputation": False, "feedback": 0.3},
        {"memory_target": "50 MiB", "least_tensor": "0 B"},
        {"saving": 0.5, "feedback": 0.0},
        {"memory_target": "tensile", "least_tensor": "4 MiB"},
    ],
    "deepum": [{}, {"look_ahead": 1}, {"look_ahead": 3}, {"look_ahead": 30}],
    "flashneuron": [{}],
    "g10": G10,
    "g10_gds": [{}],
    "g10_host": [{}],
    "g10_paced": [
        *G10[:2],
        {"method": "paced", "pacing_rounds": 3},
        {"method": "unpaced", "recovery_look_ahead": 0},
        {"method": "published", "recovery_look_ahead": 4},
        {"method": "paced", "eager_prefetch": False, "memory_target": 0.9, "recovery_look_ahead": 10},
    ],
    "ideal": [{}],
    "in_place": [{}],
    "flexgen": [{"percent": [0, 70, 0, 60, 0, 50]}],
    "lohan": [{}],
    "pressure": [
        {},
        {"backlog": 0.0, "births": 0},
        {"backlog": 2.0, "births": 12, "horizon": 0.2},
        {"recompute": True},
        {"recompute": True, "horizon": 0.0, "backlog": 0.3},
    ],
    "pressurefit": [{}, {"recompute": "fastest"}],
    "ssdtrain": [{}],
    "stream": [{}],
    "tencache": [{}],
    "tensile": [
        {},
        {"across_iterations": False, "recomputation": False},
        {"channels": "shared", "duplex": True, "accounting": "published"},
        {"swap_share": 0.5, "target": "ssd", "replan_threshold": None},
        {"memory_target": "60 MiB", "swap_out_barrier": True, "channels": "per_job"},
        {"prediction_error": 0.4, "prediction_seed": 5, "replan_threshold": 0.05},
        {
            "memory_target": "45 MiB",
            "across_iterations": False,
            "prediction_error": 0.2,
            "replan_threshold": 0.0,
        },
    ],
    "teraio": [{}],
    "torch_offload": [{}],
    "vdnn": VDNN,
    "vdnn_multi": [
        {},
        {"ladder": "K0"},
        {"ladder": "K1", "allocator": "first_fit"},
        {"ladder": "K2", "arbitration": "first_come"},
        {"ladder": "K3", "headroom": 0.1},
        {"offload": "conv", "prefetch": "planned", "layer_end_join": False, "feedback": False},
        {"offload": "contention_aware", "prefetch": "window", "arbitration": "fair", "headroom": 0.3},
        {"offload": "none", "order": "gradient_first", "fuse_activations": False},
    ],
    "vdnnpp": [
        *VDNN[:3],
        {"mode": "all", "join": "memory", "returns_space": "between_kernels", "host_buffers": "released"},
        {"mode": "conv", "join": "memory", "density": 0.4, "host_buffers": "released"},
        {"mode": "all", "density": 0.7, "returns_space": "between_kernels", "allocator": "both_ends"},
    ],
    "zero_infinity": [{}],
    "zero_offload": [{}],
}
"""Parameters by policy. A plan file makes ``replay`` and others follow it, which other tests do."""


OFFLOADING = {
    "flexgen": [
        {"percent": [0, 100, 0, 100, 0, 100]},
        {"percent": [30, 40, 20, 30, 10, 50], "overlap": "none", "births": 0},
        {"percent": [40, 40, 0, 50, 0, 70], "overlap": "batches"},
    ],
    "lohan": [{}, {"swap_ratio": 0.0}, {"pipeline": True, "optimizer_buffers": 2}],
    "tencache": [
        {},
        {"prefetch": False, "buffers": "none"},
        {"cache": "30 MiB", "buffers": "uniform", "optimizer_buffers": 1},
    ],
    "torch_offload": [{}, {"overlap": False}],
    "zero_infinity": [
        {"param_persistence_threshold": 1000},
        {"offload_param": "ssd", "param_persistence_threshold": 0, "prefetch_bucket_size": 3_000_000},
        {"offload_optimizer": "ssd", "pipeline": True, "buffer_count": 2, "max_reuse_distance": 1},
    ],
    "zero_offload": [
        {},
        {"overlap": True, "reduce_bucket_size": 4_000_000},
        {"delayed_update": True},
        {"ratio": 0.5},
    ],
}
"""Parameters of policies that let the CPU run the optimizer, or keep data below, where all has room."""


def designs_on(policy, machine):
    """Return the parameters with which a policy runs on a machine."""
    if machine == "offloading":
        return OFFLOADING.get(policy, [])
    return [*DESIGNS[policy], *(SEARCHING.get(policy, []) if machine in SEARCHED else [])]
