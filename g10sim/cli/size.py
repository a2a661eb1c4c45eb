"""``g10sim size``: the least memory or bandwidth that reaches a target, and what it costs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from g10sim import plots
from g10sim.cli.options import Force, Scheduler, Settings, Workers, choose_executor, output_to
from g10sim.cli.output import complain_of_failures, say, show_table, warn
from g10sim.cli.run import CellProgress
from g10sim.config.load import load_run
from g10sim.results.reading import PICTURES, SIZING
from g10sim.sizing.resources import DEFAULT_PRICES, RESOURCES, find, load_prices
from g10sim.sizing.searches import Goal, Sizing
from g10sim.sizing.searches import size as find_least

_FIGURE = "knee"


def size(
    config: Annotated[Path, Argument(help="Run configuration (YAML).")],
    target: Annotated[float, Option(help="Performance to reach; 1 is a GPU with unlimited memory.")],
    resource: Annotated[
        list[str] | None,
        Option(help=f"What to search: {', '.join(RESOURCES)}; may be repeated.", show_default="all"),
    ] = None,
    precision: Annotated[
        float, Option(help="How far above the least amount an answer may lie, as a share of it.")
    ] = 0.02,
    prices: Annotated[Path, Option(help="Price list (YAML).")] = DEFAULT_PRICES,
    output: Annotated[Path | None, output_to("Directory of results.", "results/NAME-size")] = None,
    workers: Workers = None,
    scheduler: Scheduler = None,
    settings: Settings = None,
    force: Force = False,
) -> None:
    """Find the least of each resource that reaches a target, the others as CONFIG says.

    Exit code 0: every search ended, also without an answer; 1: some cell failed; 2: bad input.
    """
    goal = Goal(target, precision)
    resources = [find(name) for name in dict.fromkeys(resource or RESOURCES)]
    listed, document = load_prices(prices), load_run(config, settings or ())
    directory = output or Path("results") / f"{document.data['name']}-size"
    with CellProgress() as bar:
        running = bar.running(choose_executor(workers, scheduler), force=force)
        found = find_least(document, goal, resources, listed, directory, **running)
    _show(found)
    say(f"results in {directory / SIZING}")
    if any(search.configured is not None for search in found.searches):
        say(*plots.save(plots.draw(_FIGURE, directory), directory / PICTURES, _FIGURE))
    for warning in found.warnings:
        warn(warning)
    complain_of_failures(found.failures)


_FIGURES = ("configured", "of ideal", "least", "of ideal", "bound", "10 % less", "10 % more", "cost", "added")


def _show(found: Sizing) -> None:
    rows = []
    for row in found.rows:
        named = [Path(row["trace"]).stem, row["policy"], *(text for key, text in row.items() if "." in key)]
        rows.append((*named, row["resource"], *_texts(row)))
    first = found.rows[0]
    names = ("trace", "policy", *(key for key in first if "." in key), "resource")
    show_table(names, _FIGURES, rows, title=f"target {first['target']:g}")
    for row in found.rows:
        for text in (row["reason"], row["note"]):
            if text:
                say(f"{Path(row['trace']).stem}, {row['policy']}, {row['resource']}: {text}")
    for row in found.rows:
        if row.get("cheapest"):
            say(f"{Path(row['trace']).stem}, {row['policy']}: {_cheapest(row)}")


def _texts(row: dict[str, Any]) -> list[str]:
    """Return the figures of a row, in words where a search has no answer."""
    least = row.get("answer", row["status"])
    shares = {key: row.get(f"{key}performance") for key in ("configured_", "", "best_", "below_", "above_")}
    texts = {key: "" if share is None else f"{share:.4f}" for key, share in shares.items()}
    for side in ("below", "above"):
        if side in row and not texts[f"{side}_"]:
            texts[f"{side}_"] = "cannot run"
    money = ["" if row.get(key) is None else f"{row[key]:,.2f}" for key in ("cost", "added_cost")]
    head = [row.get("configured", ""), texts["configured_"], least, texts[""], texts["best_"]]
    return [*head, texts["below_"], texts["above_"], *money]


def _cheapest(row: dict[str, Any]) -> str:
    change = f"{row['added_cost']:+,.2f} {row['currency']} relative to what is configured"
    return f"cheapest by {row['resource']}, {row['answer']} ({change})"
