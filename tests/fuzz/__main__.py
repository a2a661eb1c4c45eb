"""Many cases and every fault, written down: ``python tests/fuzz -o DIR --cases 10000``."""

import argparse
import csv
import sys
import time
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

sys.path.insert(0, str(Path(__file__).parent))

from faults import FAULTS
from files import Samples
from workloads import draw_case, outcome


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path, default=Path("results/reliability"))
    parser.add_argument("--cases", type=int, default=10_000, help="of each kind")
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory() as scratch:
        cases = [*_files(Path(scratch), options.cases), _workloads(options.cases)]
        faults = [_fault(fault, Path(scratch)) for fault in FAULTS]
    _write(options.output / "cases.csv", ("kind", "cases", "outcomes", "failures", "seconds"), cases)
    _write(options.output / "faults.csv", ("fault", "outcome"), faults)
    failures = sum(int(row[3]) for row in cases) + sum(row[1].startswith("FAILED") for row in faults)
    sys.stdout.write(f"{options.output}: {failures} failures\n")
    sys.exit(1 if failures else 0)


def _files(scratch: Path, cases: int) -> list[tuple[str, ...]]:
    (scratch / "files").mkdir()
    samples = Samples(scratch / "files")
    return [
        _counted(f"damaged {kind} files", lambda seed, kind=kind: samples.outcome(kind, seed), cases)
        for kind in ("trace", "plan", "configuration")
    ]


def _workloads(cases: int) -> tuple[str, ...]:
    return _counted("random workloads", lambda seed: outcome(draw_case(seed)), cases)


def _counted(kind, attempt, cases):
    start, found, failures = time.perf_counter(), Counter(), 0
    for seed in range(cases):
        try:
            found[attempt(seed)] += 1
        except Exception as error:
            failures += 1
            sys.stderr.write(f"{kind}, seed {seed}: {type(error).__name__}: {error}\n")
    words = ", ".join(f"{count} {what}" for what, count in found.most_common())
    return kind, str(cases), words, str(failures), f"{time.perf_counter() - start:.0f}"


def _fault(fault, scratch: Path) -> tuple[str, str]:
    rule = (fault.__doc__ or "").strip().rstrip(".")
    try:
        return rule, fault(scratch / fault.__name__)
    except AssertionError as error:
        return rule, f"FAILED: {error}"


def _write(path: Path, columns, rows) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerows([columns, *rows])


if __name__ == "__main__":
    main()
