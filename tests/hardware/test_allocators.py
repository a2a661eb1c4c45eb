"""Allocators of contiguous memory: where blocks go, and that nothing is lost or given twice."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from g10sim.config.allocator import CachingPoolSpec
from g10sim.errors import InvariantError
from g10sim.hardware.gpu_memory.allocators.caching import CachingPool
from g10sim.hardware.gpu_memory.allocators.space import ContiguousSpace
from g10sim.hardware.gpu_memory.placement import (
    Block,
    Holes,
    PlannedAddresses,
    best_fit,
    first_fit_left,
    first_fit_right,
    last_hole_right,
    worst_fit,
)
from g10sim.hardware.pools import Frames

RULES = [first_fit_left, first_fit_right, best_fit, worst_fit, last_hole_right]
MIB = 2**20


def space_with_holes():
    """Blocks of 100 pages in which 10 to 19, 30 to 34, 50 to 54 and 80 to 99 are free."""
    space = ContiguousSpace(100)
    for owner, (start, end) in enumerate(
        [(0, 10), (10, 20), (20, 30), (30, 35), (35, 50), (50, 55), (55, 80)]
    ):
        assert space.allocate(owner, end - start, first_fit_left)
        assert space.blocks[owner].start == start
    for owner in (1, 3, 5):
        space.release(owner)
    return space


@pytest.mark.parametrize(
    ("rule", "pages", "start"),
    [
        (first_fit_left, 5, 10),
        (first_fit_right, 5, 95),
        (best_fit, 5, 30),  # of two holes of 5 the lower
        (best_fit, 6, 10),
        (best_fit, 11, 80),
        (worst_fit, 1, 80),
        (last_hole_right, 5, 95),
        (best_fit, 21, None),
        (worst_fit, 21, None),
        (last_hole_right, 21, None),
    ],
)
def test_where_a_block_goes(rule, pages, start):
    assert rule(space_with_holes().holes, pages) == start


def test_the_last_hole_is_the_only_one_tried():
    space = space_with_holes()
    space.allocate(7, 18, last_hole_right)
    assert last_hole_right(space.holes, 5) is None
    assert best_fit(space.holes, 5) == 30


def test_best_fit_may_fail_in_a_larger_memory():
    """Scenario of the vDNN++ authors: a pool of 9 units is enough, those of 10 to 13 are not."""

    def last_fits(capacity):
        space = ContiguousSpace(capacity)
        for owner, pages in enumerate((5, 2, 1)):
            space.allocate(owner, pages, best_fit)
        space.release(1)
        space.allocate(3, 1, best_fit)
        space.release(0)
        space.release(2)
        return space.allocate(4, 8, best_fit)

    assert [last_fits(capacity) for capacity in range(8, 15)] == [False, True, *[False] * 4, True]


def test_reserved_is_every_page_that_was_ever_covered():
    space = ContiguousSpace(100)
    space.allocate(0, 10, first_fit_left)
    space.allocate(1, 20, first_fit_right)
    space.release(0)
    space.allocate(2, 5, first_fit_left)
    assert space.used_pages == 25
    assert space.reserved_pages == 30
    space.restart()
    assert space.reserved_pages == 25
    space.allocate(3, 10, first_fit_left)
    assert space.reserved_pages == 35


def test_planned_addresses_are_used_in_turn_and_otherwise_the_fallback():
    rule = PlannedAddresses([20, 40], first_fit_right)
    space = ContiguousSpace(100)
    starts = []
    for _ in range(3):
        space.allocate(0, 10, rule)
        starts.append(space.blocks[0].start)
        space.release(0)
    assert starts == [20, 40, 20]
    rule.restart()
    space.allocate(1, 1, PlannedAddresses([25], None))
    space.allocate(0, 10, rule)
    assert space.blocks[0].start == 90
    assert PlannedAddresses([20], None)(space.holes, 10) is None
    three = PlannedAddresses([0, 50, 70], None)
    assert [three(space.holes, 10) for _ in range(4)] == [0, 50, 70, 0]


def test_jobs_may_fill_a_memory_to_the_last_page():
    frames = Frames(30)
    one, other = ContiguousSpace(30, frames), ContiguousSpace(30, frames)
    one.allocate(0, 20, first_fit_left)
    other.allocate(0, 10, first_fit_left)
    one.check()
    other.check()


STEPS = st.lists(st.tuples(st.integers(0, 12), st.integers(1, 40), st.sampled_from(RULES)), max_size=60)


@given(st.integers(1, 120), STEPS)
def test_blocks_and_holes_tile_the_memory_whatever_the_rule(capacity, steps):
    space, pages_of, covered_ever = ContiguousSpace(capacity), {}, set()
    for owner, pages, rule in steps:
        if owner in pages_of:
            space.release(owner)
            del pages_of[owner]
        elif space.allocate(owner, pages, rule):
            pages_of[owner] = pages
        else:
            last = list(space.holes)[-1:] if rule is last_hole_right else list(space.holes)
            assert all(hole.pages < pages for hole in last)
        space.check()
        covered = [page for block in space.blocks.values() for page in range(block.start, block.end)]
        covered_ever.update(covered)
        assert len(covered) == len(set(covered)), "blocks overlap"
        free = sorted(set(range(capacity)) - set(covered))
        assert [page for hole in space.holes for page in range(hole.start, hole.end)] == free
        assert len(space.holes) == sum(page - 1 not in free for page in free), "neighbouring holes"
        assert {owner: block.pages for owner, block in space.blocks.items()} == pages_of
        assert space.reserved_pages == len(covered_ever)
    for owner in list(pages_of):
        space.release(owner)
    assert list(space.holes) == ([Block(0, capacity)])


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(1, 30)), max_size=20))
def test_cutting_takes_exactly_what_is_free(cuts):
    holes, free = Holes(64), set(range(64))
    for start, pages in cuts:
        wanted = set(range(start, start + pages))
        assert holes.cut(Block(start, pages)) == len(wanted & free)
        free -= wanted
        assert {page for hole in holes for page in range(hole.start, hole.end)} == free


def pool(capacity="100 MiB", page=512, **changes):
    spec = CachingPoolSpec(**changes)
    return CachingPool(int(capacity.split()[0]) * MIB // page, page, spec)


def pages(size_bytes, page=512):
    return -(-size_bytes // page)


def test_small_requests_share_a_small_chunk_and_large_ones_a_large_one():
    caching = pool()
    caching.allocate(0, pages(1000), best_fit)
    assert caching.reserved_pages == pages(2 * MIB)
    caching.allocate(1, pages(600_000), best_fit)
    assert caching.reserved_pages == pages(2 * MIB)
    caching.allocate(2, pages(3 * MIB), best_fit)
    assert caching.reserved_pages == pages(22 * MIB)
    caching.allocate(3, pages(11 * MIB), best_fit)
    # 11 MiB fit into what is left of the chunk of 20.
    assert caching.reserved_pages == pages(22 * MIB)
    caching.allocate(4, pages(15 * MIB + 1), best_fit)
    assert caching.reserved_pages == pages((22 + 16) * MIB)
    caching.check()


def test_the_largest_request_is_one_for_which_a_chunk_is_left():
    sizes = {"large_limit": "10 MiB", "large_chunk": "10 MiB", "chunk_rounding": "8 MiB"}
    caching = pool("13 MiB", **sizes)
    # From 10 MiB on requests get chunks of multiples of 8 MiB, and a second one has no room.
    assert caching.largest_hole_pages == pages(10 * MIB) - 1
    assert not caching.allocate(0, pages(10 * MIB), best_fit)
    assert caching.allocate(0, caching.largest_hole_pages, best_fit)
    # Of 1 MiB or less requests share chunks of 2 MiB.
    holes = {"1 MiB": 0, "2 MiB": 1, "9 MiB": 1, "10 MiB": 10, "16 MiB": 16}
    for capacity, largest in holes.items():
        pages_short = 1 if largest == 10 else 0
        assert pool(capacity, **sizes).largest_hole_pages == pages(largest * MIB) - pages_short


def test_a_rest_that_is_too_small_stays_with_the_block():
    caching = pool()
    caching.allocate(0, pages(39 * MIB // 2), best_fit)
    # A chunk for 19.5 MiB is of 20 MiB, whose rest is less than 1 MiB.
    assert caching.blocks[0].pages == pages(20 * MIB)
    assert caching.used_pages == pages(39 * MIB // 2)
    assert caching.free_pages == pages(80 * MIB)


def test_freed_chunks_are_kept_until_memory_runs_out():
    caching = pool()
    for owner in range(5):
        assert caching.allocate(owner, pages(20 * MIB), best_fit)
    assert not caching.allocate(9, pages(20 * MIB), best_fit)
    for owner in range(3):
        caching.release(owner)
    assert caching.largest_hole_pages == pages(60 * MIB)
    assert caching.allocate(9, pages(60 * MIB), best_fit)
    caching.check()
    # Chunks at different addresses do not join: without giving them back there is no room.
    stubborn = pool(returns_chunks=False)
    for owner in range(5):
        stubborn.allocate(owner, pages(20 * MIB), best_fit)
    for owner in range(3):
        stubborn.release(owner)
    assert stubborn.largest_hole_pages == pages(20 * MIB)
    assert not stubborn.allocate(9, pages(60 * MIB), best_fit)


def test_an_owner_has_one_block():
    caching = pool()
    caching.allocate(0, 3, best_fit)
    with pytest.raises(InvariantError, match="owner 0 has a block already"):
        caching.allocate(0, 1, best_fit)


SMALL_POOL = CachingPoolSpec(
    rounding="2 B",
    small_limit="4 B",
    small_chunk="8 B",
    large_limit="20 B",
    large_chunk="24 B",
    chunk_rounding="10 B",
    least_small_rest="2 B",
    least_large_rest="4 B",
)


@given(st.integers(1, 200), STEPS, st.booleans())
def test_a_caching_pool_loses_nothing(capacity, steps, returns):
    spec = SMALL_POOL.model_copy(update={"returns_chunks": returns})
    caching, pages_of = CachingPool(capacity, 1, spec), {}
    for owner, size, rule in steps:
        if owner in pages_of:
            caching.release(owner)
            del pages_of[owner]
        else:
            promised = caching.largest_hole_pages
            if caching.allocate(owner, size, rule):
                pages_of[owner] = size
                assert size <= promised
        caching.check()
        assert caching.used_pages == sum(pages_of.values())
        assert all(caching.blocks[owner].pages >= size for owner, size in pages_of.items())
        assert caching.used_pages <= capacity - caching.free_pages <= caching.reserved_pages <= capacity
    promised = caching.largest_hole_pages
    if promised:
        assert caching.allocate(99, promised, best_fit)
        caching.release(99)
    for owner in list(pages_of):
        caching.release(owner)
    caching.check()
    assert (caching.used_pages, caching.free_pages) == (0, capacity)


def test_chunks_at_other_addresses_lie_alike_where_blocks_do():
    caching, layouts = CachingPool(100, 1, SMALL_POOL), []
    for sizes in ((2, 8, 10), (2, 8, 10), (2, 10, 8), (4, 8, 10)):
        for owner, size in enumerate(sizes):
            assert caching.allocate(owner, size, best_fit)
        layouts.append(caching.layout())
        for owner in range(3):
            caching.release(owner)
        caching.give_back_chunks()
    assert layouts[0] == layouts[1]
    assert layouts[2] != layouts[0] != layouts[3]


@pytest.mark.parametrize(("second", "largest"), [(12, 0), (10, 6)])
def test_what_a_large_chunk_has_left_is_of_no_use_to_small_requests(second, largest):
    caching = CachingPool(24, 1, SMALL_POOL)
    for owner, size in enumerate((8, second)):
        assert caching.allocate(owner, size, best_fit)
    # Requests of up to 4 pages need a chunk of 8, for which there is no room.
    assert caching.largest_hole_pages == largest
    assert not caching.allocate(2, 4, best_fit)


@pytest.mark.parametrize("key", ["small", "large"])
def test_chunks_hold_what_they_are_for(key):
    with pytest.raises(ValueError, match=f"{key}_chunk: found 1 kB; allowed: at least {key}_limit"):
        CachingPoolSpec(**{f"{key}_chunk": "1 kB"})


def test_the_check_of_a_caching_pool_finds_a_block_out_of_place():
    caching = pool()
    for owner in range(2):
        caching.allocate(owner, pages(3 * MIB), best_fit)
    caching.check()
    first = caching._blocks[0]
    caching._blocks[0] = Block(first.start + 1, first.pages)
    with pytest.raises(InvariantError, match="chunk at page 0"):
        caching.check()
