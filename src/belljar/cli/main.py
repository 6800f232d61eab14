"""The command group, and the one place where errors become messages and exit codes.

Nothing heavy is imported here: `belljar --help` must answer in under 0.3 s.
"""

from __future__ import annotations

import errno
import os
import select
import signal
import sys
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import click

from belljar.cli import console
from belljar.descriptors import exhaustion, raise_soft_limit
from belljar.errors import BelljarError, ContainmentBreach, HostError, chained, first_of
from belljar.interrupts import hold_ignored_interrupt
from belljar.package import __version__

# Module, attribute and summary, printed without an import.
COMMANDS: Final[dict[str, tuple[str, str, str]]] = {
    "setup": ("setup", "setup", "Install what is needed: tools, guest kernel, image."),
    "doctor": ("doctor", "doctor", "Check which tiers can be used here, and why not."),
    "policy": ("policy", "policy", "Check a policy; print the schema or a preset."),
    "plan": ("policy", "plan", "Print what a cell of a policy could do on this host."),
    "image": ("image", "image", "Build, import, name, list, inspect and remove images."),
    "model": ("model", "model", "Host a model in a cell: weights, image, serving."),
    "check": ("policy", "check", "Show how a task would run here, without running it."),
    "run": ("run", "run", "Run an Inspect evaluation in cells."),
    "fleet": ("doctor", "fleet", "Make this machine a node of a fleet."),
    "exec": ("exec", "exec_command", "Run one command in a fresh cell."),
    "shell": ("sessions", "shell", "Open a terminal in a fresh cell."),
    "probe": ("exec", "probe", "Try to break out of a fresh cell, and report the verdict."),
    "attach": ("sessions", "attach", "Open a terminal in a cell of a running evaluation."),
    "ps": ("cells", "ps", "List cells and who owns them."),
    "watch": ("cells", "watch", "Show running cells like `top`."),
    "serve": ("cells", "serve", "Serve a page that shows runs while they last."),
    "airgap": ("doctor", "airgap", "Check which ways lead beyond this host."),
    "bundle": ("setup", "bundle", "Carry an installation to a host without a network."),
    "reap": ("cells", "reap", "Remove what crashed owners left behind."),
    "kill": ("cells", "kill", "Halt cells of this user at once, with proof."),
    "release": ("cells", "release", "Allow new cells again after `kill --hold`."),
    "prune": ("cells", "prune", "Remove unused templates and unpacked images."),
    "runs": ("run", "runs", "List run directories."),
    "verdict": ("run", "verdict", "Judge a run by its record, offline."),
    "report": ("report", "report", "Write the report of a run: one HTML file."),
    "export": ("export", "export", "Write the record of a run in another tool's format."),
    "share": ("export", "share", "Copy a run without its contents, so that it still verifies."),
    "replay": ("export", "replay", "Play a cell's commands in this terminal."),
    "ledger": ("ledger", "ledger", "Verify or show the record of a run."),
}

# What people type who know other tools or earlier versions, and what has it here.
_ELSEWHERE: Final = {
    "help": "`belljar --help`",
    "logs": "`belljar ledger show`",
    "stats": "`belljar watch`",
    "view": "`belljar report`",
    "guard": "`belljar ledger show RUN --kind guard`",
    "ledger export": "`belljar export RUN --format jsonl`",
    "forward": "`cell.connect(port)` in Python; no command replaces it",
    "purge": "`belljar share RUN OUT --redact CLASS`, and delete RUN's own directory",
}
_RAISED: Final = (KeyboardInterrupt, BelljarError, click.ClickException, OSError, SystemExit)


class _LazyGroup(click.Group):
    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:  # click leaves for one, and hides what it came of
            if _breach_of(error) is None and _without_a_reader():
                raise
            raise RuntimeError("a pipe broke that is not standard output") from error

    def get_command(self, _ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, attribute, _ = COMMANDS[cmd_name]
        command: click.Command = getattr(import_module(f"belljar.cli.{module}"), attribute)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        for typed in (args[0], " ".join(args[:2])):
            if (here := _ELSEWHERE.get(typed)) is not None:
                raise console.MisuseError(f"no such command '{typed}'", hint=f"use {here}")
        return super().resolve_command(ctx, args)

    def format_commands(self, _ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, _, summary) in COMMANDS.items()])


