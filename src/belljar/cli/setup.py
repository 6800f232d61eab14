"""`belljar setup`: what this host needs, shown, asked for and done."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from belljar.cli.failures import Misuse
from belljar.errors import HostError
from belljar.units import printable

if TYPE_CHECKING:
    from belljar.cli.setup_plan import HostState, SetupPlan, Step, Wanted

HOST_CANNOT_CODE = 3
Report = Callable[[str], None]


@click.command()
@click.option("--yes", "-y", is_flag=True, help="Don't ask.")
@click.option("--dry-run", is_flag=True, help="Only show what would be done.")
@click.option("--no-image", is_flag=True, help="Build no image.")
@click.option("--dev-image", is_flag=True, help="Build the image debian-dev (compilers, pip) too.")
@click.option(
    "--with",
    "parts",
    multiple=True,
    type=click.Choice(["build"]),
    help="Install this too: build (buildah, for images from Dockerfiles).",
)
@click.option("--refresh", is_flag=True, help="Fetch the kernel and build the images anew.")
@click.option(
    "--mirror",
    default="",
    metavar="URL",
    help="Debian mirror for kernel and images [default: this host's].",
)
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print one JSON object; does nothing unless --yes is given.",
)
def setup(
    yes: bool,  # noqa: FBT001 - click
    dry_run: bool,  # noqa: FBT001 - click
    no_image: bool,  # noqa: FBT001 - click
    dev_image: bool,  # noqa: FBT001 - click
    parts: tuple[str, ...],
    refresh: bool,  # noqa: FBT001 - click
    mirror: str,
    as_json: bool,  # noqa: FBT001 - click
) -> int:
    """Install what this host needs: tools, guest kernel, default image.

    Shows each step with its command and asks before it begins. Safe to run again: what is there is
    left alone. As an ordinary user, it makes the kernel and the image, and says what root must
    install. Exit code 3 when the host is not ready afterwards.
    """
    from belljar.cli.setup_plan import Wanted, check_wanted, plan_setup
    from belljar.cli.setup_state import host_state
    from belljar.store.home import belljar_home

    home = belljar_home()
    images = (() if no_image else ("default",)) + (("debian-dev",) if dev_image else ())
    wanted = Wanted(images=images, refresh=refresh, mirror=mirror, parts=frozenset(parts))
    state = host_state(home)
    plan = plan_setup(state, wanted)
    check_wanted(state, wanted)
    act = not dry_run and (yes or not as_json)
    if not as_json:
        _show(plan)
    if act and plan.steps and not yes:
        _ask()
    is_blocked = any(problem.blocks_all for problem in plan.problems)
    done = _carry_out(plan, home, wanted, quiet=as_json) if act and not is_blocked else []
    left = _remaining(home, wanted) if done else plan
    if as_json:
        _print_json(left, state, done, planned=plan, home=home)
    else:
        _conclude(left, acted=act)
    return 0 if not left.problems and (dry_run or not left.steps) else HOST_CANNOT_CODE


def _remaining(home: Path, wanted: Wanted) -> SetupPlan:
    """What is still missing, by looking again."""
    from dataclasses import replace

    from belljar.cli.setup_plan import plan_setup
    from belljar.cli.setup_state import host_state

    return plan_setup(host_state(home), replace(wanted, refresh=False))


def _ask() -> None:
    if not sys.stdin.isatty():
        raise Misuse(
            "it needs a confirmation, and standard input is not a terminal",
            hint="add --yes, or --dry-run to only look",
        )
    click.confirm("Go on?", default=True, abort=True)


def _carry_out(plan: SetupPlan, home: Path, wanted: Wanted, *, quiet: bool) -> list[Step]:
    """Do the steps in order; an error names the log, which has everything that the tools said."""
    from belljar.store.home import make_store_dir

    if not plan.steps:
        return []
    make_store_dir(home)
    log = home / "setup.log"
    log.write_text("")
    log.chmod(0o600)
    for number, step in enumerate(plan.steps, 1):
        with _progress(f"[{number}/{len(plan.steps)}] {step.title}", quiet=quiet) as report:
            if step.kind == "write":
                write_root_file(Path(step.path), step.content)
            elif step.kind == "run":
                # Run apt. Fetching can be interrupted; unpacking, once begun, is finished first
                command = step.command
                from belljar.image.tools import run_logged, tool

                argv = [tool(command[0]), *command[1:]]
                if "install" in command:
                    run_logged([*argv, "--download-only"], log=log, on_line=report)
                run_logged(
                    argv, log=log, on_line=report, finish_when_interrupted="install" in command
                )
            elif step.kind == "kernel":
                fetch_current_kernel(home, wanted.mirror, report)
            else:
                _build(step.name, home, wanted.mirror, log, report)
    return list(plan.steps)


def _build(name: str, home: Path, mirror: str, log: Path, report: Report) -> None:
    from belljar.image.build import build_image, recipe

    with log.open("a") as file:

        def keep(line: str) -> None:
            file.write(f"{line}\n")
            report(line)

        build_image(home, recipe(name), mirror=mirror, report=keep)


def fetch_current_kernel(home: Path, mirror: str, report: Report) -> None:
    """Fetch the guest kernel with the modules that the guest wants. Raises `HostError`."""
    import platform

    from belljar.image.apt import host_sources, kernel_sources
    from belljar.image.kernel import REQUIRED_MODULES, fetch_kernel

    codename = platform.freedesktop_os_release().get("VERSION_CODENAME", "")
    report("fetching and checking the package")
    fetch_kernel(
        home,
        kernel_sources(host_sources(), codename or "bookworm", mirror=mirror),
        REQUIRED_MODULES,
    )


def write_root_file(path: Path, content: str) -> None:
    """Write a file of the system whole or not at all, readable by all."""
    from belljar.image.store import sync_file

    part = path.with_name(f".{path.name}.new")
    try:
        part.write_text(content)
        part.chmod(0o644)
        sync_file(part)
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise HostError(
            f"it can't be written: {error.strerror}",
            where=str(path),
            hint="run `belljar setup` as root",
        ) from error


@contextmanager
def _progress(title: str, *, quiet: bool) -> Iterator[Report]:
    """A line for the step, with what its tool says last beside it while it works; a plain line when
    nobody watches.
    """
    from rich.console import Console
    from rich.markup import escape

    console = Console(stderr=True, quiet=quiet, highlight=False)
    shown = escape(printable(title, max_chars=300))
    if not console.is_terminal:
        console.print(shown)
        yield lambda _line: None
        return
    with console.status(shown) as status:
        yield lambda line: status.update(
            f"{shown}  [dim]{escape(printable(line, max_chars=70))}[/dim]"
        )
    console.print(f"[green]✓[/green] {shown}")


def _show(plan: SetupPlan) -> None:
    from belljar.cli.setup_plan import shown

    if plan.steps:
        click.echo("This is to be done:")
    for number, step in enumerate(plan.steps, 1):
        click.echo(f"  {number}. {printable(step.title)}")
        click.echo(f"       {printable(shown(step))}")


def _conclude(left: SetupPlan, *, acted: bool) -> None:
    for problem in left.problems:
        click.echo(f"belljar: {printable(problem.what)}", err=True)
        for line in problem.hint.splitlines():
            click.echo(f"  hint: {printable(line)}", err=True)
    if not left.problems and not left.steps:
        click.echo(
            "This host is ready. `belljar doctor` says what it can do; `belljar exec -- uname "
            "-a` runs a command in a cell."
        )
    elif not acted and left.steps:
        click.echo("Nothing was done.")


def _print_json(
    left: SetupPlan, state: HostState, done: list[Step], *, planned: SetupPlan, home: Path
) -> None:
    from belljar.cli.setup_plan import shown

    document: dict[str, Any] = {
        "ready": not left.problems and not left.steps,
        "host": state.pretty_name,
        "home": os.fspath(home),
        "steps": [
            {"title": step.title, "command": shown(step), "done": step in done}
            for step in planned.steps
        ],
        "problems": [{"what": problem.what, "hint": problem.hint} for problem in left.problems],
    }
    click.echo(json.dumps(document, indent=2))
