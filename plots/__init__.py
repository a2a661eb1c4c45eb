"""Figures from results, and from nothing else: they never simulate and never read a trace.

``draw("fig11", "results/fig11")`` reads a directory of results. The function ``draw`` of every figure takes
DataFrames: ``g10sim.plots.fig11.draw(g10sim.read_results("results/fig11"))``.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from g10sim.errors import ConfigError, not_found
from g10sim.files import replacing, stamp, write_csv, writing
from g10sim.plots.registry import CHARTS, ENTRIES, Entry, find, paper_figures
from g10sim.results import reading
from g10sim.results.swept import differing_keys, rows_where, several_values

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

_METADATA = {"pdf": ("CreationDate", "Keywords"), "png": ("Software", "Description")}
"""Metadata of each format: left out, for the same bytes every time, and naming the cells that are shown."""

__all__ = ["chart", "draw", "drawable", "find", "pages", "results_of", "save", "save_chart", "save_pages"]


def __getattr__(name: str) -> Entry:
    if name not in ENTRIES:
        raise AttributeError(f"module 'g10sim.plots' has no attribute '{name}'")
    return ENTRIES[name]


def draw(
    name: str, directory: str | Path, *, cell: int | None = None, where: Mapping[str, str] | None = None
) -> Figure:
    """Draw a figure from a directory of results; of one of many traces the first page: see :func:`pages`."""
    return pages(name, directory, cell=cell, where=where)[0]


def pages(
    name: str, directory: str | Path, *, cell: int | None = None, where: Mapping[str, str] | None = None
) -> list[Figure]:
    """Draw a figure from a directory of results, on as many pages as its traces take.

    ``cell`` is the number of the cell to look at, for figures of one cell; without it the only one. ``where``
    chooses the cells that have these values in these columns. Raises ConfigError for an unknown figure, when
    the directory lacks what the figure needs, and where the figure would show one of several swept values.
    """
    entry = find(name)
    named: dict[str, Any] = {"cell": cell} if entry.of_one_cell else {}
    if cell is not None and not entry.of_one_cell:
        raise ConfigError(f"{name}: found a cell; allowed: none, it shows all cells of its experiment")
    if entry.of_sizing:
        return [entry.draw(*reading.read_sizing(directory))]
    results = rows_where(reading.read_results(directory), where or {})
    if not entry.of_one_cell:
        _check_sweeps(results, name, entry.sweeps)
    shown = {cell} if cell in results.attrs[reading.KEYS] else set(results["cell"])
    results.attrs[reading.MACHINE] = _machine(directory, results)
    tables = [reading.read_table(directory, table) for table in entry.tables]
    with _all_columns(directory, results):
        figures = entry.pages(results, *tables, **named)
    _sign(figures, results, shown)
    return figures


@contextmanager
def _all_columns(directory: str | Path, results: pd.DataFrame) -> Iterator[None]:
    """Raise ConfigError where the block misses a column of results that no ``provenance.json`` describes."""
    try:
        yield
    except KeyError as error:
        name = error.args[0]
        if results.attrs[reading.KEYS] or name in results:
            raise
        path = Path(directory) / reading.RESULTS
        raise ConfigError.at(path, f"no column '{name}'", "a file written by 'run'") from error


def _check_sweeps(results: pd.DataFrame, figure: str, known: str) -> None:
    """Refuse results with several values of a swept key that a figure shows one of. Raises ConfigError.

    ``known`` is a regular expression of the keys that it shows all values of.
    """
    several = [key for key in differing_keys(results) if not re.fullmatch(f"trace|policy|{known}", key)]
    if several:
        found = " and ".join(several_values(results, key) for key in several)
        chosen = " ".join(f"--where {key}=VALUE" for key in several)
        each = "one of each" if len(several) > 1 else "one of them"
        raise ConfigError(f"results: found {found}; allowed for {figure}: {each}, as with {chosen}")


def _machine(directory: str | Path, results: pd.DataFrame) -> str:
    """Name the system of some results and its GPU memory; nothing where they have several."""
    path = Path(directory) / reading.CONFIGURATION
    try:
        system = yaml.safe_load(path.read_bytes())["system"]
        known = {"system": system["name"], "system.gpu.memory": system["gpu"]["memory"]}
    except (OSError, yaml.YAMLError, KeyError, TypeError):  # results may be without
        return ""
    swept = {key: results[key].unique() for key in known if key in results}
    if any(len(values) != 1 for values in swept.values()):
        return ""
    found = known | {key: str(values[0]) for key, values in swept.items()}
    return f"{found['system']}, GPU memory {found['system.gpu.memory']}"


def chart(
    kind: str,
    directory: str | Path,
    *,
    x: str,
    y: str = "performance",
    hue: str = "",
    col: str = "",
    where: Mapping[str, str] | None = None,
) -> tuple[list[Figure], pd.DataFrame]:
    """Draw columns of a directory of results against each other; return a figure per page, and the points.

    ``kind`` is one of ``line``, ``bar`` and ``heat``; ``x`` and ``y`` are columns of the results, swept keys
    too. A series is drawn for each value of ``hue`` (default: the policies), a panel for each of ``col``
    (default: the traces). Raises ConfigError for columns that there are not, and where several cells would be
    one point.
    """
    from g10sim.plots.charts import DRAWINGS
    from g10sim.plots.points import Roles, points

    if kind not in CHARTS:
        raise ConfigError(f"found no chart '{kind}'{not_found(kind, CHARTS)}")
    results = rows_where(reading.read_results(directory), where or {})
    with _all_columns(directory, results):
        found = points(results, Roles(x, y, hue, col))
        figures = DRAWINGS[kind](found)
    _sign(figures, results, set(results["cell"]))
    return figures, found.data()


def _sign(figures: Iterable[Figure], results: pd.DataFrame, shown: Collection[int | None]) -> None:
    """Stamp figures with their cells, and note which GPUs kernel times are for, where not the systems'."""
    from g10sim.plots.style import add_note

    timed_for, keys = results.attrs[reading.TIMED_FOR], results.attrs[reading.KEYS]
    names = sorted({name for cell, some in timed_for.items() if cell in shown for name in some})
    for figure in figures:
        figure.set_gid(stamp(key for cell, key in keys.items() if cell in shown))
        if names:
            add_note(figure, f"times: {', '.join(names)}")


