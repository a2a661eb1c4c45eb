"""Cycle-level simulation of one unified memory made of GPU HBM, host DRAM and flash."""
