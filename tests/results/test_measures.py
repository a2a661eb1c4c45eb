"""Measures of claims, from results that are written down here."""

import pandas as pd
import pytest
from pydantic import TypeAdapter

from g10sim.analysis.footprint import mean_gradient_bytes, static_bytes
from g10sim.config.data import data_path
from g10sim.errors import ConfigError
from g10sim.policies.designs.vdnn.joins import gain_without_joins
from g10sim.results.cases import breakdown, written
from g10sim.results.measures import Measure
from g10sim.trace.format import load_trace
from g10sim.trace.model import Phase, TensorKind
from g10sim.trace.synthetic import TraceBuilder

FIRST = (
    "cell",
    "name",
    "trace",
    "model",
    "batch_size",
    "policy",
    "link",
    "policies.0.mode",
    "seed",
    "status",
)


def measure(**spec):
    return TypeAdapter(Measure).validate_python(spec)


def results(directory, *cells):
    """Write results: a cell for each (trace, policy, link, exec_cycles), 100 cycles of them computing."""
    rows = []
    for number, (trace, policy, link, cycles) in enumerate(cells):
        status = "ok" if cycles else "unsupported"
        first = (number, "made up", f"traces/{trace}.g10t", trace, 8, policy, link, "all", 0, status)
        rows.append({**dict(zip(FIRST, first, strict=True)), "exec_cycles": cycles, "compute_cycles": 100})
    table = pd.DataFrame(rows).assign(
        overlap_cycles=0, stall_fault_host_cycles=lambda rows: rows.exec_cycles - 100, peak_gpu_bytes=2**30
    )
    table.to_csv(directory / "results.csv", index=False)
    return directory


def test_a_policy_against_another_by_case(tmp_path):
    cells = [("a", "slow", 1, 300), ("a", "fast", 1, 200), ("b", "slow", 1, 900), ("b", "fast", 1, 300)]
    here = results(tmp_path, *cells, ("c", "slow", 1, 700), ("c", "fast", 1, None))
    values = {"speedup": [1.5, 3], "improvement": [0.5, 2], "ratio": [2 / 3, 1 / 3]}
    values |= {"reduction": [1 / 3, 2 / 3], "increase": [-1 / 3, -2 / 3]}
    for value, found in values.items():
        one = measure(of="comparison", column="exec_cycles", policy="fast", against="slow", value=value)
        measured = one.measure(here)
        assert measured.cases == pytest.approx({"a, 1": found[0], "b, 1": found[1]})  # c cannot run
        assert measured.value == pytest.approx(sum(found) / 2)
        assert list(measured.cells.cell) == [0, 1, 2, 3]


def test_averages_of_cases(tmp_path):
    cells = [("a", "slow", 1, 200), ("a", "fast", 1, 100), ("b", "slow", 1, 800), ("b", "fast", 1, 100)]
    here = results(tmp_path, *cells)
    spec = {"of": "comparison", "column": "exec_cycles", "policy": "fast", "against": "slow"}
    for average, value in (("mean", 5), ("geometric_mean", 4), ("highest", 8), ("lowest", 2)):
        found = measure(**spec, value="speedup", average=average).measure(here)
        assert found.value == pytest.approx(value)


def test_a_geometric_mean_is_of_values_above_0(tmp_path):
    here = results(tmp_path, ("a", "slow", 1, 200), ("a", "fast", 1, 200))
    spec = {"of": "comparison", "column": "exec_cycles", "policy": "fast", "against": "slow"}
    one = measure(**spec, value="improvement", average="geometric_mean")
    with pytest.raises(ConfigError, match="geometric_mean: found 0 for a, 1; allowed: values above 0"):
        one.measure(here)


