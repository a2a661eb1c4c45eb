import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'g10sim[capture]'")

from g10sim.capture.operators import CHUNK_ELEMENTS, MOST_BLOCKS, MOST_TENSORS, launches

pytestmark = pytest.mark.slow

_sizes = st.lists(
    st.one_of(st.integers(0, 100), st.integers(0, 40 * MOST_BLOCKS * CHUNK_ELEMENTS)), max_size=200
)


@given(sizes=_sizes, lists=st.integers(1, 5))
def test_every_element_is_worked_on_once_within_the_limits_of_a_launch(sizes, lists):
    done = [0] * len(sizes)
    for parts in launches(sizes, lists):
        assert len(parts) <= MOST_TENSORS[lists - 1]
        assert sum(-(-elements // CHUNK_ELEMENTS) for _, elements in parts) <= MOST_BLOCKS
        for position, elements in parts:
            done[position] += elements
    assert done == sizes


def test_small_tensors_are_cut_by_their_number():
    found = [len(parts) for parts in launches([1] * 100, 3)]
    assert found == [48, 48, 4]


def test_a_large_tensor_is_cut_by_its_chunks():
    whole = MOST_BLOCKS * CHUNK_ELEMENTS
    found = [[elements for _, elements in parts] for parts in launches([2 * whole + 5, 7], 2)]
    assert found == [[whole], [whole], [5, 7]]
