"""The options of `inspect eval` that Belljar sets itself, and the selected samples.

Inspect reads options from the command line, variables and a `.env` file. All are read before a task
is loaded: loading a task runs its Python.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from belljar.errors import HostError, PolicyError
from belljar.harness.dotenv import read_dotenv
from belljar.harness.operator import OperatorOptions
from belljar.harness.source import RealCells
from belljar.model.serve import load_model
from belljar.units import printable
from belljar.waiting import print_status

if TYPE_CHECKING:
    from inspect_ai import Task

    from belljar.policy.loaded import LoadedPolicy


# Click reads an option also from a variable with this prefix.
_PREFIX: Final = "INSPECT_EVAL"
OWN_PREFIX: Final = "BELLJAR_"
PROVIDER: Final = "belljar"
_IN_A_CELL: Final = f"{PROVIDER}/"


# Belljar sets these itself, whatever another source says; typed, they are refused with this hint.
TAKEN: Final[Mapping[str, str]] = {
    "sandbox": "the sandbox is Belljar's; --policy says what it may be",
    "log_dir": "the log goes into the run directory",
    "no_log_samples": "the samples' log is evidence: without it no verdict can be given",
    "detach": "the cells live in this process",
    "json_output": "use belljar's --json",
}
# Inspect puts it into a path as it is: with a `/` the log would leave the run directory.
LOG_PATTERN: Final = "INSPECT_EVAL_LOG_FILE_PATTERN"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest:
    """What to run.

    `inspect_args`: the task and Inspect's options. `policy`: a file or preset, "" for the task's.
    `require_contained`: metrics count contained samples only.
    `quiet`: standard output stays free for the caller.
    """

    inspect_args: Sequence[str]
    policy: str = ""
    override: bool = False
    allow_upstreams: bool = False
    tier: str = ""
    require_contained: bool = False
    quiet: bool = False
    home: Path | None = None
    source: RealCells = field(default_factory=RealCells)

    @property
    def operator_options(self) -> OperatorOptions:
        """The operator's own part of it."""
        return {
            "run_policy": self.policy,
            "override": self.override,
            "tier": self.tier,
            "allow_upstreams": self.allow_upstreams,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class InspectOptions:
    """Inspect's checked options."""

    context: click.Context

    @property
    def model(self) -> object:
        """The model that the options name, if any."""
        params = self.context.params
        return params.get("model") or params.get("model_spec")

    @property
    def models(self) -> list[str]:
        """The names of all models that the options name, also for a role."""
        from inspect_ai._util.config import parse_cli_args

        waiting, names = [self.model], list[str]()
        with contextlib.suppress(Exception):  # what is wrong with it, the evaluation says
            waiting.append(parse_cli_args(self.context.params.get("model_role"), force_str=False))
        while waiting:
            each = waiting.pop()
            if isinstance(each, dict | list):  # its settings are no model's name
                waiting += each.values() if isinstance(each, dict) else each
            else:
                names += str(each or "").split(",")
        return names

    def explicit(self, log_dir: Path) -> dict[str, Any]:
        """Arguments that no other setting may change."""
        return {
            "sandbox": PROVIDER,
            "log_dir": str(log_dir),
            "log_format": self.context.params.get("log_format") or "eval",
            "log_samples": True,
            "sandbox_cleanup": not _is_typed(self.context, "no_sandbox_cleanup"),
        }


def read_options(arguments: Sequence[str]) -> InspectOptions:
    """Parse Inspect's options with its own parser, and check them. Loads no task.

    Raises `click.UsageError` for invalid options and typed ones that are Belljar's, `PolicyError`
    for what `--env`, a run configuration or a `.env` file may not set, `HostError` without Inspect.
    """
    try:
        dotenv = read_dotenv(os.environ)  # before Inspect sets what is in it
        from inspect_ai._cli.eval import eval_command
        from inspect_ai._util.dotenv import init_dotenv
    except ImportError as error:
        raise HostError(
            "Inspect AI is not installed", hint="pip install 'belljar-sandbox[inspect]'"
        ) from error
    init_dotenv()
    if dotenv:
        print_status(f"belljar: {dotenv}")
    context = eval_command.make_context("belljar run", list(arguments), auto_envvar_prefix=_PREFIX)
    for option, hint in TAKEN.items():
        accepted = PROVIDER if option == "sandbox" else False
        if _is_typed(context, option) and context.params[option] != accepted:
            name = next(each.opts[0] for each in context.command.params if each.name == option)
            raise click.UsageError(f"{name} can't be used with belljar run: {hint}", context)
        if context.get_parameter_source(option) is click.core.ParameterSource.ENVIRONMENT:
            print_status(f"belljar: a variable's `{option}` counts for nothing: {hint}")
    if context.params.get("run_config"):
        what, where = "a run configuration can't be used with belljar run", "--run-config"
        raise PolicyError(what, where=where, hint="give what it says as options")
    for text in context.params.get("env") or ():
        # `--env` writes `-` as `_`, and sets the variable only when Inspect starts: the policy
        # would not be the one that was checked.
        name = str(text).partition("=")[0].strip().replace("-", "_")
        # They select this host's programs, the store or the log's place.
        if name.startswith((OWN_PREFIX, "LD_")) or name in ("PATH", LOG_PATTERN):
            what = f"--env {printable(name)} can't be used with belljar run"
            raise PolicyError(what, hint="set it in the environment of belljar run")
    return InspectOptions(context=context)


def _is_typed(context: click.Context, option: str) -> bool:
    source = context.get_parameter_source(option)
    return source is click.core.ParameterSource.COMMANDLINE and bool(context.params[option])


def was_given(context: click.Context, option: str) -> bool:
    """Whether command line or environment sets it."""
    return context.get_parameter_source(option) in {
        click.core.ParameterSource.COMMANDLINE,
        click.core.ParameterSource.ENVIRONMENT,
    }


@contextlib.contextmanager
def explicit_arguments(arguments: Mapping[str, Any]) -> Iterator[None]:
    """Force these arguments of Inspect's `eval` function inside the block.

    Its command line can't express all (`log_samples=True`). No pattern names the log there.
    Raises `HostError` when the installed Inspect can't be held to that.
    """
    from inspect_ai._cli import eval as command

    original = getattr(command, "eval", None)
    if not callable(original) or "eval" not in command.eval_exec.__code__.co_names:
        raise unknown_inspect("its command line does not call `eval`")

    def call(*positional: Any, **given: Any) -> Any:  # noqa: ANN401 - Inspect's own arguments
        return original(*positional, **{**given, **arguments})

    command.__dict__["eval"] = call
    pattern = os.environ.pop(LOG_PATTERN, None)
    try:
        yield
    finally:
        command.__dict__["eval"] = original
        if pattern is not None:
            os.environ[LOG_PATTERN] = pattern


def unknown_inspect(what: str) -> HostError:
    """The installed Inspect is not a tested one."""
    from importlib.metadata import version

    return HostError(
        f"inspect-ai {version('inspect-ai')} is not known to Belljar: {what}",
        hint="install a version of inspect-ai that this Belljar was tested with: pip install "
        "'belljar-sandbox[inspect]'",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The operator's choice: `limit` (a count, or start and stop), patterns of `ids`, each of any
    task or `task:pattern`, and `shuffle` by a seed; True: a random order.
    """

    limit: int | tuple[int, int] | None = None
    ids: Sequence[str | int] | None = None
    shuffle: bool | int | None = None

    @property
    def is_foreseen(self) -> bool:
        """Whether another run chooses the same samples."""
        return self.shuffle is not True

    def order(self, task: Task) -> None:
        """Order and number the samples as Inspect does."""
        if self.shuffle and not task.dataset.shuffled:
            task.dataset.shuffle(None if self.shuffle is True else self.shuffle)
        for position, sample in enumerate(task.dataset):
            if sample.id is None:
                sample.id = position + 1

    def positions(self, task: Task, names: Iterable[str]) -> list[int]:
        """A task's selected positions; `names`: all tasks'."""
        from inspect_ai._eval.task.util import resolve_task_sample_ids, sample_id_filter

        everything = range(len(task.dataset))
        if self.ids is None:
            first, last = self.limit if isinstance(self.limit, tuple) else (0, self.limit)
            return list(everything[first:last])
        ids = resolve_task_sample_ids(task.name, list(self.ids), names)
        matcher = sample_id_filter(ids if ids is not None else [])
        return [position for position in everything if matcher.matches(task.dataset[position].id)]


def read_selection(options: InspectOptions) -> Selection:
    """From the options."""
    from inspect_ai._util.samples import parse_sample_id, parse_samples_limit

    params = options.context.params
    ids: Any = parse_sample_id(params.get("sample_id"))
    shuffle = params.get("sample_shuffle")
    return Selection(
        limit=parse_samples_limit(params.get("limit")),
        ids=[ids] if isinstance(ids, (str, int)) else ids,
        shuffle=True if shuffle == -1 else shuffle or None,
    )


def check_models(names: Iterable[str], home: Path | None) -> list[LoadedPolicy]:
    """The policies of those that run in a cell. Raises `PolicyError`, `HostError`: one is wrong."""
    files = [name.removeprefix(_IN_A_CELL) for name in names if name.startswith(_IN_A_CELL)]
    return [load_model(Path(file), home=home) for file in files]