def test_cells_are_chosen_by_columns_and_compared_with_others(tmp_path):
    here = results(tmp_path, ("a", "one", 0, 200), ("a", "one", 0.2, 250), ("b", "one", 0.2, 700))
    spec = {"of": "comparison", "column": "exec_cycles", "policy": "one", "against": "one"}
    one = measure(**spec, value="increase", where={"link": 0.20}, against_where={"link": 0})
    assert one.measure(here).cases == {"a": 0.25}
    nothing = measure(**spec, value="increase", where={"link": 7}).measure(here)
    assert (nothing.value, nothing.cases) == (None, {})


@pytest.mark.parametrize(("value", "found"), [("speedup", 1.5), ("ratio", 2 / 3)])
def test_cases_in_which_either_is_zero_are_left_out(tmp_path, value, found):
    cells = [("a", 200, 300), ("b", 0, 300), ("c", 200, 0), ("d", 0, 0), ("e", 1, 1)]
    here = results(
        tmp_path,
        *(
            (trace, name, 1, cycles)
            for trace, *both in cells
            for name, cycles in zip(("one", "two"), both, strict=True)
        ),
    )
    table = pd.read_csv(here / "results.csv").assign(status="ok")
    table.to_csv(here / "results.csv", index=False)
    one = measure(of="comparison", column="exec_cycles", policy="one", against="two", value=value)
    assert one.measure(here).cases == pytest.approx({"a, 1": found, "e, 1": 1})


def test_unknown_names_are_refused(tmp_path):
    here = results(tmp_path, ("a", "one", 0, 200))
    spec = {"of": "comparison", "column": "exec_cycles", "policy": "one", "against": "one", "value": "ratio"}
    with pytest.raises(ConfigError, match="found no policy 'two' in the results; allowed: one"):
        measure(**spec | {"against": "two"}).measure(here)
    with pytest.raises(ConfigError, match="found no column 'time' in the results"):
        measure(**spec | {"column": "time"}).measure(here)


def test_where_time_goes(tmp_path):
    here = results(tmp_path, ("a", "one", 0, 400), ("b", "one", 0, 100))
    assert breakdown(pd.read_csv(here / "results.csv")) == (
        "one: fault host 60.0%, computing 40.0%; at most 1.00 GiB"
    )


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.9029, "percent", "90.3%"),
        (1.754, "factor", "1.75x"),
        (0.0612, "number", "0.0612"),
        (None, "factor", ""),
    ],
)
def test_values_as_they_are_written(value, unit, text):
    assert written(value, unit) == text


def test_memory_against_a_static_allocation(tmp_path):
    trace = data_path("traces", "vdnn", "alexnet-b128.g10t")
    here = results(tmp_path, (str(trace)[:-5], "one", 1, 200))
    path = here / "results.csv"
    taken = 200 * 2**20
    table = pd.read_csv(path).assign(mean_gpu_bytes=float(taken), trace=str(trace))
    table.to_csv(path, index=False)
    loaded = load_trace(trace)
    whole = static_bytes(loaded)
    kept = sum(tensor.size_bytes for tensor in loaded.tensors if tensor.persistent)
    spec = {"of": "static", "column": "mean_gpu_bytes", "policy": "one"}
    assert measure(**spec).measure(here).value == pytest.approx(1 - taken / whole)
    found = measure(**spec, leaves_out="weights").measure(here).value
    assert found == pytest.approx(1 - (taken - kept) / whole)
    less = measure(**spec, leaves_out="weights and their gradients").measure(here).value
    assert found < less < found + kept / whole
    assert measure(**spec, trace="other").measure(here).value is None


def test_the_gradients_of_weights_count_from_their_kernel_to_the_optimizer():
    builder = TraceBuilder("tiny", batch_size=1)
    weight = builder.tensor("w", 100, TensorKind.WEIGHT, persistent=True)
    gradient = builder.tensor("w.grad", 100, TensorKind.GRADIENT)
    builder.kernel("forward", 30, [weight], [], phase=Phase.FORWARD)
    builder.kernel("backward", 20, [weight], [gradient], phase=Phase.BACKWARD)
    builder.kernel("other", 40, [weight], [], phase=Phase.BACKWARD)
    builder.kernel("optimizer", 10, [weight, gradient], [weight], phase=Phase.OPTIMIZER)
    assert mean_gradient_bytes(builder.build()) == 100 * 0.7  # for 70 of 100


