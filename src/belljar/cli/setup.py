"""`belljar setup`: prepares this host."""

from __future__ import annotations

import os
import platform
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, Literal

import click

from belljar.cli.console import MisuseError, as_text, json_option, of_error, print_json, progress
from belljar.errors import HostError
from belljar.host.tools import QEMU_MIN, SEARCH_PATH, ask_text, at_least
from belljar.image.apt import AptSource, debian_sources, has_suite, host_sources, kernel_sources
from belljar.image.config import debian_arch
from belljar.image.kernel import REQUIRED_MODULES, current_kernel, fetch_kernel
from belljar.image.store import Store
from belljar.image.tools import run_logged, tool
from belljar.store.home import HINT_SPACE, belljar_home, make_store_dir
from belljar.units import format_size, printable

PARTS: Final = ("build", "inspect")
"""Extra parts of `belljar setup --with`."""
BACKPORTS_FILE: Final = "/etc/apt/sources.list.d/belljar-backports.sources"
_BACKPORTS: Final = "bookworm-backports"
_APT: Final = "apt-get -q -y"
_TOOLS_DISK_BYTES: Final = 1 << 30
_IMAGES_DISK_BYTES: Final = 2 << 30
# Debian 12 and the suites that have everything new enough themselves
_SUITES: Final = frozenset({"bookworm", "trixie", "forky", "sid"})
_VERSION: Final = re.compile(r"version (\d{1,6}\.\d{1,6})")


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
    plan_now = partial(plan_setup, images=images, mirror=mirror, parts=frozenset(parts))
    state = host_state(home)
    plan = left = plan_now(state, refresh=refresh)
    act = not dry_run and (yes or not as_json) and bool(plan.steps)
    if not as_json and plan.steps:
        click.echo("Steps:")
        for number, step in enumerate(plan.steps, 1):
            click.echo(f"  {number}. {printable(step.title)}\n       {printable(step.command)}")
    if act and not yes:
        if not sys.stdin.isatty():
            raise MisuseError(
                "confirmation is needed, but standard input is not a terminal",
                hint="add --yes, or --dry-run to only show the steps",
            )
        click.confirm("Continue?", default=True, abort=True)
    if act:
        _carry_out(plan, home, mirror, quiet=as_json)
        left = plan_now(host_state(home))
    is_ready = not left.problems and not left.steps
    if as_json:
        steps = [{"title": step.title, "command": step.command, "done": act} for step in plan.steps]
        problems = [{"what": each.what, "hint": each.hint} for each in left.problems]
        about = {"ready": is_ready, "host": state.pretty_name, "home": os.fspath(home)}
        print_json({**about, "steps": steps, "problems": problems})
    else:
        for problem in left.problems:
            click.echo(as_text(of_error(problem)), err=True)
        if is_ready:
            click.echo(
                "This host is ready.\n"
                "Next: `belljar doctor` shows what it can do, and `belljar exec -- uname -a` runs "
                "a command in a cell."
            )
        elif not act and left.steps:
            click.echo("Nothing was changed.")
    return 0 if not left.problems and (dry_run or not left.steps) else HostError.exit_code


def _carry_out(plan: SetupPlan, home: Path, mirror: str, *, quiet: bool) -> None:
    """Each step in order. What apt prints is in a log, which its errors name."""
    from belljar.image.build import build_image, recipe

    make_store_dir(home)
    log = home / "setup.log"
    log.write_text("")
    log.chmod(0o600)
    for number, step in enumerate(plan.steps, 1):
        title = f"[{number}/{len(plan.steps)}] {step.title}"
        with progress(title, quiet=quiet, is_step=True) as report:
            if step.kind == "kernel":
                codename = platform.freedesktop_os_release().get("VERSION_CODENAME") or "bookworm"
                report("fetching and checking the package")
                sources = kernel_sources(host_sources(), codename, mirror=mirror)
                fetch_kernel(home, sources, REQUIRED_MODULES)
            elif step.kind == "image":
                build_image(home, recipe(step.detail), mirror=mirror, report=report)
            elif step.kind == "write":
                try:
                    Path(BACKPORTS_FILE).write_text(step.detail)
                    # Whatever root's umask: an ordinary user's setup reads it, too
                    Path(BACKPORTS_FILE).chmod(0o644)
                except OSError as error:
                    what = f"this file can't be written: {error.strerror}"
                    raise HostError(what, where=BACKPORTS_FILE, hint=step.command) from error
            else:
                # Fetching can be interrupted; unpacking, once begun, is finished first
                program, *arguments = step.command.split()
                argv, installs = [tool(program), *arguments], "install" in arguments
                if installs:
                    run_logged([*argv, "--download-only"], log=log, on_line=report)
                run_logged(argv, log=log, on_line=report, finish_when_interrupted=installs)


# --- what is present on this host


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
        tools=frozenset(need.command for need in needs(arch) if _is_there(need)),
        sources=tuple(host_sources()),
        kernel=kernel_version,
        images=images,
        free_bytes=shutil.disk_usage(place).free,
    )


def _is_there(need: Need) -> bool:
    path = shutil.which(need.command, path=f"{os.environ.get('PATH', '')}:{SEARCH_PATH}")
    if path is None or not need.least_version:
        return path is not None
    match = _VERSION.search(ask_text(path, ("--version",)))
    return match is not None and at_least(match[1], need.least_version)


# --- what would be done; pure: the state of the host is handed in


