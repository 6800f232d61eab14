"""`belljar setup` and `belljar bundle`."""

from __future__ import annotations

import os
import platform
import shlex
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import click

from belljar.cli import console
from belljar.errors import HostError, PolicyError
from belljar.host.tools import MAPPERS, Tool, tool_facts, tools_for
from belljar.image.build import AptSource, debian_sources, host_sources, kernel_sources
from belljar.image.kernel import REQUIRED_MODULES, current_kernel, fetch_kernel
from belljar.image.store import Store
from belljar.image.tools import run_logged
from belljar.ledger.keys import parse_fingerprint
from belljar.store.home import belljar_home, make_store_dir
from belljar.units import format_size, printable

if TYPE_CHECKING:
    from belljar.compose.document import ServiceBuild

BACKPORTS_FILE: Final = "/etc/apt/sources.list.d/belljar-backports.sources"
_BACKPORTS: Final = "bookworm-backports"
# Debian 12 and the suites that have everything new enough themselves
_SUITES: Final = frozenset({"bookworm", "trixie", "forky", "sid"})
# Packages that are too old in Debian 12, or lacking.
_NEWER: Final = frozenset({"qemu-system-x86", "qemu-system-arm", "runsc"})
# Carries a step out; its argument takes a line for each stage.
Act = Callable[[Callable[[str], None]], object]


class Step(NamedTuple):
    """One thing to do, which `command` does by hand."""

    title: str
    command: str
    act: Act


@click.command()
@click.option("--yes", "-y", is_flag=True, help="Don't ask for confirmation.")
def setup(*, yes: bool) -> int:
    """Install what Belljar needs on this host: tools, guest kernel, default image.

    Lists the steps with their commands and asks for confirmation. Can be run again: only what is
    missing is installed. Without root, it fetches the kernel, builds the image and prints the
    command that root must run.

    \b
    Exit codes:
      0  the host is ready
      3  something is still missing
    """
    home = belljar_home()
    steps, problem = plan_setup(home)
    if steps:
        click.echo("Steps:")
        for number, step in enumerate(steps, 1):
            click.echo(f"  {number}. {printable(step.title)}\n       {printable(step.command)}")
        if not yes:
            if not sys.stdin.isatty():
                raise console.MisuseError(
                    "standard input is no terminal to confirm at", hint="add --yes"
                )
            click.confirm("Continue?", default=True, abort=True)
        make_store_dir(home)
        for number, step in enumerate(steps, 1):
            step.act(
                console.progress(f"[{number}/{len(steps)}] {step.title}", quiet=False, is_step=True)
            )
        # Planned again, to see what is still missing.
        steps, problem = plan_setup(home)
    if problem is not None:
        click.echo(console.message(problem), err=True)
    elif not steps:
        click.echo("This host is ready. Next: `belljar doctor`, `belljar exec -- uname -a`")
    return HostError.exit_code if steps or problem else 0


def plan_setup(home: Path) -> tuple[list[Step], HostError | None]:
    """Return the steps, and what they leave missing."""
    sources, steps, problem, release = host_sources(), list[Step](), None, _release()
    codename = release.get("VERSION_CODENAME", "")
    missing = _missing(home)
    packages = sorted({tool.package for tool in missing})
    tools = (f"{n.name}{f' ≥ {n.needed_min}' * bool(n.needed_min)} ({n.use})" for n in missing)
    named = f"missing: {', '.join(tools)}"
    if missing and (release.get("ID") != "debian" or codename not in _SUITES):
        this = release.get("PRETTY_NAME") or platform.system()
        what = f"{named}; packages are installed on Debian 12 or 13, and this is {this}"
        hint = f"install them, by Debian's names: {' '.join(packages)}\nthen run `belljar setup`"
        return [], HostError(what, where="setup", hint=hint)
    if missing:
        line = install_line(missing, codename, sources)
        if os.geteuid() == 0:
            step = Step(f"Install {', '.join(packages)}", line, partial(_install, home, line))
            steps.append(step)
        else:
            problem = HostError(named, where="setup", hint=f"as root, run:\n{line}")
    making = list[Step]()
    if not _has_kernel(home):
        title = "Fetch the guest kernel (Debian's cloud kernel; not installed on this host)"
        kernel = partial(_fetch_kernel, home, codename or "bookworm")
        making.append(Step(title, "belljar setup", kernel))
    # Root's step installs both first; an ordinary user can build only where they are.
    can_build = problem is None or not {"mmdebstrap", "squashfs-tools"} & {*packages}
    if can_build and Store(home).missing("default") is not None:
        build = partial(_build_image, home)
        making.append(Step("Build the image default", "belljar image build default", build))
    if making:  # without a mirror, refuse before anything is begun
        debian_sources(sources, "bookworm")
    return [*steps, *making], problem


