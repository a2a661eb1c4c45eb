"""Layer-wise offloading: layers of a trace, what they offload, when it is prefetched."""
