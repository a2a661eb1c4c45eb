"""Writes a small report of Nsight Systems as SQLite: ``python nsight_example.py DIRECTORY``."""

import sqlite3
import sys
from contextlib import closing
from pathlib import Path

TABLES = {
    "StringIds": ("id", "value"),
    "CUPTI_ACTIVITY_KIND_KERNEL": ("start", "end", "deviceId", "streamId", "shortName", "demangledName"),
    "CUPTI_ACTIVITY_KIND_MEMCPY": ("start", "end", "deviceId", "copyKind", "bytes"),
    "CUPTI_ACTIVITY_KIND_MEMSET": ("start", "end", "deviceId", "bytes"),
    "CUDA_GPU_MEMORY_USAGE_EVENTS": (
        "start",
        "deviceId",
        "address",
        "bytes",
        "memKind",
        "memoryOperationType",
    ),
}
ROWS = {
    "StringIds": [(1, "gemm"), (2, "softmax")],
    "CUPTI_ACTIVITY_KIND_KERNEL": [
        (1000, 1500, 0, 7, 1, 1),
        (1400, 1600, 0, 8, 2, 2),
        (5000, 5250, 0, 7, 1, 1),
    ],
    "CUPTI_ACTIVITY_KIND_MEMCPY": [(100, 600, 0, 1, 8000), (1700, 1720, 0, 8, 512), (6000, 6100, 0, 2, 1000)],
    "CUPTI_ACTIVITY_KIND_MEMSET": [(700, 750, 0, 64)],
    "CUDA_GPU_MEMORY_USAGE_EVENTS": [
        (50, 0, 0x1000, 8192, 2, 0),
        (60, 0, 0x9000, 4096, 1, 0),  # pinned host memory
        (800, 0, 0x2000, 2048, 2, 0),
        (1650, 0, 0x2000, 2048, 2, 1),
        (2000, 0, 0x3000, 1024, 2, 1),  # allocated before the report
    ],
}


def write_report(path, rows=ROWS, tables=TABLES):
    with closing(sqlite3.connect(path)) as database:
        for table, columns in tables.items():
            names = ", ".join(f'"{name}"' for name in columns)
            database.execute(f"CREATE TABLE {table} ({names})")
            marks = ", ".join("?" * len(columns))
            database.executemany(f"INSERT INTO {table} VALUES ({marks})", rows.get(table, ()))
        database.commit()
    return path


if __name__ == "__main__":
    write_report(Path(sys.argv[1]) / "report.sqlite")
