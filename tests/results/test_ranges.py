"""How sure an order of policies is, by the cases of its cells."""

import pandas as pd

from g10sim.results.ranges import orders


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
