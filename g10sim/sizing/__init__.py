"""Sizing: the least of one resource of a machine with which a policy reaches a share of the ideal."""
