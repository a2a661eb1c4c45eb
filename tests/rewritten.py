"""Directories of results with other contents, described as if a run had written them."""

import json

import pyarrow as pa

from g10sim.files import file_hash, sealed
from g10sim.results.reading import PROVENANCE, RESULTS, read_provenance
from g10sim.results.written import write_keyed


def rewrite(directory, results, **tables):
    """Replace the rows of results, and whole tables."""
    keys = {str(cell): f"{cell:064x}" for cell in results["cell"].unique()}
    results.to_csv(directory / RESULTS, index=False)
    files = {RESULTS: file_hash(directory / RESULTS)}
    for name, table in tables.items():
        path = directory / f"{name}.parquet"
        write_keyed(pa.Table.from_pandas(table, preserve_index=False), keys, path)
        files[path.name] = file_hash(path)
    cells = [{"cell": int(cell), "key": key} for cell, key in keys.items()]
    describe(directory, cells=cells, files=read_provenance(directory)["files"] | files)


def describe(directory, **changes):
    """Change entries of ``provenance.json``."""
    document = sealed({**read_provenance(directory), **changes})
    (directory / PROVENANCE).write_text(json.dumps(document))
