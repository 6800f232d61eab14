"""Shared by all commands: options, errors, tables, JSON, progress, signals."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from belljar.descriptors import NO_ROOM
from belljar.errors import BelljarError, ContainmentBreach, HostError
from belljar.units import printable

if TYPE_CHECKING:
    import anyio

T = TypeVar("T")
Command = TypeVar("Command", bound=Callable[..., Any])
Report = Callable[[str], None]

# Of verdicts and states, as `click.style` takes them; in a pipe click takes the style away.
_GREEN, _YELLOW, _RED = {"fg": "green"}, {"fg": "yellow"}, {"fg": "red", "bold": True}
STYLES: Final[Mapping[str, Any]] = {
    **dict.fromkeys(("contained", "ok", "absent"), _GREEN),
    **dict.fromkeys(("void", "note", "can't tell"), _YELLOW),
    **dict.fromkeys(("breached", "no", "present"), _RED),
}
_MAX_COLUMN: Final = 60  # characters; a longer cell moves the rest of its line
# A signal this long after the first ends the process at once; its cells die with it.
FORCED_AFTER_S: Final = 15.0
# Turns of the loop until a signal's task has run: asyncio takes three, trio two.
_SIGNAL_CHECKPOINTS: Final = 10
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def json_option(help_text: str = "Print one JSON object.") -> Callable[[Command], Command]:
    return click.option("--json", "as_json", is_flag=True, help=help_text)


def tier_option(
    help_text: str = "Exactly this tier, at or above what the policy demands.",
) -> Callable[[Command], Command]:
    tiers = click.Choice(("container", "gvisor", "microvm"))
    return click.option("--tier", type=tiers, default=None, help=help_text)


def policy_argument(metavar: str = "[POLICY|PRESET]") -> Callable[[Command], Command]:
    return click.argument("policy", required=False, metavar=metavar)


run_argument = click.argument("run")
key_option = click.option(
    "--key",
    "fingerprint",
    metavar="FINGERPRINT",
    help="The key that must have signed. Default: this host's, if it has one.",
)
log_option = click.option(
    "--log",
    "logs",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Where Inspect's log is now, for a run of `inspect eval`. Repeatable. Default: where it "
    "was written.",
)


def operator_options(command: Command) -> Command:
    for option in (
        tier_option("The tier of every cell: exactly this one, at or above what its policy asks."),
        click.option(
            "--allow-upstreams",
            is_flag=True,
            help="Let a policy that came with the task reach the real hosts that it names.",
        ),
        click.option(
            "--policy",
            default="",
            metavar="FILE|PRESET",
            help="The containment of every cell: risk, tier, limits, network. The task keeps its "
            "image, user, files and services. Default: the task's own policy, else high.",
        ),
    ):
        command = option(command)
    return command


def parsed_by(parse: Callable[[Any], T]) -> Callable[[click.Context, click.Parameter, Any], T]:
    def callback(ctx: click.Context, param: click.Parameter, value: Any) -> T:  # noqa: ANN401
        try:
            return parse(value)
        except ValueError as error:
            raise click.BadParameter(str(error), ctx=ctx, param=param) from error

    return callback


def variables_option(flag: str, name: str, help_text: str) -> Callable[[Command], Command]:
    def parse(pairs: Sequence[str]) -> dict[str, str]:
        if any("=" not in pair or pair.startswith("=") for pair in pairs):
            raise ValueError("write NAME=VALUE")
        return dict(pair.split("=", 1) for pair in pairs)

    callback = parsed_by(parse)
    return click.option(
        flag, name, multiple=True, metavar="NAME=VALUE", callback=callback, help=help_text
    )


def print_json(value: object) -> None:
    click.echo(json.dumps(value, indent=2))


def notice(text: str) -> None:
    click.echo(f"belljar: {printable(text)}", err=True)


def table_lines(rows: Sequence[Sequence[str]], *, styled: int | None = None) -> list[str]:
    """Return escaped lines; column `styled` is coloured as `STYLES` says."""
    shown = [[printable(cell, max_chars=200) for cell in row] for row in rows]
    widths = [min(_MAX_COLUMN, max(map(len, column))) for column in zip(*shown, strict=True)]
    lines = list[str]()
    for row in shown:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        if styled is not None:
            style = STYLES.get(row[styled].partition(",")[0], {})
            padding = " " * (len(cells[styled]) - len(row[styled]))
            cells[styled] = click.style(row[styled], **style) + padding
        lines.append("  ".join(cells).rstrip())
    return lines


def progress(title: str, *, quiet: bool, is_step: bool = False) -> Report:
    """Print what begins; return a reporter of lines. `is_step`: not only on a terminal."""
    is_watched = not quiet and sys.stderr.isatty()
    if is_watched or (is_step and not quiet):
        click.echo(printable(title, max_chars=300), err=True)

    def report(line: str) -> None:
        if is_watched:
            click.echo(f"  {printable(line, max_chars=300)}", err=True)

    return report


class CommandLineError(BelljarError):
    def __init__(self, code: str, what: str, where: str = "", hint: str = "") -> None:
        super().__init__(what, where=where, hint=hint)
        self.code = code


class MisuseError(click.UsageError):
    def __init__(self, what: str, *, hint: str = "") -> None:
        super().__init__(what)
        self.hint = hint


@contextmanager
def reading(path: object) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        # Nothing that is read: standard output's
        if error.errno in NO_ROOM or isinstance(error, BrokenPipeError):
            raise
        raise MisuseError(f"{printable(str(path))}: {error.strerror}") from error


@contextmanager
def writing(target: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        hint = "name a place with more room"
        where = printable(str(target))
        raise HostError(f"it can't be written: {error.strerror}", where=where, hint=hint) from error


def of_usage(error: click.ClickException) -> CommandLineError:
    context = getattr(error, "ctx", None)
    path = "belljar" if context is None else context.command_path
    # Inspect's own parser names another command: it is `belljar run` that calls it.
    command = path.removeprefix("belljar").strip() if path.startswith("belljar") else "run"
    usage = f"`belljar {command} --help`" if command else "`belljar --help`"
    hint = getattr(error, "hint", "") or f"see {usage}"
    return CommandLineError("usage_error", _sentence(error.format_message()), command, hint)


def _sentence(text: str) -> str:
    text = text.strip().removesuffix(".")
    # An acronym keeps its capitals.
    return text[:1].lower() + text[1:] if text[1:2].islower() else text


def message(error: BelljarError) -> str:
    where = f"{printable(error.where)}: " if error.where else ""
    what = "\n".join(printable(line) for line in error.what.splitlines())
    hints = "".join(f"\n  hint: {printable(line)}" for line in error.hint.splitlines())
    return f"belljar: {where}{what}{hints}"


def show(error: BelljarError, *, json_wanted: bool) -> None:
    if json_wanted:
        facts = {"code": error.code, "message": error.what}
        facts |= {"where": error.where, "hint": error.hint}
        click.echo(json.dumps({"error": facts}))  # beyond ASCII escaped, on one line
    else:
        click.echo(message(error), err=True)


def run_async(function: Callable[..., Awaitable[T]], *args: object, **kwargs: object) -> T:
    """Run the coroutine function and return its result.

    The first SIGINT, SIGTERM or SIGHUP cancels it; its clean-up is waited for. Raise
    `KeyboardInterrupt` then, from the clean-up's `BelljarError` if any, or else a breach.
    """
    import anyio
    import anyio.lowlevel

    outcome: list[T] = []
    errors: list[Exception] = []

    async def cancel_on_signal(
        signals: AsyncIterator[signal.Signals], work: anyio.CancelScope
    ) -> None:
        await anext(signals)
        first_at_s = time.monotonic()
        work.cancel()
        async for number in signals:
            if time.monotonic() - first_at_s > FORCED_AFTER_S:
                os._exit(128 + number)

    async def until_signal() -> bool:
        # What is ignored stays so: a shell starts background jobs with SIGINT ignored.
        handled = [number for number in _SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
        with anyio.open_signal_receiver(*handled) as signals:
            async with anyio.create_task_group() as tasks:
                work = anyio.CancelScope()
                tasks.start_soon(cancel_on_signal, signals, work, name="signals")
                with work:
                    try:
                        outcome.append(await function(*args, **kwargs))
                    except Exception as error:  # noqa: BLE001 - raised below, not in a group
                        errors.append(error)
                        # A signal may be the cause (a child got it too): let it be handled first.
                        with anyio.CancelScope(shield=True):
                            for _ in range(_SIGNAL_CHECKPOINTS):
                                if not work.cancel_called:
                                    await anyio.lowlevel.checkpoint()
                tasks.cancel_scope.cancel()
        return work.cancel_called

    is_interrupted = anyio.run(until_signal)
    if errors:
        # An error of ours may be the signal's doing; a breach never is, nor a defect.
        failed = errors[0]
        is_ours = isinstance(failed, BelljarError) and not isinstance(failed, ContainmentBreach)
        if not (is_interrupted and is_ours):
            raise failed
    if not outcome:
        raise KeyboardInterrupt from (errors[0] if errors else None)
    return outcome[0]
