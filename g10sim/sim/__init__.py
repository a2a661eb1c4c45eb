"""The engine: the only place where processes of the simulation are written."""
