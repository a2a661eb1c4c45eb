"""Opening the timeline of a cell in Perfetto."""

import gzip
import json
import socket
import threading
import urllib.request
import webbrowser
from pathlib import Path

import pytest


@pytest.fixture
def recorded(g10sim, config):
    assert g10sim("run", config(record=["timeline"])).code == 0


def test_it_says_where_the_file_is_and_how_to_open_it(recorded, g10sim):
    ended = g10sim("timeline", "out", "--policy", "deepum")
    assert (ended.code, ended.err) == (0, "")
    path, how = ended.out.splitlines()
    assert path == "out/timeline/2.json.gz"
    assert "https://ui.perfetto.dev" in how
    document = json.loads(gzip.decompress(Path(path).read_bytes()))
    assert {event["ph"] for event in document["traceEvents"]} == {"M", "X", "i", "C", "s", "f"}


def test_records_of_a_cell_are_kept_once(recorded):
    stored = Path("out/timeline/2.json.gz")
    assert stored.stat().st_nlink == 2


def test_the_browser_gets_the_file_once(recorded, g10sim, monkeypatch):
    fetched, fetching = [], []

    def browse(address):
        assert address.startswith("https://ui.perfetto.dev/#!/?url=http://127.0.0.1:9001/")
        url = address.partition("url=")[2]

        def fetch():
            with urllib.request.urlopen(url, timeout=20) as answer:
                fetched.append((answer.headers["Access-Control-Allow-Origin"], answer.read()))

        fetching.append(threading.Thread(target=fetch))
        fetching[0].start()
        return True

    monkeypatch.setattr(webbrowser, "open", browse)
    assert g10sim("timeline", "out", "--cell", "1", "--open").code == 0
    fetching[0].join(timeout=20)
    assert fetched == [("https://ui.perfetto.dev", Path("out/timeline/1.json.gz").read_bytes())]


def test_a_port_in_use_is_named(recorded, g10sim):
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", 9001))
        other.listen()
        ended = g10sim("timeline", "out", "--cell", "1", "--open")
    assert (ended.code, ended.err.count("\n")) == (2, 1)
    assert "--open: port 9001 of this machine is in use" in ended.err


def test_without_a_timeline_it_says_what_is_missing(g10sim, config):
    assert g10sim("run", config()).code == 0
    ended = g10sim("timeline", "out", "--policy", "ideal")
    assert (ended.code, ended.err) == (
        2,
        "error: cell 0: found no timeline/0.json.gz; allowed: results of a run with 'record: [timeline]'\n",
    )
