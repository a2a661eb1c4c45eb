"""``g10sim timeline``: the timeline of a cell in Perfetto."""

from __future__ import annotations

import webbrowser
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Annotated

from typer import Option

from g10sim.cli.options import CellNumber, PolicyName, ResultsDirectory, TraceName, Where, where_values
from g10sim.cli.output import say
from g10sim.errors import ConfigError
from g10sim.results.reading import read_checked, read_provenance, read_results, row_of_cell
from g10sim.results.swept import rows_where
from g10sim.results.written import TIMELINE, timeline_name

_PERFETTO = "https://ui.perfetto.dev"
_HOST, _PORT = "127.0.0.1", 9001
"""The only port that Perfetto's page may read (https://perfetto.dev/docs/visualization/deep-linking)."""


def timeline(
    directory: ResultsDirectory,
    cell: CellNumber = None,
    policy: PolicyName = "",
    trace: TraceName = "",
    where: Where = None,
    opened: Annotated[
        bool, Option("--open", help="Open it in the browser, and serve it there once.")
    ] = False,
) -> None:
    """Find the timeline of a cell, and say how to open it in Perfetto.

    It is there after a run with 'record: [timeline]'. --open needs a browser on this machine, which reads the
    file from here: nothing is uploaded.
    """
    chosen = rows_where(read_results(directory), where_values(where or (), policy, trace))
    number = int(row_of_cell(chosen, cell)["cell"])
    name = timeline_name(number)
    if not (directory / name).is_file():
        raise ConfigError.at(f"cell {number}", f"no {name}", f"results of a run with 'record: [{TIMELINE}]'")
    data = read_checked(directory, name, read_provenance(directory))
    say(directory / name)
    if not opened:
        say(f"Open {_PERFETTO} and drop the file there (it is not uploaded), or add --open.")
        return
    _serve(data, Path(name).name)


def _serve(data: bytes, name: str) -> None:
    """Open the browser and serve a file until it has been read. Raises ConfigError if the port is in use."""
    address = f"{_PERFETTO}/#!/?url=http://{_HOST}:{_PORT}/{name}"
    try:
        server = HTTPServer((_HOST, _PORT), _handler(data, f"/{name}"))
    except OSError as error:
        problem = f"--open: port {_PORT} of this machine is in use"
        raise ConfigError(f"{problem}; allowed: opening the file by hand") from error
    with server:
        say(f"Open {address} (Ctrl-C ends)" if not webbrowser.open(address) else f"opened {address}")
        while not getattr(server, "is_done", False):
            server.handle_request()


def _handler(data: bytes, path: str) -> type[BaseHTTPRequestHandler]:
    """Return what answers requests: with the file, to Perfetto's page alone."""

    class Handler(BaseHTTPRequestHandler):
        def do_OPTIONS(self) -> None:
            self._answer(200)

        def do_GET(self) -> None:
            found = self.path == path
            self._answer(200 if found else 404, data if found else b"")
            if found:
                self.server.is_done = True  # type: ignore[attr-defined]

        def _answer(self, code: int, body: bytes = b"") -> None:
            self.send_response(code)
            self.send_header("Access-Control-Allow-Origin", _PERFETTO)
            self.send_header("Access-Control-Allow-Private-Network", "true")
            self.send_header("Cache-Control", "no-cache")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *arguments: object) -> None:
            """Say nothing."""

    return Handler
