"""From a run configuration to a directory of results: cells, workers, resume, validation."""