def test_how_much_larger_batches_may_be(tmp_path):
    cells = [("a", policy, 1, 1000) for policy in ("none", "none", "moves", "moves", "moves")]
    here = results(tmp_path, *cells)
    path = here / "results.csv"
    table = pd.read_csv(path).assign(
        batch_size=[10, 20, 10, 20, 30], samples_per_s=[5.0, 6.0, 5.0, 6.0, 5.97]
    )
    table.to_csv(path, index=False)
    spec = {"of": "batch", "column": "batch_gain", "policy": "moves", "reference": "none"}
    assert measure(**spec, loss=0.01).measure(here).value == pytest.approx(0.5)
    assert measure(**spec).measure(here).value == pytest.approx(0)


def test_a_case_that_is_lost_says_where_its_time_goes(tmp_path):
    cells = [("a", "all", 1, 1000), ("a", "mine", 1, 1500), ("a", "other", 1, 1100)]
    here = results(tmp_path, *cells, ("b", "all", 1, 1000), ("b", "mine", 1, 1000), ("b", "other", 1, 1100))
    path = here / "results.csv"
    peaks = [1000, 600, 700, 1000, 600, 700]
    pd.read_csv(path).assign(peak_gpu_bytes=peaks).to_csv(path, index=False)
    found = measure(of="wins", policy="mine", over=["other"], vanilla="all").measure(here)
    assert (found.value, found.cases) == (0.5, {"a": 0, "b": 1})
    assert found.notes == {
        "a": "saves 0.400 (the others 0.300 at most), adds 0.500 (0.100 at least); "
        "mine: fault host 93.3%, computing 6.7%; at most 0.00 GiB"
    }


def test_pools_by_what_they_save_and_by_their_ratio(tmp_path, monkeypatch):
    here = results(tmp_path, ("a", "one", 1, 100), ("b", "one", 1, 100))
    rows = [(0, "default pool", 100, 150), (0, "SmartPool, best fit", 100, 105)]
    rows += [(1, "default pool", 200, 220), (1, "SmartPool, best fit", 200, 198)]
    names = ("cell", "pool", "load_bytes", "footprint_bytes")
    pools = pd.DataFrame(rows, columns=names)
    monkeypatch.setattr("g10sim.results.measures.read_table", lambda directory, name: pools)
    saved = measure(of="pool").measure(here)
    assert saved.cases == pytest.approx({"a": 0.3, "b": 0.1})
    assert saved.value == pytest.approx(0.3)
    spec = {"of": "pool", "pool": "default pool", "value": "ratio", "average": "mean"}
    assert measure(**spec).measure(here).value == pytest.approx((1.5 + 1.1) / 2)
    distance = measure(**spec, published={"a": 1.2, "b": 1.1}).measure(here)
    assert distance.value == pytest.approx(0.15)
    assert distance.cases == pytest.approx({"a": 1.5, "b": 1.1})


def test_the_bound_on_what_joins_cost_of_every_trace_and_link(tmp_path):
    trace = data_path("traces", "vdnn", "alexnet-b128.g10t")
    here = results(tmp_path, (str(trace)[:-5], "one", 1, 200))
    path = here / "results.csv"
    pd.read_csv(path).assign(trace=str(trace), link="12.8 GB/s").to_csv(path, index=False)
    found = measure(of="join_bound", offload="all", link="link").measure(here)
    expected = gain_without_joins(load_trace(trace), "all", 12_800_000_000)
    assert found.cases == {"alexnet-b128, 12.8 GB/s": expected}
    assert found.value == expected > 0
