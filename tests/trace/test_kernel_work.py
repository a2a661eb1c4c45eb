"""Sizes of a kernel's work, counted by hand."""

import pytest

from g10sim.trace.work import attended_pairs, rows_alignment


@pytest.mark.parametrize(
    ("matrices", "alignment"),
    [
        ([((8, 8), (8, 1), 2)], 0),
        ([((8, 8), (8, 1), 2), ((8, 7), (7, 1), 2)], 2),
        ([((8, 6), (6, 1), 2)], 4),
        ([((8, 7), (1, 8), 2)], 0),  # transposed: its columns lie together
        ([((1, 7), (7, 1), 2)], 0),  # one row has no next one
        ([((7, 1), (1, 1), 2), ((7,), (1,), 2)], 0),
        ([((2, 4, 8), (36, 8, 1), 2)], 0),  # how matrices of a batch lie does not count
    ],
)
def test_rows_of_a_product_are_aligned_as_its_worst_matrix(matrices, alignment):
    assert rows_alignment(matrices) == alignment


@pytest.mark.parametrize(
    ("length", "keys", "causal", "pairs"),
    [(4, 4, False, 16), (4, 4, True, 10), (4, 2, True, 7), (2, 4, True, 3)],
)
def test_pairs_after_the_diagonal_are_skipped_by_causal_attention_alone(length, keys, causal, pairs):
    assert attended_pairs(length, keys, causal=causal) == pairs