def save_chart(figures: Sequence[Figure], data: pd.DataFrame, directory: str | Path, name: str) -> list[Path]:
    """Write the pages of a chart and its points, as ``NAME.csv``; return the paths. Raises ConfigError."""
    from g10sim.plots.style import records

    found = save_pages(figures, directory, name)
    found.append(Path(directory) / f"{name}.csv")
    write_csv(found[-1], list(map(str, data)), records(data.astype(object).where(data.notna(), None)))
    return found


def save_pages(figures: Sequence[Figure], directory: str | Path, name: str) -> list[Path]:
    """Write the pages of a figure as ``NAME``, ``NAME-2`` and so on; return the paths. Raises ConfigError."""
    names = [name, *(f"{name}-{page}" for page in range(2, len(figures) + 1))]
    return [path for figure, one in zip(figures, names, strict=True) for path in save(figure, directory, one)]


def save(figure: Figure, directory: str | Path, name: str) -> list[Path]:
    """Write a figure as ``DIRECTORY/NAME.pdf`` and ``.png``, whole or not at all, and return the paths.

    The same figure gives the same bytes. Raises ConfigError.
    """
    from g10sim.plots import style

    found = []
    with writing(Path(directory), ConfigError):
        Path(directory).mkdir(parents=True, exist_ok=True)
        for kind, (left_out, stamped) in _METADATA.items():
            found.append(Path(directory) / f"{name}.{kind}")
            with style.settings(), replacing(found[-1]) as temporary:
                metadata = {left_out: None, stamped: figure.get_gid()}
                figure.savefig(temporary, format=kind, metadata=metadata)
    return found


def results_of(name: str, directory: str | Path) -> Path:
    """Return ``DIRECTORY/NAME``, a figure's own results, if it is there, else the directory itself."""
    own = Path(directory) / name
    return own if (own / "results.csv").is_file() else Path(directory)


def drawable(directory: str | Path) -> tuple[str, ...]:
    """Names of the figures of the paper with results in ``DIRECTORY/NAME``. Raises ConfigError for none."""
    figures = paper_figures()
    found = tuple(name for name in figures if (Path(directory) / name / "results.csv").is_file())
    if not found:
        allowed = f"a directory with results in {figures[0]}/ and so on, as 'reproduce' writes it"
        raise ConfigError.at(directory, "results of no figure", allowed)
    return found
