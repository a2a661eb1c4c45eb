"""Records results anew, and says which are others: ``python tests/recorded [TABLE ...]``."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))

from recorded_cells import TABLES, computed, differences, read_table, write_table
from recorded_designs import DESIGNS
from recorded_machines import MACHINES
from recorded_statistics import TABLE as STATISTICS
from recorded_statistics import statistics

for table in sys.argv[1:] or (*DESIGNS, STATISTICS):
    before = read_table(table) if (TABLES / f"{table}.json").is_file() else {}
    found = {name: statistics(name) for name in MACHINES} if table == STATISTICS else computed(table)
    lines = differences({name: before.get(name, {}) for name in found}, found)
    write_table(table, found)
    sys.stdout.write(f"{table}: {len(found)} cells, {len(lines)} with other numbers\n")
    sys.stdout.writelines(f"{line}\n" for line in lines)
