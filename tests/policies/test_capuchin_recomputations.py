"""Groups of recomputations do what going through all of them anew would do."""

from collections import defaultdict
from dataclasses import replace
from types import SimpleNamespace

from hypothesis import given, settings
from hypothesis import strategies as st

from g10sim.policies.designs.capuchin.recomputations import Recomputations
from g10sim.policies.planning.swapping.schedule import Recomputed

KERNELS = 12


@st.composite
def chosen_one_by_one(draw):
    """Sources of tensors, each made of earlier ones, and in any order recomputations and swaps of them."""
    count = draw(st.integers(1, 9))
    sources = [draw(st.sets(st.integers(0, tensor - 1))) if tensor else set() for tensor in range(count)]
    firsts = st.integers(1, KERNELS - 2)
    spans = firsts.flatmap(lambda first: st.tuples(st.just(first), st.integers(first + 1, KERNELS - 1)))
    steps = []
    for tensor in draw(st.permutations(range(count))):
        (first, last), swapped = draw(spans), draw(st.booleans())
        if swapped:
            steps.append(SimpleNamespace(tensor=tensor, evicted=first, use=last))
        (drop, use), extra = draw(spans), draw(st.integers(0, 3))
        steps.append((Recomputed(tensor, drop, use, extra), draw(st.integers(0, 5)) > 0))
    return sources, steps


def collective(entries, sources):
    """Bring forward what is made on the way to another tensor: each one is made again once."""
    found = {entry.tensor: entry for entry in entries}

    def restore(tensor, use):
        for source in sources[tensor]:
            other = found.get(source)
            if other is not None and other.drop <= use < other.use:
                found[source] = replace(other, use=use)
                restore(source, use)

    for entry in sorted(found.values(), key=lambda entry: (entry.use, entry.tensor)):
        restore(entry.tensor, entry.use)
    return list(found.values())


def levels(entries, sizes):
    """The bytes that recomputations add during each unit of time, a kernel takes 10."""
    found = defaultdict(int)
    for entry in entries:
        for time in range(10 * entry.drop, 10 * entry.use):
            found[time] -= sizes[entry.tensor]
        for time in range(10 * entry.use, 10 * entry.use + 10):
            found[time] += entry.extra_bytes
    return {time: size for time, size in found.items() if size}


@settings(max_examples=300, deadline=None)
@given(chosen_one_by_one())
def test_one_group_after_another_is_as_all_together(case):
    sources, steps = case
    sizes = [1 << tensor for tensor in range(len(sources))]
    accesses = SimpleNamespace(times=[10 * kernel for kernel in range(KERNELS + 1)], sizes=sizes)
    rules = SimpleNamespace(producer=lambda tensor, kernel: SimpleNamespace(inputs=sources[tensor]))
    found, before, away, counted = Recomputations(accesses, rules), [], [], defaultdict(int)
    for step in steps:
        if not isinstance(step, tuple):
            between = [entry for entry in before if step.tensor in sources[entry.tensor]]
            is_free = not any(step.evicted < entry.use < step.use for entry in between)
            assert found.allow(step) == is_free
            if is_free:
                found.note_swap(step)
                away.append(step)
            continue
        entry, is_kept = step
        after = collective([*before, entry], sources)
        reads_what_is_away = any(
            swap.evicted < other.use < swap.use and swap.tensor in sources[other.tensor]
            for other in after
            for swap in away
        )
        seen = []
        is_added = found.add(entry, lambda spans, to=seen, kept=is_kept: to.extend(spans) or kept)
        assert is_added == (is_kept and not reads_what_is_away)
        if is_added:
            before = after
            for start, end, size in seen:
                for time in range(start, end):
                    counted[time] += size
        assert found.entries() == before
        assert {time: size for time, size in counted.items() if size} == levels(before, sizes)
