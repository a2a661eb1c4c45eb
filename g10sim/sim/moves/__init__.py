"""Moves that policies ask for, checked and set going."""
