"""Work that needs the data of papers' authors, or serves the pages alone: no part of the package."""
