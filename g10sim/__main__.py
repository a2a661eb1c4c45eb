"""``python -m g10sim``: the command line, where the ``g10sim`` command is not on the path."""

from g10sim.cli.main import run_alone

if __name__ == "__main__":
    run_alone()