@click.command(
    cls=_LazyGroup,
    commands={name: click.Command(name) for name in COMMANDS},  # for suggestions alone
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@click.version_option(__version__, prog_name="belljar")
def root() -> None:
    """Run high-risk AI evaluations in sealed, ephemeral, recorded cells.

    \b
    Exit codes:
      0    success
      1    an evaluation or check failed
      2    wrong usage; or containment was breached, or evidence of it is missing
      3    this host lacks something
      4    the policy, task or input file is wrong
      5    a cell or its record failed
      130  interrupted
    `belljar exec` ends with the exit code of the command it ran.
    """


def main(argv: list[str] | None = None) -> None:
    _open_standard_streams()
    hold_ignored_interrupt()
    raise_soft_limit()
    try:
        code = run(argv)
    except KeyboardInterrupt:  # another one, while the first was being told
        code = 130
    # The exit code stands: a late signal must not tear the interpreter's shutdown.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    sys.exit(code)


def _open_standard_streams() -> None:
    # Closed ones become /dev/null, else the next file opened would be the guest's output.
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            os.dup2(os.open(os.devnull, os.O_RDWR), number, inheritable=True)
            setattr(sys, name, os.fdopen(number, mode, closefd=False))


def run(argv: list[str] | None = None) -> int:
    words = sys.argv[1:] if argv is None else argv
    # What follows `--` is the guest's command, which may have such an option itself.
    json_wanted = "--json" in (words[: words.index("--")] if "--" in words else words)
    # Click colours a terminal whatever NO_COLOR says; elsewhere it never does.
    colour = False if os.environ.get("NO_COLOR") else None
    completes = os.environ.get("_BELLJAR_COMPLETE")  # a shell asks click, which answers and leaves
    try:
        result: Any = root.main(
            args=words, prog_name="belljar", standalone_mode=False, color=colour
        )
    except click.exceptions.Exit as leave:
        return leave.exit_code
    except SystemExit as leave:
        if _without_a_reader():  # so rich and click leave
            return _reader_gone()
        if completes and isinstance(leave.code, int):
            return leave.code
        # No command leaves so, and a library's or a task's 0 would read as "contained".
        raise RuntimeError(f"the command was left by sys.exit({leave.code!r})") from leave
    except BaseException as error:  # noqa: BLE001 - what is a defect of ours is raised again
        try:
            return _fail(error, json_wanted=json_wanted)
        except BrokenPipeError:
            if _without_a_reader():
                return _reader_gone()
            raise
    return result if isinstance(result, int) else 0


def _fail(error: BaseException, *, json_wanted: bool) -> int:
    """Return the exit code. Raise a defect of ours."""
    if isinstance(error, click.exceptions.NoArgsIsHelpError) and not json_wanted:
        error.show()
        return error.exit_code
    if (breach := _breach_of(error)) is not None:
        # Its exit code stands, whatever fails while it is shown
        try:
            console.show(breach, json_wanted=json_wanted)
            sys.stdout.flush()
        except (OSError, KeyboardInterrupt):
            _reader_gone()
        return breach.exit_code
    # Task groups wrap what they raise
    leaf = next(filter(None, (first_of(error, kind) for kind in _RAISED)), error)
    if isinstance(leaf, BrokenPipeError) and _without_a_reader():
        return _reader_gone()
    if isinstance(leaf, click.Abort | KeyboardInterrupt):
        told = console.CommandLineError("interrupted", "interrupted; nothing was left running")
        # The first error of the clean-up
        if cause := next((each for each in chained(error) if isinstance(each, BelljarError)), None):
            what = f"interrupted: {cause.what}"
            told = console.CommandLineError("interrupted", what, cause.where, cause.hint)
        console.show(told, json_wanted=json_wanted)
        return 130
    if isinstance(leaf, click.ClickException):
        console.show(console.of_usage(leaf), json_wanted=json_wanted)
        return leaf.exit_code
    found = exhaustion(leaf) or (leaf if isinstance(leaf, BelljarError) else None)
    if found is None and isinstance(error, OSError):
        found = _host_error(error)
    if found is None:
        if json_wanted:
            what = f"{type(error).__name__}: {error}"
            hint = "the traceback is on standard error; please report it"
            console.show(
                console.CommandLineError("internal_error", what, hint=hint), json_wanted=True
            )
        raise error
    console.show(found, json_wanted=json_wanted)
    return found.exit_code


def _breach_of(error: BaseException) -> ContainmentBreach | None:
    return next((each for each in chained(error) if isinstance(each, ContainmentBreach)), None)


def _without_a_reader() -> list[int]:
    outputs = select.poll()
    # No event is asked for: an error or a lost reader is reported anyway (poll(2)).
    for number in (1, 2):
        outputs.register(number, 0)
    gone = select.POLLERR | select.POLLHUP
    return [number for number, events in outputs.poll(0) if events & gone]


def _reader_gone() -> int:
    # Standard output always: what is still buffered for it would fail at the interpreter's end.
    for number in {1, *_without_a_reader()}:
        os.dup2(os.open(os.devnull, os.O_WRONLY), number)
    return 141  # 128 + SIGPIPE, as a shell reports it.


def _host_error(error: OSError) -> HostError | None:
    from belljar.store.home import belljar_home

    # EFBIG is a limit on a file's size, EIO a device that fails.
    no_room = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}
    # A write to an open descriptor names no file, unlike an error of the store.
    if error.filename is None and error.errno in no_room:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # nothing more is written there
        what = f"standard output can't be written: {error.strerror}"
        return HostError(what, hint="send it where there is room")
    where = str(error.filename) if isinstance(error.filename, (str, os.PathLike)) else ""
    # Another file's error is a defect, whose traceback is needed.
    if not where or not Path(where).is_relative_to(belljar_home()):
        return None
    return HostError(
        f"the store can't be used: {error.strerror}",
        where=where,
        hint="set BELLJAR_HOME to a directory of your own, or work as the user who owns this one",
    )
