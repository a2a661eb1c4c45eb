"""An SSD of flash: what its array can do, where data lies on it, and how it wears."""
