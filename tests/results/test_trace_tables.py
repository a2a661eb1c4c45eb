"""Tables of what traces ask of memory, from numbers that can be worked out by hand."""

from g10sim.analysis.footprint import live_bytes, working_set_bytes
from g10sim.results.pools import compare_pools
from g10sim.results.tables import inactive_periods_table, pools_table, working_sets_table
from g10sim.trace.model import TensorKind
from g10sim.trace.synthetic import TraceBuilder, random_trace
from g10sim.trace.workload import Job

GHZ = 10**9


def example():
    """Kernels of 2, 3, 5 and 7 microseconds; nothing uses the weight in the second and third."""
    builder = TraceBuilder("example")
    weight = builder.tensor("w", 100, TensorKind.WEIGHT, persistent=True)
    data = builder.tensor("x", 10, TensorKind.ACTIVATION)
    hidden = builder.tensor("h", 20, TensorKind.ACTIVATION)
    builder.kernel("a", 2000, [weight, data], [hidden])
    builder.kernel("b", 3000, [data], [])
    builder.kernel("c", 5000, [], [])
    builder.kernel("d", 7000, [weight, hidden], [])
    return builder.build()


def test_working_sets_by_kind():
    table = working_sets_table([Job(example())], GHZ)
    found = {(row.kernel, row.kind): (row.live_bytes, row.active_bytes) for row in table.itertuples()}
    assert found == {
        (0, "weight"): (100, 100), (0, "activation"): (30, 30),
        (1, "weight"): (100, 0), (1, "activation"): (30, 10),
        (2, "weight"): (100, 0), (2, "activation"): (20, 0),
        (3, "weight"): (100, 100), (3, "activation"): (20, 20),
    }  # fmt: skip
    assert list(table["kernel"]) == sorted(table["kernel"])
    times = table.drop_duplicates("kernel")
    assert list(times["duration"]) == [2000, 3000, 5000, 7000]
    assert list(times["start"]) == [0, 2000, 5000, 10000]


def test_working_sets_add_up_to_live_bytes_and_working_sets():
    trace = random_trace(3)
    sums = working_sets_table([Job(trace)], GHZ).groupby("kernel")[["live_bytes", "active_bytes"]].sum()
    assert list(sums["live_bytes"]) == live_bytes(trace).tolist()
    assert list(sums["active_bytes"]) == working_set_bytes(trace).tolist()


def test_working_sets_tell_micro_batches_apart():
    builder = TraceBuilder("accumulation")
    data = builder.tensor("x", 10, TensorKind.INPUT)
    for number in (1, 1, 2, 0):
        builder.kernel("a", 1000, [data], [], micro_batch=number)
    assert list(working_sets_table([Job(builder.build())], GHZ)["micro_batch"]) == [1, 1, 2, 0]
    assert set(working_sets_table([Job(example())], GHZ)["micro_batch"]) == {0}


def test_inactive_periods():
    table = inactive_periods_table([Job(example()), Job(example())], GHZ)
    columns = ["job", "tensor", "kind", "size_bytes", "persistent", "wraps", "kernels", "cycles"]
    assert table[columns].to_numpy().tolist() == [
        [job, *period]
        for job in (0, 1)
        for period in ([0, "weight", 100, True, False, 2, 8000], [2, "activation", 20, False, False, 2, 8000])
    ]
    assert set(table["start_kernel"]) == {1}
    assert set(table["end_kernel"]) == {3}


def test_pools_of_every_job():
    table = pools_table([Job(example()), Job(random_trace(3))], GHZ)
    expected = [
        (job, use.pool, use.load_bytes, use.footprint_bytes)
        for job, trace in enumerate((example(), random_trace(3)))
        for use in compare_pools(trace)
    ]
    columns = ["job", "pool", "load_bytes", "footprint_bytes"]
    assert list(table[columns].itertuples(index=False, name=None)) == expected


def test_tables_without_jobs_have_the_same_columns():
    for table in (working_sets_table, inactive_periods_table, pools_table):
        empty = table([], GHZ)
        assert len(empty) == 0
        assert dict(empty.dtypes) == dict(table([Job(example())], GHZ).dtypes)
