"""Access sequences, memory peaks and moves for planners of swaps and recomputations."""
