"""The planner of AutoSwap: which tensors leave the GPU across the load peak, and when.

Zhang et al., Efficient Memory Management for GPU-based Deep Learning Systems (arXiv 1903.06631), with the
authors' code in the vd2 branch of incubator-singa (C++) and memInfoSwap (Python).
"""
