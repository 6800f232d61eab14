"""`belljar setup` and `belljar bundle`."""

from __future__ import annotations

import os
import platform
import shlex
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from belljar.cli import console
from belljar.errors import HostError, PolicyError
from belljar.host.tools import MAPPERS, Tool, tool_facts, tools_for
from belljar.image.build import AptSource, build_image, debian_sources, host_sources
from belljar.image.kernel import REQUIRED_MODULES, current_kernel, fetch_kernel
from belljar.image.store import Store
from belljar.image.tools import Report, run_logged
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
# Its title, with a line for its command, and what carries it out.
Step = tuple[str, Callable[[Report], object]]


@click.command()
@click.option("--yes", "-y", is_flag=True, help="Don't ask for confirmation.")
def setup(*, yes: bool) -> int:
    """Install what Belljar needs on this host: tools, guest kernel, default image.

    Lists the steps and asks for confirmation. Can be run again: only what is
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
        for number, (title, _) in enumerate(steps, 1):
            click.echo("\n       ".join(map(printable, f"  {number}. {title}".splitlines())))
        if not yes and not sys.stdin.isatty():
            what = "standard input is no terminal to confirm at"
            raise console.MisuseError(what, hint="add --yes")
        if not yes:
            click.confirm("Continue?", default=True, abort=True)
        make_store_dir(home)
        for number, (title, act) in enumerate(steps, 1):
            shown = f"[{number}/{len(steps)}] {title.splitlines()[0]}"
            act(console.progress(shown, quiet=False, is_step=True))
        # Planned again, to see what is still missing.
        steps, problem = plan_setup(home)
    if problem is not None:
        click.echo(console.message(problem), err=True)
    elif not steps:
        click.echo("This host is ready. Next: `belljar doctor`, `belljar exec -- uname -a`")
    return HostError.exit_code if steps or problem else 0


def plan_setup(home: Path) -> tuple[list[Step], HostError | None]:
    """Return the steps, and what they leave missing."""
    sources, steps, problem, release = host_sources(), list[Step](), None, dict[str, str]()
    with suppress(OSError):
        release = platform.freedesktop_os_release()
    codename, wanted = release.get("VERSION_CODENAME", ""), needs(platform.machine())
    facts = tool_facts(wanted, home / "facts" / "tools.json")
    missing = [tool for tool, fact in zip(wanted, facts, strict=True) if not fact.ok]
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
            title, argv = f"Install {', '.join(packages)}\n{line}", ["/bin/sh", "-c", line]
            steps.append((title, lambda _: run_logged(argv, log=home / "setup.log")))
        else:
            problem = HostError(named, where="setup", hint=f"as root, run:\n{line}")
    making, modules = list[Step](), tuple[str, ...]()
    with suppress(HostError):
        modules = current_kernel(home).wanted
    if modules != REQUIRED_MODULES:
        title = "Fetch the guest kernel (Debian's cloud kernel; not installed on this host)"
        making.append((title, partial(_fetch_kernel, home, codename)))
    # Root's step installs both first; an ordinary user can build only where they are.
    can_build = problem is None or not {"mmdebstrap", "squashfs-tools"} & {*packages}
    if can_build and Store(home).missing("default") is not None:
        making.append(("Build the image default", partial(build_image, home, "default")))
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


def _fetch_kernel(home: Path, codename: str, _report: Report) -> None:
    # Debian 12's own kernel is too old
    suite = codename if codename in _SUITES - {"bookworm"} else _BACKPORTS
    main = debian_sources(host_sources(), "bookworm")[0]
    fetch_kernel(home, [AptSource(main.uri, (suite,))])


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
    from belljar.image.missing import build_missing
    from belljar.model.serve import model_of
    from belljar.policy.load import load_policy

    def report(line: str) -> None:
        if not as_json:
            click.echo(f"  {printable(line)}", err=True)

    root, home = Path(__file__).resolve().parents[3], belljar_home()
    cells = [load_policy(each) for each in models]
    weights = tuple(model_of(cell).weights.sha256 for cell in cells)
    of_task, builds = images_of_task([task, *task_args]) if task else ([], [])
    build_missing(builds, {*of_task}, home, report=report)
    # A run looks at the bases of what was built to see that it is up to date
    bases = (Store(home).find(each.image).built.get("bases", ()) for each in builds)
    of_models = (image for cell in cells for image in cell.policy.images)
    tools = {tool.package for tool in needs(platform.machine())} - {"buildah"}
    contents = Contents(
        images=("default", *images, *of_models, *of_task, *chain.from_iterable(bases)),
        packages=(*_BASE, *sorted(tools - _NEWER)),
        newer=tuple(sorted(tools & _NEWER)),
        weights=weights,
        lock=root / "requirements.lock",
        checkout=root,
    )
    made = create_bundle(home, out.absolute(), contents, report=report)
    size_bytes, items = made.about["size_bytes"], len(made.digests)
    if as_json:
        facts = {"path": str(out), "digest": made.digest, "key": made.signer}
        console.print_json({**facts, "size_bytes": size_bytes, "items": items})
        return
    click.echo(
        f"{out}: {items} items, {format_size(size_bytes)}\n"
        f"digest  {made.digest}\nkey     {made.signer}\n"
        "On the other host, in the bundle's directory, with the digest from here:\n"
        f'  echo "{made.digest}  SHA256SUMS" | sha256sum -c && sha256sum -c --quiet SHA256SUMS\n'
        "  sh install.sh"
    )


def images_of_task(inspect_args: Sequence[str]) -> tuple[list[str], list[ServiceBuild]]:
    """Load a task. Raises `ContainmentBreach` for another sandbox provider."""
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
    options = {"packages": not no_packages, "allow_older": allow_older}
    found = install_bundle(home, bundle, expected_key=expected, report=report, **options)
    click.echo(f"installed {len(found.digests)} items, created {found.about['created']}")
    click.echo(f"documentation and examples: {printable(str(home / 'share'))}")