def needs(arch: str) -> tuple[Tool, ...]:
    return (
        *tools_for(arch),
        Tool("runc", "runc", "container cells"),
        Tool("runsc", "runsc", "gVisor cells"),
        *(Tool(name, "uidmap", "cells of ordinary users") for name in MAPPERS),
    )


def _missing(home: Path) -> list[Tool]:
    wanted = needs(platform.machine())
    facts = tool_facts(wanted, home / "facts" / "tools.json")
    return [tool for tool, fact in zip(wanted, facts, strict=True) if not fact.ok]


def install_line(missing: Sequence[Tool], codename: str, sources: Sequence[AptSource]) -> str:
    apt, commands = "apt-get -q -y", list[str]()
    wanted = {tool.package for tool in missing}
    newer = sorted(wanted & _NEWER if codename == "bookworm" else ())
    plain = sorted(wanted - {*newer})
    if newer and not any(_BACKPORTS in each.suites for each in sources):
        suite = AptSource(debian_sources(sources, "bookworm")[0].uri, (_BACKPORTS,))
        text = shlex.quote(suite.deb822().replace("\n", "\\n"))
        # An ordinary user's setup reads it too, whatever root's umask
        commands.append(f"printf %b {text} > {BACKPORTS_FILE} && chmod 644 {BACKPORTS_FILE}")
    commands.append(f"{apt} update")
    for packages, option in ((newer, f" -t {_BACKPORTS}"), (plain, "")):
        if packages:
            install = f"{apt} install --no-install-recommends{option}"
            commands.append(f"{install} {' '.join(packages)}")
    return " && ".join(commands)


def _install(home: Path, line: str, report: Callable[[str], None]) -> None:
    log = home / "setup.log"
    log.write_text("")
    log.chmod(0o600)
    report("apt's output is in setup.log")
    run_logged(["/bin/sh", "-c", line], log=log)


def _fetch_kernel(home: Path, codename: str, report: Callable[[str], None]) -> None:
    report("fetching and checking the package")
    sources = kernel_sources(host_sources(), codename)
    fetch_kernel(home, sources)


def _build_image(home: Path, report: Callable[[str], None]) -> None:
    from belljar.image.build import RECIPES, build_image

    build_image(home, RECIPES["default"], report)


def _release() -> dict[str, str]:
    try:
        return platform.freedesktop_os_release()
    except OSError:
        return {}


def _has_kernel(home: Path) -> bool:
    """Return false for one without the modules needed now."""
    with suppress(HostError):
        return current_kernel(home).wanted == REQUIRED_MODULES
    return False


# --- bundle


# A bare Debian has neither Python nor `mount`.
_BASE = ("mount", "python3", "python3-venv")
_BUNDLE = click.argument("bundle", type=click.Path(path_type=Path))
_KEY = click.option(
    "--key",
    metavar="FINGERPRINT",
    callback=console.parsed_by(lambda text: text and parse_fingerprint(text)),
    help="The key that must have signed. Default: that of the bundle installed last.",
)


@click.group("bundle")
def bundle() -> None:
    """Carry an installation to a host without a network."""


@bundle.command()
@click.argument("out", type=click.Path(path_type=Path))
@click.option("--image", "images", multiple=True, metavar="REF", help="Also this image.")
@click.option("--task", metavar="TASK", help="Also the images of this task's samples.")
@click.option(
    "-T",
    "task_args",
    multiple=True,
    metavar="NAME=VALUE",
    help="Set a task argument. Repeatable.",
    # As Inspect's command line has it
    callback=lambda _ctx, _param, values: [word for each in values for word in ("-T", each)],
)
@click.option("--model", "models", multiple=True, metavar="FILE", help="Also this model cell.")
@console.json_option("Print one JSON object: path, digest, key, size, items.")
def create(
    *,
    out: Path,
    images: tuple[str, ...],
    task: str | None,
    task_args: list[str],
    models: tuple[str, ...],
    as_json: bool,
) -> None:
    """Make a bundle, a directory, of everything that a host without a network needs.

    Run it from a checkout. It holds Belljar and its Python packages, Debian packages with their
    dependencies, guest kernel, images, weights, documentation and examples. Refused, with the
    names, if anything is missing. After an interruption, run it again.

    The digest that it prints must reach the other host by another way than the bundle.
    """
    from belljar.bundle import Contents, create_bundle
    from belljar.harness.source import build_missing
    from belljar.policy.load import load_policy

    root = Path(__file__).resolve().parents[3]
    cells = [load_policy(each).policy for each in models]
    if others := [path for path, cell in zip(models, cells, strict=True) if cell.model is None]:
        raise console.MisuseError(f"{others[0]} has no block `model`")
    of_task, builds = images_of_task([task, *task_args]) if task else ([], [])
    tools = {tool.package for tool in needs(platform.machine())} - {"buildah"}
    contents = Contents(
        images=(
            *("default", *images, *(image for cell in cells for image in cell.images), *of_task),
            # A run looks at the bases of what was built to see that it is up to date
            *(base for each in builds for base in _bases(each)),
        ),
        packages=(*_BASE, *sorted(tools - _NEWER)),
        newer=tuple(sorted(tools & _NEWER)),
        weights=tuple(cell.model.weights.sha256 for cell in cells if cell.model),
        lock=root / "requirements.lock",
        checkout=root,
    )

    def report(line: str) -> None:
        if not as_json:
            click.echo(f"  {printable(line)}", err=True)

    build_missing(builds, {*of_task}, belljar_home(), report=report)
    made = create_bundle(belljar_home(), out.absolute(), contents, report=report)
    about = {
        "path": str(out),
        "digest": made.digest,
        "key": made.signer,
        "size_bytes": made.about["size_bytes"],
        "items": len(made.digests),
    }
    if as_json:
        console.print_json(about)
        return
    click.echo(
        f"{out}: {len(made.digests)} items, {format_size(made.about['size_bytes'])}\n"
        f"digest  {made.digest}\nkey     {made.signer}\n"
        "On the other host, in the bundle's directory, with the digest from here:\n"
        f'  echo "{made.digest}  SHA256SUMS" | sha256sum -c && sha256sum -c --quiet SHA256SUMS\n'
        "  sh install.sh"
    )


