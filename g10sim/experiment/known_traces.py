"""Facts that a run needs of its traces before it simulates, kept so that an equal file is not read again."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from g10sim.experiment.program import program
from g10sim.files import data_hash, file_hash, save_text, sealed, unsealed

_log = logging.getLogger(__name__)


class TraceFacts(BaseModel):
    """Parts of the keys of cells that come from a trace, and texts for the author of a run.

    ``sha256`` is that of its contents, ``sends`` as in :class:`TraceInput`. ``on_cpu`` names its first kernel
    on the CPU and ``times`` is a warning about its times; they are empty where there is none.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    sha256: str
    model: str
    batch_size: int
    sends: bool
    origin: dict[str, str]
    on_cpu: str
    times: str


class KnownTraces:
    """Facts about traces by the contents of their files and the program; with a path, kept in a file."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._before = {} if path is None else _stored(path)
        self._used: dict[str, TraceFacts] = {}

    def facts(self, path: Path, read: Callable[[], TraceFacts], *settings: object) -> TraceFacts:
        """Return the facts about a trace under some settings: what ``read`` returns, if not known before."""
        contents = "" if self._path is None else _contents(path)
        if not contents:
            return read()
        key = data_hash([program().sha256, contents, *settings])
        facts = self._used.get(key) or self._before.get(key)
        if facts is None:
            facts = read()
            if _contents(path) != contents:  # it was written meanwhile
                return facts
        else:
            _log.info("reads %s", path)
        self._used[key] = facts
        return facts

    def save(self) -> None:
        """Keep the facts that this run needed. Raises ConfigError."""
        if self._path is None or self._used == self._before:
            return
        facts = {key: facts.model_dump() for key, facts in self._used.items()}
        save_text(self._path, json.dumps(sealed(facts)) + "\n")


def _contents(path: Path) -> str:
    """Hash of a plain file; empty for what cannot be read twice, or at all."""
    with suppress(OSError):
        return file_hash(path) if path.is_file() else ""
    return ""


def _stored(path: Path) -> dict[str, TraceFacts]:
    """Return the facts in a file; none where it is not as it was written."""
    try:
        found = unsealed(json.loads(path.read_bytes())) or {}
        return {key: TraceFacts.model_validate(facts) for key, facts in found.items()}
    except (OSError, ValueError, RecursionError):
        return {}
