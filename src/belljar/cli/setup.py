"""`belljar setup`: prepares this host."""

from __future__ import annotations

import os
import platform
import re
import shutil
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final, TextIO

import click

from belljar.cli.console import Failure, Misuse, Report, as_text, json_option, print_json, progress
from belljar.cli.setup_plan import (
    BACKPORTS_FILE,
    PARTS,
    HostState,
    Need,
    SetupPlan,
    Step,
    Wanted,
    needs,
    plan_setup,
    shown,
)
from belljar.errors import HostError
from belljar.image.apt import host_sources, kernel_sources
from belljar.image.kernel import REQUIRED_MODULES, current_kernel, debian_arch, fetch_kernel
from belljar.image.store import Store, sync_file
from belljar.image.tools import run_logged, run_tool, tool
from belljar.store.home import belljar_home, make_store_dir
from belljar.units import printable


@click.command()
@click.option("--yes", "-y", is_flag=True, help="Don't ask for confirmation.")
@click.option("--dry-run", is_flag=True, help="Only show the steps.")
@click.option("--no-image", is_flag=True, help="Don't build images.")
@click.option("--dev-image", is_flag=True, help="Also build the image debian-dev (compilers, pip).")
@click.option(
    "--with",
    "parts",
    multiple=True,
    type=click.Choice(PARTS),
    help="Also: `build`, buildah, which builds images from Dockerfiles; `inspect`, the image that "
    "tasks for plain Docker run in (1 GB, three minutes).",
)
@click.option("--refresh", is_flag=True, help="Fetch the kernel and build the images again.")
@click.option(
    "--mirror",
    default="",
    metavar="URL",
    help="Debian mirror for the kernel and images [default: this host's].",
)
@json_option("Print one JSON object. Without --yes, nothing is changed.")
def setup(
    *,
    yes: bool,
    dry_run: bool,
    no_image: bool,
    dev_image: bool,
    parts: tuple[str, ...],
    refresh: bool,
    mirror: str,
    as_json: bool,
) -> int:
    """Install what Belljar needs on this host: tools, guest kernel, default image.

    Lists the steps with their commands and asks for confirmation. Can be run again: only what is
    missing is installed. Without root, it fetches the kernel, builds the image and prints the
    commands that root must run.

    \b
    Exit codes:
      0  the host is ready
      3  something is still missing
    """
    home = belljar_home()
    asked = {"default": not no_image, "debian-dev": dev_image, "inspect": "inspect" in parts}
    images = tuple(name for name, is_asked in asked.items() if is_asked)
    wanted = Wanted(images=images, refresh=refresh, mirror=mirror, parts=frozenset(parts))
    state = host_state(home)
    plan = plan_setup(state, wanted)
    act = not dry_run and (yes or not as_json)
    if not as_json and plan.steps:
        click.echo("Steps:")
        for number, step in enumerate(plan.steps, 1):
            click.echo(f"  {number}. {printable(step.title)}\n       {printable(shown(step))}")
    if act and plan.steps and not yes:
        if not sys.stdin.isatty():
            raise Misuse(
                "confirmation is needed, but standard input is not a terminal",
                hint="add --yes, or --dry-run to only show the steps",
            )
        click.confirm("Continue?", default=True, abort=True)
    is_blocked = any(problem.blocks_all for problem in plan.problems)
    done = _carry_out(plan, home, wanted, quiet=as_json) if act and not is_blocked else []
    left = plan_setup(host_state(home), replace(wanted, refresh=False)) if done else plan
    is_ready = not left.problems and not left.steps
    if as_json:
        steps = [
            {"title": step.title, "command": shown(step), "done": step in done}
            for step in plan.steps
        ]
        problems = [{"what": each.what, "hint": each.hint} for each in left.problems]
        about = {"ready": is_ready, "host": state.pretty_name, "home": os.fspath(home)}
        print_json({**about, "steps": steps, "problems": problems})
    else:
        for problem in left.problems:
            click.echo(as_text(Failure("", problem.what, "setup", problem.hint)), err=True)
        if is_ready:
            click.echo(
                "This host is ready.\n"
                "Next: `belljar doctor` shows what it can do, and `belljar exec -- uname -a` runs "
                "a command in a cell."
            )
        elif not act and left.steps:
            click.echo("Nothing was changed.")
    return 0 if not left.problems and (dry_run or not left.steps) else HostError.exit_code


