"""Configuration: schema of a run, systems, behaviours, loading."""
