"""The commands, put together."""

from __future__ import annotations

import typer

from g10sim.cli import calibrate, plan, policy, trace
from g10sim.cli.bound import bound
from g10sim.cli.capture import capture, recapture
from g10sim.cli.explain import explain
from g10sim.cli.reproduce import plot, report, reproduce
from g10sim.cli.run import run
from g10sim.cli.size import size
from g10sim.cli.system import policies, system
from g10sim.cli.validate import validate

app = typer.Typer(
    name="g10sim",
    help="Simulate training with tensors in GPU memory, host memory and flash.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
for command in (run, validate, reproduce, plot, explain, report, bound, size, policies, system):
    app.command()(command)
trace.app.command()(capture)
trace.app.command()(recapture)
app.add_typer(trace.app, name="trace")
app.add_typer(plan.app, name="plan")
app.add_typer(policy.app, name="policy")
app.add_typer(calibrate.app, name="calibrate")
