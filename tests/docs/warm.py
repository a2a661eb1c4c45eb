"""Runs Python in copies of a process that has imported g10sim and its libraries: a start takes milliseconds.

``warm.py ADDRESS`` serves at a socket. A request is ``arguments``, ``code``, ``directory`` and
``environment`` in JSON, sent with the three standard streams; the answer is the exit code.
"""

import json
import os
import socket
import subprocess
import sys
import types
from contextlib import contextmanager, suppress
from importlib import import_module

IMPORTED = (
    *("pandas", "pyarrow.parquet", "matplotlib.pyplot", "g10sim.plots"),
    *(f"g10sim.cli.{name}" for name in ("main", "commands", "run", "explain", "reproduce", "system")),
)
CLIENT = """\
#!{python} -SE
import json, os, socket, sys
server = socket.socket(socket.AF_UNIX)
server.connect({address!r})
asked = dict(arguments=sys.argv, code={code}, directory=os.getcwd(), environment=dict(os.environ))
socket.send_fds(server, [json.dumps(asked).encode()], [0, 1, 2])
server.shutdown(socket.SHUT_WR)
sys.exit(int(server.recv(16)))
"""
COMMANDS = {
    "g10sim": repr("from g10sim.cli.main import main; main()"),
    "run-code": "sys.argv.pop(1)",
}


@contextmanager
def warm_commands(directory):
    """Put commands into a directory: ``g10sim``, and ``run-code`` for what is ``python -c`` otherwise."""
    address = str(directory / "socket")
    for name, code in COMMANDS.items():
        command = directory / name
        command.write_text(CLIENT.format(python=sys.executable, address=address, code=code))
        command.chmod(0o755)
    with subprocess.Popen([sys.executable, __file__, address], stdout=subprocess.PIPE) as server:
        assert server.stdout.readline(), "ended before it listened"
        try:
            yield directory
        finally:
            server.terminate()


def serve(address):
    """Answer requests; returns in each copy, as soon as it has something to run."""
    for name in IMPORTED:
        import_module(name)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(address)
        listening.listen()
        os.write(1, b"listening\n")
        while True:
            connection, _ = listening.accept()
            if os.fork() == 0:
                listening.close()
                return answered(connection)
            connection.close()
            with suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass


def answered(connection):
    """Return a request in a copy of this process; here wait for how that ends."""
    data, streams, _, _ = socket.recv_fds(connection, 1 << 20, 3)
    while more := connection.recv(1 << 20):
        data += more
    copy = os.fork()
    if copy:
        _, status = os.waitpid(copy, 0)
        connection.send(str(os.waitstatus_to_exitcode(status) % 256).encode())
        os._exit(0)
    connection.close()
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    return json.loads(data)


def prepare(*, arguments, directory, environment):
    """Make this process as one that starts there with these arguments."""
    os.chdir(directory)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = arguments
    sys.path[:1] = ["", *filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))]


if __name__ == "__main__":
    asked = serve(sys.argv[1])
    code = asked.pop("code")
    prepare(**asked)
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    exec(code, main.__dict__)