def _carry_out(plan: SetupPlan, home: Path, wanted: Wanted, *, quiet: bool) -> list[Step]:
    """Each step in order; errors name the log of all output."""
    from belljar.image.build import build_image, recipe

    if not plan.steps:
        return []
    make_store_dir(home)
    log = home / "setup.log"
    log.write_text("")
    log.chmod(0o600)
    for number, step in enumerate(plan.steps, 1):
        title = f"[{number}/{len(plan.steps)}] {step.title}"
        with progress(title, quiet=quiet, is_step=True) as report:
            if step.kind == "write":
                write_root_file(Path(BACKPORTS_FILE), step.content)
            elif step.kind == "run":
                # Run apt. Fetching can be interrupted; unpacking, once begun, is finished first
                program, *arguments = step.command
                argv, installs = [tool(program), *arguments], "install" in arguments
                if installs:
                    run_logged([*argv, "--download-only"], log=log, on_line=report)
                run_logged(argv, log=log, on_line=report, finish_when_interrupted=installs)
            elif step.kind == "kernel":
                codename = platform.freedesktop_os_release().get("VERSION_CODENAME") or "bookworm"
                report("fetching and checking the package")
                sources = kernel_sources(host_sources(), codename, mirror=wanted.mirror)
                fetch_kernel(home, sources, REQUIRED_MODULES)
            else:
                with log.open("a") as file:

                    def keep(line: str, file: TextIO = file, report: Report = report) -> None:
                        file.write(f"{line}\n")
                        report(line)

                    build_image(home, recipe(step.name), mirror=wanted.mirror, report=keep)
    return list(plan.steps)


def write_root_file(path: Path, content: str) -> None:
    """Write atomically, readable by all."""
    part = path.with_name(f".{path.name}.new")
    try:
        part.write_text(content)
        part.chmod(0o644)
        sync_file(part)
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise HostError(
            f"this file can't be written: {error.strerror}",
            where=str(path),
            hint="run `belljar setup` as root",
        ) from error


# --- what is present on this host


_SEARCHED: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_VERSION: Final = re.compile(r"version (\d{1,6})\.(\d{1,6})")


def host_state(home: Path) -> HostState:
    """The host and the store in `home`. Raises `HostError`."""
    if platform.system() != "Linux":
        raise HostError(
            f"Belljar runs on Linux, and this is {platform.system()}",
            hint="use a Linux machine, or a virtual machine with Linux",
        )
    release: Mapping[str, str] = {}
    with suppress(OSError):
        release = platform.freedesktop_os_release()
    # A kernel without the modules that guests need now counts as missing.
    kernel_version, images = "", frozenset[str]()
    with suppress(HostError):
        kernel = current_kernel(home)
        kernel_version = kernel.version if kernel.wanted == REQUIRED_MODULES else ""
    with suppress(HostError):
        images = frozenset(name for image in Store(home).list() for name in image.names)
    arch = debian_arch()
    place = next(path for path in (home, *home.parents) if path.is_dir())
    return HostState(
        distribution=release.get("ID", "unknown"),
        codename=release.get("VERSION_CODENAME", ""),
        pretty_name=release.get("PRETTY_NAME", "an unknown Linux"),
        is_root=os.geteuid() == 0,
        debian_arch=arch,
        tools={
            need.command: version for need in needs(arch) if (version := _version(need)) is not None
        },
        sources=tuple(host_sources()),
        kernel=kernel_version,
        images=images,
        free_bytes=shutil.disk_usage(place).free,
    )


def _version(need: Need) -> tuple[int, ...] | None:
    path = shutil.which(need.command, path=f"{os.environ.get('PATH', '')}:{_SEARCHED}")
    if path is None or not need.least_version:
        return None if path is None else ()
    try:
        match = _VERSION.search(
            run_tool([path, "--version"], timeout_s=20).decode("utf-8", "replace")
        )
    except HostError:
        return None
    return (int(match[1]), int(match[2])) if match else ()
