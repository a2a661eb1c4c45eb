"""Offline decoding of a block of prompts layer by layer: cost in closed form, and a search for shares."""
