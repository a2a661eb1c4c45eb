"""Work that runs next to the kernels of a GPU."""
