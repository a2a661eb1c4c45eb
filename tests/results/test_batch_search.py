"""The batch size that trains fastest, and the largest one that costs nothing."""

import pandas as pd
import pytest
from vdnn_networks import titan_x, vgg

from g10sim.config.system import SystemSpec
from g10sim.errors import ConfigError, UnsupportedError
from g10sim.policies.interface.registry import create
from g10sim.results.batch_search import COLUMNS, batch_search
from g10sim.sim.engine import run
from g10sim.trace.workload import Job, Workload


def table(rows):
    names = ["cell", "model", "batch_size", "policy", "seed", "status", "samples_per_s"]
    return pd.DataFrame([dict(zip(names, row, strict=True)) for row in rows])


def results():
    """The reference runs batches of 8 and 16, the other one up to 64, fastest at 32."""
    rows = [(0, "net", 8, "none", 0, "ok", 80.0), (1, "net", 16, "none", 0, "ok", 100.0)]
    rows += [(2, "net", 32, "none", 0, "unsupported", None), (3, "net", 64, "none", 0, "unsupported", None)]
    speeds = zip((8, 16, 32, 64), (70.0, 95.0, 110.0, 99.0), strict=True)
    rows += [(4 + n, "net", batch, "swap", 0, "ok", speed) for n, (batch, speed) in enumerate(speeds)]
    return table(rows)


def found(results, policy, **options):
    rows = batch_search(results, reference="none", **options)
    return rows[rows.policy == policy][list(COLUMNS)].iloc[0].tolist()


def test_the_best_and_the_largest_batch():
    assert found(results(), "swap") == [32, 110, 32, 64, 2, 1.1]
    assert found(results(), "none") == [16, 100, 16, 16, 1, 1]
    assert found(results(), "swap", loss=0.01) == [32, 110, 64, 64, 4, 1.1]


def test_cells_without_a_swept_value_count():
    rows = results()
    rows.insert(5, "host.memory", None)
    assert found(rows, "swap") == [32, 110, 32, 64, 2, 1.1]


def test_of_equal_throughputs_the_smaller_batch_is_best():
    rows = results()
    rows.loc[rows.cell == 7, "samples_per_s"] = 110.0
    assert found(rows, "swap")[:3] == [32, 110, 64]


def test_cases_keep_the_order_in_which_they_were_run():
    rows = results()
    both = pd.concat([rows.assign(model="vgg"), rows.assign(model="alexnet", cell=rows.cell + 8)])
    assert batch_search(both, reference="none").model.tolist() == ["vgg", "vgg", "alexnet", "alexnet"]


def test_a_policy_that_is_always_slower_has_no_batch_without_loss():
    rows = results()
    rows.loc[rows.policy == "swap", "samples_per_s"] /= 2
    best, speed, no_loss, largest, gain, faster = found(rows, "swap")
    assert (best, speed, largest, faster) == (32, 55, 64, 0.55)
    assert pd.isna(no_loss)
    assert pd.isna(gain)


def test_a_policy_that_runs_nothing_has_an_empty_row():
    rows = results()
    rows.loc[rows.policy == "swap", "status"] = "unsupported"
    assert all(map(pd.isna, found(rows, "swap")))


def test_replicas_count_together_and_all_have_to_run():
    rows = pd.concat([results(), results()])
    assert found(rows, "swap") == [32, 220, 32, 64, 2, 1.1]
    rows.iloc[-2, rows.columns.get_loc("status")] = "failed"
    assert found(rows, "swap")[0] == 64


def test_machines_and_models_are_searched_apart():
    other = results().assign(model="other")
    other["cell"] += 8
    swept = pd.concat([results(), other]).assign(**{"system.gpu.count": 4, "policies.0.depth": None})
    answer = batch_search(swept, reference="none")
    assert answer[["model", "system.gpu.count", "policy"]].values.tolist() == [
        ["net", 4, "none"],
        ["net", 4, "swap"],
        ["other", 4, "none"],
        ["other", 4, "swap"],
    ]


def test_whole_systems_are_searched_apart():
    rows = pd.concat([results(), results().assign(cell=range(8, 16))], ignore_index=True)
    rows.insert(4, "system", ["a100-40g"] * 8 + ["h100-80g"] * 8)
    answer = batch_search(rows, reference="none")
    assert answer.system.tolist() == ["a100-40g", "a100-40g", "h100-80g", "h100-80g"]
    assert answer.best_batch.tolist() == [16, 32, 16, 32]


@pytest.mark.parametrize(
    ("rows", "options", "message"),
    [
        (results(), {"reference": "nothing"}, r"reference: found policy 'nothing'; allowed: .*none.* swap"),
        (results(), {"reference": "none", "loss": 1}, r"loss: found 1; allowed: from 0 to less than 1"),
        (
            results().assign(status="failed"),
            {"reference": "none"},
            r"policy 'none' runs no batch size \(model net, seed 0\)",
        ),
        (
            pd.concat([results(), results().assign(cell=range(10, 18))]),
            {"reference": "none"},
            r"found several cells of policy 'none' at batch size 8",
        ),
    ],
)
def test_what_cannot_be_searched_is_refused(rows, options, message):
    with pytest.raises(ConfigError, match=message):
        batch_search(rows, **options)


@pytest.mark.parametrize(
    ("gpus", "batches", "gain"),
    [
        (1, range(144, 241, 16), 1.5),
        pytest.param(4, range(160, 209, 16), 1.2, marks=pytest.mark.slow),
    ],
)
def test_planned_offloading_lets_the_batch_grow_at_no_loss(gpus, batches, gain):
    """The batch gain of the whole ladder over no offloading, on cards that share an uplink."""
    plain = titan_x(memory="12 GB", host="1024 GiB").model_dump(mode="json")
    plain["gpu"]["count"] = gpus
    plain["pcie"]["shared"] = [{"name": "up", "gpus": list(range(gpus)), "bandwidth": "12.8 GB/s"}]
    rows, system = [], SystemSpec(**plain)
    for batch in batches:
        trace = vgg(batch)
        jobs = tuple(Job(trace, gpu=gpu) for gpu in range(gpus))
        for step in ("K0", "K4"):
            cell, status, speed = len(rows), "ok", None
            try:
                records = run(Workload(jobs), system, create({"name": "vdnn_multi", "ladder": step}))
                last = {record.job: record.end - record.start for record in records.iterations}
                speed = sum(batch / (cycles * 1e-9) for cycles in last.values())
            except UnsupportedError:
                status = "unsupported"
            rows.append((cell, "VGG-E", batch, step, 0, status, speed))
    answer = batch_search(table(rows), reference="K0", loss=0.01).set_index("policy")
    assert answer.loc["K0", "largest_batch"] == 160
    assert answer.loc["K4", "batch_gain"] == pytest.approx(gain)
    assert answer.loc["K4", "throughput_gain"] >= 1
