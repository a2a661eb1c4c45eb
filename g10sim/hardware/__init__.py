"""Models of memory, links, faults and transfers."""
