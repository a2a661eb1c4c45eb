"""The commands of g10sim."""
