"""Measures departures again: ``python tests/metamorphic [POLICY ...]`` writes them down, in docs, too."""

import math
import sys

import yaml
from measured import PAGE, TABLE, departures, documented, known, subjects, table
from test_metamorphic import MANY

found = known() if TABLE.exists() else {}
wanted = sys.argv[1:]
for policy, words in subjects():
    if not wanted or policy in wanted:
        worst = departures(policy, words, MANY)
        found.setdefault(policy, {})[words] = {
            # rounded up, so that the same measurement is within it
            name: math.ceil(share * 1e5) / 1e5
            for name, share in worst.items()
        }
        sys.stdout.write(f"{policy}, {words}: {found[policy][words]}\n")
        TABLE.write_text(yaml.safe_dump(found, sort_keys=True))
before, after = documented(PAGE.read_text())
PAGE.write_text(before + table() + after)
