"""Accounts of a run: cycles, traffic, records, invariants, iterations."""
