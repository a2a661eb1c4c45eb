"""Designs: a file or a folder each, which registers itself."""
