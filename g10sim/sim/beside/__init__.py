"""Work that runs beside the kernels of a GPU."""
