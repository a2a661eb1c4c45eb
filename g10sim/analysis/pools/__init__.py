"""Memory pools seen from above: what a training job allocates and frees, and where blocks should lie."""
