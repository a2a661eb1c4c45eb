"""Traces and plans in foreign formats."""
