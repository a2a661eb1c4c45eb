"""The order in which the published simulator goes through a kernel's tensors, by hand."""

from g10sim.policies.planning.hash_order import hash_order


def test_the_last_comes_first_and_equal_remainders_stand_together():
    assert hash_order((1, 2, 3)) == (3, 2, 1)
    # 14 is 1 modulo 13: it goes right before 1.
    assert hash_order((1, 2, 3, 14)) == (3, 2, 14, 1)
