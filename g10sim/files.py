"""Writing files so that a reader sees the old contents or the new, never a part."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a temporary path in the same directory; it takes the place of ``path`` when the block succeeds.

    The block has to write the temporary file. Raises OSError when the directory cannot be written.
    """
    temporary = path.parent / f".{path.name}.{os.getpid()}.tmp"
    try:
        yield temporary
        temporary.replace(path)
    except OSError as error:
        if error.errno is None:
            raise
        # Libraries word it as they like, and name no file or the temporary one.
        raise OSError(error.errno, os.strerror(error.errno), str(path)) from error
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a text file as UTF-8, whole or not at all. Raises OSError."""
    with replacing(path) as temporary:
        temporary.write_bytes(text.encode())


@contextmanager
def writing(path: Path, error: type[Exception]) -> Iterator[None]:
    """Turn an OSError of the block, which writes ``path``, into ``error`` with a message about it."""
    try:
        yield
    except OSError as found:
        reason = found.strerror or str(found)
        raise error(f"{path}: cannot be written: {reason}; allowed: a writable path") from found
