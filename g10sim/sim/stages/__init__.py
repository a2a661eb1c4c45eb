"""Stages of a kernel on the GPU."""
