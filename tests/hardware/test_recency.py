"""Eviction order: arrivals at the recent end, takers at the oldest, scans that only go forward."""

from collections import Counter
from itertools import count as count_from

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from g10sim.errors import InvariantError
from g10sim.hardware.recency import MERGE_PAGES, Recency
from g10sim.hardware.runs import Run


def drain(recency):
    """Take everything, oldest first, as (tensor, pages) with neighbours of a tensor joined."""
    order = []
    while (run := recency.oldest()) is not None:
        if order and order[-1][0] == run.tensor:
            order[-1] = (run.tensor, order[-1][1] + run.count)
        else:
            order.append((run.tensor, run.count))
        run.count = 0
    return order


def filled(*arrivals, tensors=10):
    recency = Recency(tensors)
    for tensor, count in arrivals:
        recency.append(tensor, count)
    return recency


def test_pages_leave_in_the_order_of_arrival():
    many = MERGE_PAGES + 1
    recency = filled((0, many), (1, many), (0, many), (2, 5))
    assert drain(recency) == [(0, many), (1, many), (0, many), (2, 5)]
    assert recency.oldest() is None


def test_arrival_joins_the_last_run_of_its_tensor_without_limit():
    recency = filled((3, 5), (3, 10 * MERGE_PAGES))
    assert recency.oldest().count == 5 + 10 * MERGE_PAGES


