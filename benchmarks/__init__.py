"""Speed and memory of the simulator itself: ``python -m benchmarks --help``."""
