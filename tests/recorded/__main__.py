"""Records results anew, and says which are others: ``python tests/recorded [POLICY ...]``."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))

from recorded_cells import TABLES, computed, differences, read_table, write_table
from recorded_designs import DESIGNS

for policy in sys.argv[1:] or DESIGNS:
    before = read_table(policy) if (TABLES / f"{policy}.json").is_file() else {}
    found = computed(policy)
    lines = differences({name: before.get(name, {}) for name in found}, found)
    write_table(policy, found)
    sys.stdout.write(f"{policy}: {len(found)} cells, {len(lines)} with other numbers\n")
    sys.stdout.writelines(f"{line}\n" for line in lines)
