"""How sure an order of policies is, by the cases of its cells."""

import pandas as pd

from g10sim.results.seeds import orders, ranged_columns, ranged_names


def test_an_order_is_as_sure_as_cases_agree():
    """Without a swept value, too: two policies there, of which the faster one was slower once in three."""
    results = pd.DataFrame(
        {
            "cell": [0, 1, 2, 3, 4],
            "trace": ["net.g10t"] * 5,
            "host.memory": [None, None, "1 GiB", "1 GiB", "2 GiB"],
            "policy": ["slow", "quick", "quick", "same", "alone"],
            "status": ["ok"] * 5,
            "exec_ms": [5.0, 4.0, 3.0, 3.0, 1.0],
        }
    )
    times = {0: [5, 6, 3], 1: [4, 4, 4], 2: [3, 3, None], 3: [3, 3, 9], 4: [1, 1, 1]}
    cases = pd.DataFrame(
        [(case, cell, ms) for cell, found in times.items() for case, ms in enumerate(found)],
        columns=["case", "cell", "exec_ms"],
    )
    assert list(orders(results, cases)) == [
        "net, 3 cases: quick before slow in 2 of 3",
        "net, 1 GiB, 3 cases: quick as fast as same in all",
    ]


def test_times_performance_and_traffic_have_ranges():
    rows = [
        {"exec_ms": 5.0, "performance": 0.5, "gpu_to_host_bytes": 10, "gpu_mem": 7, "policy": "g10"},
        {"exec_ms": 4.0, "performance": 0.6, "gpu_to_host_bytes": 30, "gpu_mem": 8, "policy": "g10"},
    ]
    assert ranged_names(rows[0]) == ["exec_ms", "performance", "gpu_to_host_bytes"]
    assert ranged_columns(rows) == {
        "exec_ms_low": 4.0,
        "exec_ms_high": 5.0,
        "performance_low": 0.5,
        "performance_high": 0.6,
        "gpu_to_host_bytes_low": 10,
        "gpu_to_host_bytes_high": 30,
    }
