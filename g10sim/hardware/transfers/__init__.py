"""Transfers behind one interface: in DMA batches, or as flows."""
