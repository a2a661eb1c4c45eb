"""Many cases and every fault, written down: ``python tests/fuzz -o DIR --cases 3000``."""

import argparse
import csv
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory

sys.path.insert(0, str(Path(__file__).parents[1] / "importers"))
sys.path.insert(0, str(Path(__file__).parent))

from cases import KINDS, TITLES, tried
from faults import FAULTS

COLUMNS = ("kind", "cases", "outcomes", "failures", "seconds", "memory_mb")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path, default=Path("results/reliability"))
    parser.add_argument("--cases", type=int, default=3_000, help="of each kind")
    parser.add_argument("--first", type=int, default=0, help="seed of the first case of each kind")
    parser.add_argument("--kinds", nargs="*", choices=KINDS, default=KINDS, help="rows of others are kept")
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    table = options.output / "cases.csv"
    cases = {row[0]: row for row in _read(table)}
    for kind in options.kinds:
        cases[TITLES[kind]] = _alone(kind, range(options.first, options.first + options.cases))
        _write(table, COLUMNS, [cases[title] for title in TITLES.values() if title in cases])
    with TemporaryDirectory() as scratch:
        faults = [_fault(fault, Path(scratch)) for fault in FAULTS]
    _write(options.output / "faults.csv", ("fault", "outcome"), faults)
    failures = sum(int(row[3]) for row in cases.values())
    failures += sum(row[1].startswith("FAILED") for row in faults)
    sys.stdout.write(f"{options.output}: {failures} failures\n")
    sys.exit(1 if failures else 0)


def _alone(kind: str, cases: range) -> tuple[str, ...]:
    """Try the cases of a kind in a process of its own, whose memory is measured."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(tried, kind, cases).result()


def _fault(fault, scratch: Path) -> tuple[str, str]:
    rule = (fault.__doc__ or "").strip().rstrip(".")
    try:
        return rule, fault(scratch / fault.__name__)
    except AssertionError as error:
        return rule, f"FAILED: {error}"


def _read(path: Path) -> list[tuple[str, ...]]:
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return [tuple(row) for row in csv.reader(file)][1:]


def _write(path: Path, columns, rows) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerows([columns, *rows])


if __name__ == "__main__":
    main()
