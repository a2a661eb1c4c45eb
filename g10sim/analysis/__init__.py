"""Pure functions over a trace: what its tensors do, how much memory that takes, and when."""
