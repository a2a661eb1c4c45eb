"""The engine: the only place where processes of the simulation are written."""

IS_COMPILED = __file__.endswith(".so")
"""True if this folder and ``g10sim/hardware`` were compiled when g10sim was installed."""
