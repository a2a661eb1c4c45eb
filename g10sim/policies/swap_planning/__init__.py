"""What planners of swaps and recomputations share: access sequences, channels, peaks of memory, moves."""
