"""Trace model, file format and checks."""