@dataclass(frozen=True, slots=True)
class Need:
    """A tool: command, Debian's package, what for; `only_with`: the part of `--with` for it."""

    command: str
    package: str
    use: str
    backports: bool = False
    least_version: str = ""
    only_with: str = ""

    def __str__(self) -> str:
        least = f" ≥ {self.least_version}" if self.least_version else ""
        return f"{self.command}{least} ({self.use})"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostState:
    """`tools`: the needed commands that are there, and new enough."""

    distribution: str
    codename: str
    pretty_name: str
    is_root: bool
    debian_arch: str
    tools: frozenset[str]
    sources: Sequence[AptSource] = ()
    kernel: str = ""
    images: frozenset[str] = frozenset()
    free_bytes: int = 1 << 40


@dataclass(frozen=True, slots=True)
class Step:
    """`command` does it, too. `detail`: the text of `BACKPORTS_FILE`, or the name of the image."""

    kind: Literal["write", "run", "kernel", "image"]
    title: str
    command: str
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SetupPlan:
    """Ordered steps, and what prevents readiness after them."""

    steps: tuple[Step, ...] = ()
    problems: tuple[HostError, ...] = ()


def needs(debian_arch: str) -> tuple[Need, ...]:
    """Every tool for this architecture."""
    is_arm = debian_arch == "arm64"
    qemu = "qemu-system-aarch64" if is_arm else "qemu-system-x86_64"
    package = "qemu-system-arm" if is_arm else "qemu-system-x86"
    return (
        Need(qemu, package, "microVM cells", backports=True, least_version=QEMU_MIN),
        Need("runc", "runc", "container cells"),
        Need("runsc", "runsc", "gVisor cells", backports=True),
        Need("nft", "nftables", "ranges' packet rules"),
        Need("mmdebstrap", "mmdebstrap", "building images"),
        Need("sqfstar", "squashfs-tools", "packing images"),
        Need("skopeo", "skopeo", "importing images"),
        Need("zstd", "zstd", "importing images"),
        Need("newuidmap", "uidmap", "cells of ordinary users"),
        Need("buildah", "buildah", "building images from Dockerfiles", only_with="build"),
    )


def missing_tools(state: HostState, parts: frozenset[str] = frozenset()) -> list[Need]:
    """The needed tools that are missing or too old."""
    return [
        need
        for need in needs(state.debian_arch)
        if need.only_with in {"", *parts} and need.command not in state.tools
    ]


def plan_setup(
    state: HostState,
    *,
    images: Sequence[str] = ("default",),
    refresh: bool = False,
    mirror: str = "",
    parts: frozenset[str] = frozenset(),
) -> SetupPlan:
    """The steps to a ready host, and remaining problems; `parts`: of `PARTS`.

    Raises `HostError` when a step needs a Debian mirror and none is known, or there is no room.
    """
    missing = missing_tools(state, parts)
    named = f"missing: {', '.join(map(str, missing))}"
    if missing and (state.distribution != "debian" or state.codename not in _SUITES):
        what = (
            f"{named}; packages are installed on Debian 12 or 13, and this is {state.pretty_name}"
        )
        packages = " ".join(need.package for need in missing)
        hint = f"install them, by Debian's names: {packages}\nthen run `belljar setup` again"
        return SetupPlan(problems=(HostError(what, where="setup", hint=hint),))
    installing, problems = _installing(state, missing) if missing else [], list[HostError]()
    if missing and not state.is_root:
        commands = (step.command for step in installing)
        hint = "\n".join(["as root, run `belljar setup`, or:", *commands])
        problems, installing = [HostError(named, where="setup", hint=hint)], []
    making = list[Step]()
    if refresh or not state.kernel:
        title = "Fetch the guest kernel (Debian's cloud kernel; not installed on this host)"
        making.append(Step("kernel", title, "belljar setup --no-image"))
    absent = {need.command for need in missing} if problems else set()
    for name in images if not absent & {"mmdebstrap", "sqfstar"} else ():
        if refresh or name not in state.images:
            build = f"belljar image build {name}"
            making.append(Step("image", f"Build the image {name}", build, name))
    if making:  # without a mirror, refuse before anything is begun
        debian_sources(state.sources, "bookworm", mirror=mirror)
        needed = sum(_IMAGES_DISK_BYTES for step in making if step.detail) + _TOOLS_DISK_BYTES
        if state.free_bytes < needed:
            both = f"{format_size(needed)} of disk is needed, and {format_size(state.free_bytes)}"
            what = f"about {both} is free where the store is"
            raise HostError(what, where="setup", hint=HINT_SPACE)
    return SetupPlan(steps=(*installing, *making), problems=tuple(problems))


def _installing(state: HostState, missing: Sequence[Need]) -> list[Step]:
    """Add backports if needed, update, install from each suite."""
    newer = [need.package for need in missing if need.backports and state.codename == "bookworm"]
    plain = [need.package for need in missing if need.package not in newer]
    steps = []
    if newer and not has_suite(state.sources, _BACKPORTS):
        main = debian_sources(state.sources, "bookworm")[0]
        suite = AptSource(uri=main.uri, suites=(_BACKPORTS,), signed_by=main.signed_by)
        text = suite.deb822()
        on_one_line = text.replace("\n", "\\n")
        command = f"printf '{on_one_line}' > {BACKPORTS_FILE}"
        steps.append(Step("write", f"Add the suite {_BACKPORTS} to apt", command, text))
    steps.append(Step("run", "Read the package lists", f"{_APT} update"))
    for suite_name, packages, option in (
        (_BACKPORTS, newer, f" -t {_BACKPORTS}"),
        (state.codename, plain, ""),
    ):
        if packages:
            names = sorted(packages)
            title = f"Install from {suite_name}: {', '.join(names)}"
            command = f"{_APT} install --no-install-recommends{option} {' '.join(names)}"
            steps.append(Step("run", title, command))
    return steps
