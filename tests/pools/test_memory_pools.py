"""Pools that hand out memory while training runs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from g10sim.analysis.footprint import peak_live_bytes
from g10sim.analysis.pools.operations import peak_load_bytes, training_operations
from g10sim.analysis.pools.placement import FITS
from g10sim.results.pools import (
    DefaultPool,
    DriverMemory,
    PoolUse,
    SmartPool,
    compare_pools,
    largest_footprint_bytes,
)
from g10sim.trace.synthetic import chain, random_trace

KIB, MIB = 2**10, 2**20


def test_driver_memory_is_what_is_in_use():
    memory = DriverMemory()
    memory.allocate(0, 1)
    memory.allocate(1, 513)
    assert memory.footprint_bytes == 256 + 768
    memory.free(0)
    assert memory.footprint_bytes == 768


def test_default_pool_starts_with_256_mib():
    assert DefaultPool().footprint_bytes == 256 * MIB


def test_default_pool_takes_the_smallest_hole_and_joins_freed_blocks():
    pool = DefaultPool(first_chunk_bytes=8 * KIB)
    for block, size in enumerate((2 * KIB, KIB, KIB, 4 * KIB)):
        pool.allocate(block, size)
    pool.free(0)
    pool.free(2)
    pool.allocate(4, 900)  # into the hole of 1 KiB that block 2 left
    pool.allocate(5, 2 * KIB)  # so that this one still fits
    assert pool.footprint_bytes == 8 * KIB
    for block in (5, 1, 4):
        pool.free(block)
    pool.allocate(6, 4 * KIB)  # three holes joined
    assert pool.footprint_bytes == 8 * KIB


def test_default_pool_grows_by_the_request_and_chunks_never_join():
    pool = DefaultPool(first_chunk_bytes=0)
    pool.allocate(0, 1000)
    pool.allocate(1, 1000)
    assert pool.footprint_bytes == 2048
    pool.free(0)
    pool.free(1)
    pool.allocate(2, 2048)
    assert pool.footprint_bytes == 2048 + 2048


def stream(trace, iterations):
    return list(training_operations(trace, iterations))


def small_pool(**parameters):
    return SmartPool(**{"first_check": 16, "least_operations": 8, **parameters})


def test_smart_pool_plans_and_then_serves_everything_but_weights_from_its_region():
    trace = chain(8, activation_bytes=MIB, weight_bytes=KIB)
    pool = small_pool()
    largest = largest_footprint_bytes(pool, stream(trace, 8))
    assert pool.plan is not None
    assert pool.plan.length == 52
    assert pool.footprint_bytes == pool.plan.footprint_bytes + 8 * KIB
    assert largest == peak_live_bytes(trace)


def test_planned_blocks_lie_at_the_same_place_in_every_iteration():
    trace = random_trace(3, kernels=20)
    pool, operations = small_pool(), stream(trace, 12)
    offsets = {}
    for number, operation in enumerate(operations):
        if operation.kind == "allocate":
            pool.allocate(operation.block, operation.size_bytes)
            if pool.plan is not None:
                offsets[number] = (pool.offset(operation.block), pool.plan)
        else:
            pool.free(operation.block)
    plan = pool.plan
    planned = {number: offset for number, (offset, of) in offsets.items() if of is plan}
    repeated = [number for number in planned if number + plan.length in planned]
    assert repeated
    assert all(planned[number] == planned[number + plan.length] for number in repeated)


@given(st.integers(0, 10_000), st.sampled_from(FITS))
def test_no_two_live_blocks_of_a_region_share_bytes(seed, fit):
    trace = random_trace(seed, kernels=16)
    pool = small_pool(fit=fit)
    live = {}
    for operation in stream(trace, 8):
        if operation.kind == "free":
            pool.free(operation.block)
            live.pop(operation.block, None)
            continue
        pool.allocate(operation.block, operation.size_bytes)
        start = pool.offset(operation.block)
        if start is not None:
            end = start + operation.size_bytes
            assert end <= pool.plan.footprint_bytes
            assert all(end <= other[0] or other[1] <= start for other in live.values())
            live[operation.block] = (start, end)


@given(st.integers(0, 10_000), st.sampled_from(FITS), st.booleans())
def test_no_pool_takes_less_than_the_load(seed, fit, from_default_pool):
    operations = stream(random_trace(seed, kernels=16), 8)
    fallback = DefaultPool(first_chunk_bytes=0) if from_default_pool else None
    load = peak_load_bytes(operations)
    for pool in (small_pool(fit=fit, fallback=fallback), DefaultPool(first_chunk_bytes=0), DriverMemory()):
        assert largest_footprint_bytes(pool, operations) >= load


def renumbered(operations, first):
    return [type(entry)(entry.kind, entry.block + first, entry.size_bytes) for entry in operations]


def test_smart_pool_leaves_its_plan_when_training_changes_and_makes_another():
    first, second = chain(8, activation_bytes=MIB), chain(6, activation_bytes=3 * MIB)
    pool = small_pool()
    largest_footprint_bytes(pool, stream(first, 8))
    old = pool.plan
    operations = renumbered(stream(second, 10), 1_000_000)
    for operation in operations[:10]:
        pool.allocate(operation.block, operation.size_bytes)
    assert pool.plan is None
    for operation in operations[10:]:
        if operation.kind == "allocate":
            pool.allocate(operation.block, operation.size_bytes)
        else:
            pool.free(operation.block)
    assert pool.plan is not None
    assert pool.plan.length != old.length
    # Beside the new plan there are the weights of both, and the old region is gone.
    weights = (8 + 6) * 256 * KIB
    assert pool.footprint_bytes == pool.plan.footprint_bytes + weights


def test_a_region_without_blocks_goes_back_as_soon_as_the_plan_is_left():
    pool = small_pool()
    largest_footprint_bytes(pool, stream(chain(8, activation_bytes=MIB), 8))
    weights = pool.footprint_bytes - pool.plan.footprint_bytes
    pool.allocate(1_000_000, KIB)
    assert pool.plan is None
    assert pool.footprint_bytes == weights + KIB


def test_reduction_is_the_share_that_a_pool_does_without():
    assert PoolUse("smart", 10, 30).reduction(PoolUse("default", 10, 40)) == 0.25
    assert PoolUse("smart", 0, 0).reduction(PoolUse("default", 0, 0)) == 0


def test_comparison_names_load_and_footprint_of_every_pool():
    trace = chain(8, activation_bytes=100 * MIB, weight_bytes=MIB)
    found = {use.pool: use for use in compare_pools(trace)}
    assert list(found) == ["default pool", "caching pool", "SmartPool, best fit", "SmartPool, first fit"]
    assert {use.load_bytes for use in found.values()} == {peak_live_bytes(trace)}
    assert all(use.ratio >= 1 for use in found.values())
    assert found["default pool"].footprint_bytes % 512 == 0
    smart = found["SmartPool, best fit"]
    assert smart.ratio == pytest.approx(smart.footprint_bytes / smart.load_bytes)
