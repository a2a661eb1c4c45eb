"""Planning of TENSILE: swaps and recomputations that lower the memory peak of jobs that share a GPU.

Zhang et al., TENSILE: A Tensor Granularity Dynamic GPU Memory Scheduling Method Towards Multiple Dynamic
Workloads System, IEEE TKDE 2022 (arXiv 2105.13336), and the authors' program (GIS-PuppetMaster/TENSILE).
"""
