"""Pure functions over a trace: lifetimes of tensors, and the memory they take over time."""
