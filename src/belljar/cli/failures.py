"""How a command fails: one message for a person, one JSON object for a program.

Pure but for `show`. Every command's errors come here, usage errors and Ctrl-C included.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import click

from belljar.units import printable

if TYPE_CHECKING:
    from belljar.errors import BelljarError

USAGE_CODE = "usage_error"
INTERRUPTED_CODE = "interrupted"
DEFECT_CODE = "internal_error"


class Failure(NamedTuple):
    """What happened, where, and what to do next. `code` is stable; the sentences are not."""

    code: str
    message: str
    where: str = ""
    hint: str = ""

    def as_object(self) -> dict[str, object]:
        """As `--json` prints it."""
        return {"error": self._asdict()}


class Misuse(click.UsageError):
    """A command line that can't be meant, with the next step. `param`: the argument or option."""

    def __init__(
        self, what: str, *, param: str = "", hint: str = "", ctx: click.Context | None = None
    ) -> None:
        super().__init__(what, ctx)
        self.param_name = param
        self.hint = hint


def wants_json(argv: Sequence[str]) -> bool:
    """Whether `--json` was typed; what stands after `--` belongs to the guest."""
    own = argv[: argv.index("--")] if "--" in argv else argv
    return "--json" in own


def of_error(error: BelljarError) -> Failure:
    """One of Belljar's own errors."""
    return Failure(error.code, error.what, error.where, error.hint)


def of_interrupt(cause: BelljarError | None) -> Failure:
    """Ctrl-C or SIGTERM; `cause`: what failed on the way out, so that something may be left."""
    if cause is None:
        return Failure(INTERRUPTED_CODE, "interrupted; nothing was left running")
    return Failure(INTERRUPTED_CODE, f"interrupted: {cause.what}", cause.where, cause.hint)


def of_usage(error: click.ClickException) -> Failure:
    """A command line that can't be parsed."""
    if not isinstance(error, click.UsageError):
        return Failure(USAGE_CODE, _sentence(error.format_message()))
    path = error.ctx.command_path if error.ctx is not None else "belljar"
    command = path.removeprefix("belljar").strip() if path.startswith("belljar") else "run"
    message, param, hint = error.message, "", ""
    if isinstance(error, Misuse):
        param, hint = error.param_name, error.hint
    elif isinstance(error, click.NoSuchOption):
        message = f"there is no option `{error.option_name}`"
        hint = f"did you mean `{error.possibilities[0]}`?" if error.possibilities else ""
    elif isinstance(error, click.MissingParameter):
        message = error.format_message()
    elif isinstance(error, click.BadParameter):
        given = error.param_hint
        if given is None and error.param is not None:
            given = error.param.get_error_hint(error.ctx or click.Context(click.Command("")))
        param = (given if isinstance(given, str) else " / ".join(given or ())).replace("'", "")
    where = " ".join(part for part in (command, param) if part)
    usage = f"`belljar {command} --help`" if command else "`belljar --help`"
    return Failure(USAGE_CODE, _sentence(message), where, hint or f"see {usage}")


def _sentence(text: str) -> str:
    """As our own messages begin and end."""
    text = text.strip().removesuffix(".")
    return text[:1].lower() + text[1:] if text[1:2].islower() else text


def as_text(failure: Failure) -> str:
    """`belljar: <where>: <what happened>` and a line `  hint: …` for each next step."""
    where = f"{printable(failure.where)}: " if failure.where else ""
    what = "\n".join(printable(line) for line in failure.message.splitlines())
    hints = "".join(f"\n  hint: {printable(line)}" for line in failure.hint.splitlines())
    return f"belljar: {where}{what}{hints}"


def show(failure: Failure, *, json_wanted: bool) -> None:
    """With `--json` on standard output, else on standard error."""
    if json_wanted:
        click.echo(json.dumps(failure.as_object()))  # beyond ASCII escaped, on one line
    else:
        click.echo(as_text(failure), err=True)