def test_interleaved_arrivals_join_up_to_the_merge_bound():
    recency = filled(*[(0, 1), (1, 1)] * 10_000)
    runs = drain(recency)
    assert max(count for _, count in runs) <= MERGE_PAGES
    assert len(runs) <= 2 * -(-10_000 // MERGE_PAGES) + 2


def test_arrival_does_not_join_across_more_than_the_merge_bound():
    first = [(9, 1), (0, 1)]
    far = [(1, MERGE_PAGES + 1), (0, 1)]
    assert drain(filled(*first, *far)) == [*first, *far]
    assert drain(filled(*first, (1, MERGE_PAGES), (0, 1))) == [(9, 1), (0, 2), (1, MERGE_PAGES)]


def test_arrival_joins_the_oldest_run_only_when_there_is_no_other():
    assert drain(filled((0, 1), (1, 1), (0, 1))) == [(0, 1), (1, 1), (0, 1)]
    # Pages that push out others of their tensor must not come next again: the order has to turn.
    recency = filled((0, 3), (1, 1))
    left = []
    for _ in range(4):
        victim = recency.oldest()
        recency.append(0, 1)
        victim.count -= 1
        left.append(victim.tensor)
    assert left == [0, 0, 0, 1]


def test_arrival_does_not_join_a_run_that_was_used_up():
    recency = filled((0, 4), (1, 1))
    recency.oldest().count = 0
    recency.append(0, 2)
    assert drain(recency) == [(1, 1), (0, 2)]


def test_partly_taken_run_stays_the_oldest():
    recency = filled((0, 4), (1, 4))
    recency.oldest().count -= 3
    assert (recency.oldest().tensor, recency.oldest().count) == (0, 1)


def test_removal_takes_every_page_of_one_tensor():
    recency = filled((0, 4), (1, 4), (0, 9000), (2, 1))
    recency.remove(0)
    assert recency.pages(0) == 0
    assert recency.oldest_of(0) is None
    assert drain(recency) == [(1, 4), (2, 1)]


def test_retired_pages_are_the_oldest_of_all_jobs():
    clock = count_from()
    one, other = Recency(2, clock), Recency(1, clock)
    other.append(0, 3)
    one.append(0, 4)
    one.append(1, 5)
    one.retire(1)
    assert one.oldest().tensor == 1
    assert one.oldest().stamp < other.oldest().stamp
    assert drain(one) == [(1, 5), (0, 4)]


def test_oldest_outside_skips_tensors_and_can_come_back_to_them():
    recency = filled((0, 1), (1, 1), (2, 1))
    assert recency.oldest_outside({0, 1}).tensor == 2
    assert recency.oldest_outside({1}).tensor == 0
    assert recency.oldest_outside({0, 1, 2}) is None


def test_oldest_of_one_tensor_follows_arrival():
    recency = filled((0, MERGE_PAGES + 1), (1, MERGE_PAGES + 1), (0, 7))
    first = recency.oldest_of(0)
    assert first.count == MERGE_PAGES + 1
    first.count = 0
    assert recency.oldest_of(0).count == 7


def test_scan_only_goes_forward():
    recency = filled((0, 1), (1, 1), (2, 1))
    recency.restart_scan()
    assert recency.scan_outside({0}).tensor == 1
    recency.scan_outside({0}).count = 0
    assert recency.scan_outside(set()).tensor == 2
    recency.restart_scan()
    assert recency.scan_outside(set()).tensor == 0


def test_scan_reaches_arrivals_until_it_ends():
    recency = filled((0, 1))
    recency.restart_scan()
    recency.scan_outside(set()).count = 0
    recency.append(1, 1)
    assert recency.scan_outside(set()).tensor == 1


def test_scan_past_the_end_waits_for_the_next_scan():
    recency = filled((0, 1))
    recency.restart_scan()
    assert recency.scan_outside({0}) is None
    recency.append(1, 1)
    assert recency.scan_outside({0}) is None
    recency.restart_scan()
    assert recency.scan_outside({0}).tensor == 1


def test_no_scan_goes_on_once_other_tensors_are_protected():
    recency = filled((0, 1), (1, 1))
    assert recency.scan_outside({0}).tensor == 1
    recency.end_scan()
    with pytest.raises(InvariantError, match="a scan of the eviction order goes on"):
        recency.scan_outside({1})
    recency.restart_scan()
    assert recency.scan_outside({1}).tensor == 0


def test_arrival_never_joins_the_run_under_the_scan():
    recency = filled((0, 1), (1, 1))
    recency.restart_scan()
    scanned = recency.scan_outside({0})
    recency.append(1, 5)
    assert scanned.count == 1
    assert recency.pages(1) == 6


def test_scan_keeps_its_place_when_old_runs_are_forgotten():
    pages = MERGE_PAGES + 1
    recency = filled(*[(i % 3, pages) for i in range(20_000)], tensors=4)
    recency.append(3, 1)
    recency.restart_scan()
    assert recency.scan_outside({0, 1, 2}).tensor == 3
    use_up_oldest(recency, 15_000)
    assert recency.scan_outside({0, 1, 2}).tensor == 3


@pytest.mark.parametrize("reached", [14_000, 0])
def test_scan_goes_on_behind_its_place_or_at_the_oldest_when_old_runs_are_forgotten(reached):
    pages = MERGE_PAGES + 1
    recency = filled(*[(3 if i == reached else i % 3, pages) for i in range(20_000)])
    recency.restart_scan()
    recency.scan_outside({0, 1, 2}).count = 0
    use_up_oldest(recency, 10_001 if reached else 10_000)
    # Run 14,001 is of tensor 0; the oldest is run 10,001, of tensor 2.
    found = recency.scan_outside(set())
    assert found.tensor == (0 if reached else 2)
    assert (found is recency.oldest()) == (not reached)


def test_a_scan_among_runs_that_are_kept_stays_where_it_is_when_others_are_forgotten():
    recency = Recency(200)
    for tensor in range(70):
        recency.append(tensor, 1)
    recency.restart_scan()
    scanned = recency.scan_outside(range(30))
    assert scanned.tensor == 30
    scanned.count = 0
    for tensor in range(5, 65, 2):
        recency.remove(tensor)
    for tensor in range(70, 170):
        recency.append(tensor, 1)
    assert recency.scan_outside(()).tensor == 32


def use_up_oldest(recency, runs):
    for _ in range(runs):
        recency.oldest().count = 0
    assert recency.oldest() is not None


@pytest.mark.interpreted
def test_pages_that_stay_do_not_keep_what_came_and_went_after_them(monkeypatch):
    recency = filled((0, 1))
    looked_at = 0

    class Counted(Run):
        """A run that says how often somebody looks at its pages."""

        def __getattribute__(self, name):
            nonlocal looked_at
            looked_at += name == "count"
            return super().__getattribute__(name)

    monkeypatch.setattr("g10sim.hardware.recency.Run", Counted)
    for _ in range(1000):
        recency.append(1, 1)
        recency.append(2, 1)
        recency.remove(1)
        recency.remove(2)
    recency.append(3, 1)
    looked_at = 0
    assert recency.oldest_outside({0}).tensor == 3
    assert looked_at < 100


@given(
    st.lists(st.tuples(st.sampled_from(["append", "take", "remove"]), st.integers(0, 3), st.integers(1, 50)))
)
def test_pages_are_neither_lost_nor_made(operations):
    recency, pages = Recency(4), Counter()
    for operation, tensor, count in operations:
        if operation == "append":
            recency.append(tensor, count)
            pages[tensor] += count
        elif operation == "remove":
            recency.remove(tensor)
            pages[tensor] = 0
        elif (run := recency.oldest()) is not None:
            taken = min(run.count, count)
            run.count -= taken
            pages[run.tensor] -= taken
    assert [recency.pages(tensor) for tensor in range(4)] == [pages[tensor] for tensor in range(4)]
    total = Counter()
    for tensor, count in drain(recency):
        total[tensor] += count
    assert total == +pages


def test_what_is_retired_while_a_scan_goes_on_does_not_turn_it_back():
    recency = filled((1, 1), (2, 1), (3, 1), (4, 1))
    recency.restart_scan()
    recency.scan_outside({1, 2}).count = 0
    recency.retire(4)
    assert recency.scan_outside({1}) is None
    assert recency.oldest().tensor == 4


def test_what_is_retired_comes_before_a_scan_that_began_at_a_run_now_empty():
    recency = filled((1, 1), (2, 1), (3, 1))
    recency.restart_scan()
    recency.oldest().count = 0
    assert recency.oldest().tensor == 2
    recency.retire(3)
    assert recency.scan_outside(set()).tensor == 2
    assert recency.oldest().tensor == 3


def test_stamps_tell_the_age_of_runs_of_jobs_that_share_a_memory():
    clock = count_from(0)
    one, other = Recency(2, clock), Recency(2, clock)
    for recency, tensor in ((one, 0), (other, 0), (one, 1), (other, 1)):
        recency.append(tensor, 1)
    runs = [one.oldest_of(0), other.oldest_of(0), one.oldest_of(1), other.oldest_of(1)]
    assert [run.stamp for run in runs] == [0, 1, 2, 3]


changes = st.one_of(
    st.tuples(st.just("append"), st.integers(0, 5), st.sampled_from([1, 3, MERGE_PAGES])),
    st.tuples(st.sampled_from(["take", "scan"]), st.sets(st.integers(0, 5), max_size=4), st.integers(1, 5)),
    st.tuples(st.sampled_from(["remove", "retire"]), st.integers(0, 5), st.just(0)),
    st.tuples(st.just("restart"), st.just(0), st.just(0)),
)


def changed(recency, operation, what, pages):
    """Carry out one change; return what it took, if anything."""
    if operation == "append":
        recency.append(what, pages)
    elif operation in ("remove", "retire"):
        getattr(recency, operation)(what)
    elif operation == "restart":
        recency.restart_scan()
    else:
        run = recency.oldest() if operation == "take" else recency.scan_outside(what)
        if run is not None:
            run.count -= min(run.count, pages)
            return run.tensor, run.count
    return None


@settings(max_examples=200)
@given(st.lists(changes, min_size=20, max_size=80))
def test_forgetting_empty_runs_changes_no_order(operations):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("g10sim.hardware.recency._COMPACT_AT", 6)
        forgetful, other = Recency(6), Recency(6)
        other._compact_at = 10**9
        for operation in operations:
            assert changed(forgetful, *operation) == changed(other, *operation)
    assert drain(forgetful) == drain(other)


@settings(max_examples=50)
@given(st.lists(changes | st.tuples(st.just("renew"), st.integers(0, 5), st.just(0)), max_size=30))
def test_a_tensor_that_is_used_comes_as_if_it_had_gone_and_arrived_again(operations):
    renewed, other = Recency(6), Recency(6)
    for operation, what, pages in operations:
        if operation != "renew":
            assert changed(renewed, operation, what, pages) == changed(other, operation, what, pages)
        elif count := other.pages(what):
            renewed.renew([(what, count)])
            other.remove(what)
            other.append(what, count)
    assert drain(renewed) == drain(other)


CHUNKS = [[range(5)], [range(2), range(2, 6)], [range(1, 3)]]
with_chunks = st.one_of(
    changes,
    st.tuples(
        st.just("arrive"), st.lists(st.integers(0, 5), min_size=1, max_size=3, unique=True), st.just(2)
    ),
    st.tuples(st.sampled_from(["renew", "oldest_of"]), st.integers(0, 5), st.just(0)),
    st.tuples(st.just("take_of"), st.integers(0, 5), st.integers(1, 3)),
    st.tuples(st.just("ahead"), st.sets(st.integers(0, 5), max_size=4), st.just(0)),
)


class Twins:
    """An order that knows chunks, and one that is told of every tensor that comes along."""

    def __init__(self, chunks, merge_pages):
        self.along = {one: [other for other in chunk if other != one] for chunk in chunks for one in chunk}
        self.recencies = self.together, self.one_by_one = Recency(6), Recency(6)
        self.together.join_chunks(chunks)
        self.together.merge_pages = self.one_by_one.merge_pages = merge_pages

    def both(self, method, *arguments):
        found = [getattr(recency, method)(*arguments) for recency in self.recencies]
        assert found[0] == found[1]

    def arrive(self, tensors, pages):
        for tensor in tensors:
            self.both("append", tensor, pages)
        idle = [self.one_by_one.pages(tensor) for tensor in range(6)]
        along = dict.fromkeys(other for tensor in tensors for other in self.along.get(tensor, ()))
        self.one_by_one.renew([(tensor, idle[tensor]) for tensor in along if idle[tensor]])
        self.together.renew_around([tensor for tensor in tensors if tensor in self.along], idle)

    def renew(self, tensor, _):
        count = self.one_by_one.pages(tensor)
        self.both("renew", [(tensor, count)] if count else [])

    def take_of(self, tensor, pages):
        self.both("take", tensor, min(pages, self.one_by_one.pages(tensor)))

    def oldest_of(self, tensor, _):
        runs = [recency.oldest_of(tensor) for recency in self.recencies]
        assert len({run and (run.tensor, run.count) for run in runs}) == 1

    def ahead(self, tensors, _):
        found = [[(run.tensor, run.count) for run in one.oldest_ahead(tensors)] for one in self.recencies]
        assert found[0] == found[1]


@settings(max_examples=300)
@given(st.sampled_from(CHUNKS), st.lists(with_chunks, min_size=5, max_size=60), st.sampled_from([3, 4096]))
def test_chunks_come_as_if_each_tensor_of_them_came_by_itself(chunks, operations, merge_pages):
    twins = Twins(chunks, merge_pages)
    for operation, what, pages in operations:
        if hasattr(twins, operation):
            getattr(twins, operation)(what, pages)
        else:
            one, other = (changed(recency, operation, what, pages) for recency in twins.recencies)
            assert one == other
        twins.both("order")
        twins.both("latest")
        for tensor in range(6):
            twins.both("pages", tensor)


def test_a_scan_keeps_its_place_when_a_group_before_it_is_parted():
    recency = Recency(5)
    recency.join_chunks([range(3)])
    for tensor in range(3):
        recency.append(tensor, 2)
    recency.renew_around([0], [2, 2, 2, 0, 0])
    for tensor in (3, 4):
        recency.append(tensor, 2)
    recency.restart_scan()
    scanned = recency.scan_outside({0, 1, 2})
    assert scanned.tensor == 3
    assert recency.oldest_of(1).count == 2
    scanned.count = 0
    assert recency.scan_outside(()).tensor == 4


def test_one_looks_ahead_at_64_runs():
    recency = filled(*((tensor, 1) for tensor in range(70)), tensors=70)
    assert [run.tensor for run in recency.oldest_ahead({5})] == [*range(5), *range(6, 64)]
    few = filled((0, 1), (1, 1), (2, 1))
    assert [run.tensor for run in few.oldest_ahead(())] == [0, 1]  # the latest may still grow


def test_what_is_left_of_a_group_has_no_rate_of_its_own():
    recency = Recency(6)
    recency.join_chunks([range(6)])
    for tensor in range(6):
        recency.append(tensor, 2)
    for arrived in (0, 1, 2):
        recency.renew_around([arrived], [2] * 6)
    while (run := recency.oldest()) is not None:
        assert (run.count, run.rate) == (2, 0)
        run.count = 0


@given(
    st.lists(changes, max_size=12),
    st.sampled_from([(2, range(2, 3)), (0, range(2)), (3, range(2, 4)), (2, range(1, 4)), (5, range(3, 6))]),
    st.integers(1, 40),
)
def test_pages_that_may_arrive_at_once_come_as_if_one_by_one(operations, case, pages):
    tensor, chunk = case
    at_once, one_by_one = Recency(6), Recency(6)
    for recency in (at_once, one_by_one):
        recency.join_chunks([chunk] if len(chunk) > 1 else [])
        recency.merge_pages = 25
        for operation, what, count in operations:
            changed(recency, operation, what, count)

    def arrive(recency, count):
        recency.append(tensor, count)
        if len(chunk) > 1:
            recency.renew_around([tensor], [recency.pages(other) for other in range(6)])

    arrive(at_once, 1)
    arrive(one_by_one, 1)
    pages = min(pages, at_once.merging(tensor))
    if pages:
        arrive(at_once, pages)
        for _ in range(pages):
            arrive(one_by_one, 1)
    assert drain(at_once) == drain(one_by_one)


def test_what_arrives_behind_other_tensors_merges_up_to_the_bound():
    recency = filled((9, 1), (0, 5), (1, 3))
    assert recency.merging(0) == MERGE_PAGES - 5
    assert recency.merging(1) > MERGE_PAGES
    assert recency.merging(9) == 0  # the oldest run takes nothing in
    recency.join_chunks([range(2)])
    assert recency.merging(0) > MERGE_PAGES


@given(
    st.lists(
        st.tuples(st.sampled_from(["append", "take", "renew", "retire"]), st.integers(0, 5)), max_size=80
    ),
    st.lists(st.frozensets(st.integers(0, 5), max_size=4), min_size=1, max_size=4),
)
def test_the_oldest_outside_is_the_first_in_the_order_however_often_it_is_asked_for(steps, asked):
    order = Recency(6)
    order.join_chunks([range(3)])
    for number, (kind, tensor) in enumerate(steps):
        pages = order.pages(tensor)
        if kind == "append":
            order.append(tensor, MERGE_PAGES)
        elif kind == "take" and pages:
            order.take(tensor, 1 + pages // 2)
        elif kind == "renew" and tensor < 3:
            order.renew_around([tensor], [order.pages(one) for one in range(6)])
        elif kind == "retire":
            order.retire(tensor)
        spared = asked[number % len(asked)]
        left = [one for one in order.order()[::2] if one not in spared]
        found = order.oldest_outside(spared)
        assert (None if found is None else found.tensor) == (left[0] if left else None)
