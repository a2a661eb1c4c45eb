"""Options that several commands have, and how they are read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from inspect import Parameter, signature
from pathlib import Path
from typing import Annotated, Any, TypeAlias, TypeVar

from typer import Argument, BadParameter, Option

from g10sim.capture.options import Otherwise, SizeOptions, StepOptions, flag
from g10sim.cli.main import is_whole_process
from g10sim.config.data import find_file
from g10sim.config.problems import check_choice
from g10sim.config.quantities import Spec, descriptions
from g10sim.errors import ConfigError
from g10sim.experiment.workers import CellExecutor, LocalProcesses
from g10sim.units import parse_bytes

DEFAULT_SYSTEM = "a100-40g-pcie3-znand"


def output_to(what: str, otherwise: str | bool = True) -> Any:
    """Return the option for what is written; ``otherwise`` names what is written to without it."""
    return Option("-o", "--output", help=what, show_default=otherwise, parser=_output, metavar="<path>")


def workers_option(otherwise: str) -> Any:
    """Return the option for how many cells run at a time; ``otherwise`` says how many without it."""
    return Option("-j", "--workers", min=1, help="Cells simulated at a time.", show_default=otherwise)


def _output(given: str | Path) -> Path:
    """Read what is written to: an empty path would be the working directory."""
    if not str(given):
        raise BadParameter("found an empty path; allowed: the path of what to write")
    return Path(given)


ResultsDirectory = Annotated[Path, Argument(help="Directory of results.")]
CellNumber = Annotated[
    int | None, Option("--cell", min=0, help="Number of the cell.", show_default="the only one")
]
TraceFile = Annotated[Path, Argument(help="Trace file.", callback=lambda name: find_file(name))]
TraceFiles = Annotated[
    list[Path], Argument(help="Trace files.", callback=lambda names: list(map(find_file, names)))
]
TraceOutput = Annotated[Path, output_to("Trace file to write (.g10t).")]
_SCHEDULER_HELP = "Simulate on the Dask cluster of this scheduler: its address or its scheduler file."
Scheduler = Annotated[str | None, Option(help=_SCHEDULER_HELP, metavar="ADDRESS")]
Workers = Annotated[int | None, workers_option("1")]
_SET_HELP = "Set a dotted key of the configuration, such as system.host.memory='64 GiB'; may be repeated."
Settings = Annotated[list[str] | None, Option("--set", help=_SET_HELP, metavar="KEY=VALUE")]
_WHERE_HELP = "Only cells with this value in a column or swept key; may be repeated."
Where = Annotated[list[str] | None, Option("--where", help=_WHERE_HELP, metavar="COLUMN=VALUE")]
PolicyName = Annotated[
    str, Option("--policy", help="Only cells of this policy, by its key or label.", metavar="NAME")
]
TraceName = Annotated[
    str, Option("--trace", help="Only cells of this trace, by the name of its file.", metavar="NAME")
]
_POLICY_HELP = "A policy more, by its key or as module:Class; may be repeated."
AddPolicy = Annotated[list[str] | None, Option("--add-policy", help=_POLICY_HELP, metavar="POLICY")]
Trust = Annotated[
    bool, Option("--trust", help="Import the policies 'module:Class' that the results name: code that runs.")
]
Json = Annotated[bool, Option("--json", help="Write JSON, with exact numbers, in place of text.")]
Verbose = Annotated[
    bool, Option("--verbose", "-v", help="Name the files that are read and the cells that are reused.")
]
Force = Annotated[bool, Option("--force", help="Run every cell, also those that an earlier run finished.")]
_SOURCE_HELP = "hf:NAME, diffusers:NAME, timm:NAME, torchvision:NAME, or module:function"
_FUNCTION_HELP = "which returns (model, inputs), a step or a generator of steps."
Source = Annotated[str, Argument(metavar="SOURCE", help=f"{_SOURCE_HELP}, {_FUNCTION_HELP}")]
Gpu = Annotated[str, Option(help="GPU whose kernel times are modelled: a name, or a YAML file.")]
Measure = Annotated[bool, Option("--measure", help="Measure the times on the CUDA device of this computer.")]
_STRICT_HELP = "Refuse a step in which operators of unknown cost are more than 1% of bytes or time."
Strict = Annotated[bool, Option("--strict", help=_STRICT_HELP)]
_MODEL_SET_HELP = "Set a key of an hf: model's configuration, such as hidden_size=64."
_Settings = Annotated[list[str], Option("--set", help=_MODEL_SET_HELP, metavar="KEY=VALUE")]

_Choice = TypeVar("_Choice", bound=str)
Command: TypeAlias = Callable[..., None]


def with_parameters(*added: Parameter) -> Callable[[Command], Command]:
    """Give a command options instead of its ``**options``."""

    def decorated(command: Command) -> Command:
        own = signature(command, eval_str=True)
        every = [one for one in own.parameters.values() if one.kind is not Parameter.VAR_KEYWORD]
        every += added
        command.__signature__ = own.replace(parameters=every)  # type: ignore[attr-defined]
        command.__annotations__ = {one.name: one.annotation for one in every}
        return command

    return decorated


def parameters(kind: type[Spec], *names: str) -> list[Parameter]:
    """Return the parameters of a command that stand for fields of a model: those named, or all."""
    return [_parameter(kind, name) for name in names or kind.model_fields]


def _parameter(kind: type[Spec], name: str) -> Parameter:
    field = kind.model_fields[name]
    words = next((one.words for one in field.metadata if isinstance(one, Otherwise)), True)
    least = next((one.ge for one in field.metadata if hasattr(one, "ge")), None)
    declared = [flag(name)] if field.annotation is bool else []  # no option that says no
    option: Any = Option(*declared, help=descriptions(kind)[name], show_default=words, min=least)
    return Parameter(
        name, Parameter.KEYWORD_ONLY, default=field.default, annotation=Annotated[field.annotation, option]
    )


def with_step_options(*names: str) -> Callable[[Command], Command]:
    """Give a command options of the source and of the step instead of its ``**options``.

    Of the step they are those named, or all.
    """
    settings = Parameter("settings", Parameter.KEYWORD_ONLY, default=(), annotation=_Settings)
    return with_parameters(*parameters(SizeOptions), settings, *parameters(StepOptions, *names))


def only(what: str, *names: str, such_as: str = "") -> Any:
    """Return the option for names, comma-separated, that narrow what is done: without it all count."""
    example = f", such as {such_as}" if such_as else ""
    return Option(*names, help=f"Only {what}, comma-separated{example}.", show_default="all")


def names_in(option: str, text: str | None) -> list[str]:
    """Return the names in a comma-separated text. Raises ConfigError for a text without any."""
    names = [name.strip() for name in (text or "").split(",") if name.strip()]
    if text is not None and not names:
        raise ConfigError.at(option, f"'{text}'", "names, comma-separated")
    return names


def choose_executor(
    workers: int | None, scheduler: str | None, *, default_workers: int = 1, seconds: float | None = None
) -> CellExecutor:
    """Return the executor of ``-j`` and ``--seconds``, or of ``--scheduler``.

    Raises ConfigError if both are given.
    """
    if scheduler is None:
        return LocalProcesses(workers or default_workers, seconds, may_copy_itself=is_whole_process())
    if seconds is not None:
        raise ConfigError("--seconds: found with --scheduler; allowed: on this machine only")
    if workers is not None:
        raise ConfigError("-j: found with --scheduler; allowed: one of them (a cluster has its own workers)")
    from g10sim.experiment.cluster import DaskCluster

    return DaskCluster(scheduler)


def where_values(texts: Iterable[str], policy: str = "", trace: str = "") -> dict[str, str]:
    """Return the values of --where by column, and those of --policy and --trace.

    Raises ConfigError for a text without an equals sign.
    """
    found = {column: name for column, name in (("policy", policy), ("trace", trace)) if name}
    for text in texts:
        column, sign, value = text.partition("=")
        if not sign:
            raise ConfigError(f"--where: found '{text}'; allowed: COLUMN=VALUE")
        found[column.strip()] = value.strip()
    return found


def chosen(option: str, name: str, choices: Sequence[_Choice]) -> _Choice:
    """Return the choice of that name. Raises ConfigError naming the option."""
    check_choice(name, choices, f"{option}: found")
    return next(choice for choice in choices if choice == name)


def sizes(option: str, texts: Iterable[str]) -> list[int]:
    """Return sizes above zero in bytes. Raises ConfigError naming the option."""
    found = []
    for text in texts:
        try:
            found.append(parse_bytes(text))
        except ValueError as error:
            raise ConfigError(f"{option}: {error}") from None
        if found[-1] == 0:
            raise ConfigError(f"{option}: found {text!r}; allowed: more than zero")
    return found