def images_of_task(inspect_args: Sequence[str]) -> tuple[list[str], list[ServiceBuild]]:
    """Return the images and builds of all samples of a task, which is loaded but not run.

    Its changes to the environment (a `.env` file's, too) end here. Raises `PolicyError`;
    `ContainmentBreach` when another sandbox provider was about to be used.
    """
    from belljar.harness.evaluate import load_only
    from belljar.harness.options import RunRequest

    before = dict(os.environ)
    try:
        previews = load_only(RunRequest(inspect_args=inspect_args))[-1]
    finally:
        os.environ.clear()
        os.environ.update(before)
    images: list[str] = []
    builds: list[ServiceBuild] = []
    for each in previews:
        if each.policy is not None:
            images += each.policy.policy.images
            builds += (one for one in each.asked.builds if one.image in each.policy.policy.images)
        elif each.error is not None:
            where = f"task {each.task}, sample {each.sample}"
            raise PolicyError(each.error.what, where=where)
    return images, builds


def _bases(build: ServiceBuild) -> tuple[str, ...]:
    from belljar.image.dockerfile import MAX_BYTES, base_images
    from belljar.policy.files import read_regular
    from belljar.policy.reference import parse_reference

    try:
        content = build.inline or read_regular(
            Path(build.root), build.dockerfile, MAX_BYTES
        ).decode("utf-8")
        found = base_images(content, build.args, target=build.target)
        return tuple(parse_reference(image).familiar for image in found.images)
    # A Dockerfile that can't be read is reported when it is built.
    except (OSError, ValueError):
        return ()


@bundle.command()
@_BUNDLE
@_KEY
def verify(*, bundle: Path, key: str | None) -> None:
    """Check a bundle's signature and every file; install nothing.

    \b
    Exit codes:
      0  it is whole, and signed by the key
      4  it is not
    """
    from belljar.bundle import installed, open_bundle

    key = key or installed(belljar_home()).get("signer")
    report = console.progress("verifying", quiet=False)
    found = open_bundle(bundle, expected_key=key)
    found.verify(report)
    about = found.about
    known = "the key that was expected" if key else "compared with no known key: give --key"
    click.echo(
        f"{printable(str(bundle))}: verified, {len(found.digests)} items, "
        f"{format_size(about['size_bytes'])}\n"
        f"  created {about['created']} by Belljar {about['belljar']}, digest {found.digest}\n"
        f"  signed by {found.signer}\n  {known}"
    )


@bundle.command()
@_BUNDLE
@_KEY
@click.option("--no-packages", is_flag=True, help="Only the store: kernel, images, weights, docs.")
@click.option("--allow-older", is_flag=True, help="Also over a bundle that was made later.")
def install(*, bundle: Path, key: str | None, no_packages: bool, allow_older: bool) -> None:
    """Install a bundle, over an older one if there is one. Needs no network.

    Everything is verified before anything is written. On a host that has no Belljar yet, run the
    bundle's install.sh.
    """
    from belljar.bundle import install_bundle, installed

    home = belljar_home()
    expected = key or installed(home).get("signer")
    if expected is None:
        hint = "give --key FINGERPRINT, as `belljar bundle create` printed it"
        raise console.MisuseError("no key is known that may sign a bundle", hint=hint)
    report = console.progress("installing the bundle", quiet=False, is_step=True)
    found = install_bundle(
        home,
        bundle,
        expected_key=expected,
        packages=not no_packages,
        allow_older=allow_older,
        report=report,
    )
    click.echo(f"installed {len(found.digests)} items, created {found.about['created']}")
    click.echo(f"documentation and examples: {printable(str(home / 'share'))}")
