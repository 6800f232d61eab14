"""What `belljar setup` would do: needed against present, as numbered steps.

Pure: the host's state is handed in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from belljar.image.apt import AptSource, debian_sources, has_suite
from belljar.units import format_size

PARTS: Final = ("build", "inspect")
"""Extra parts of `belljar setup --with`."""
BACKPORTS_FILE: Final = "/etc/apt/sources.list.d/belljar-backports.sources"
_APT: Final = ("apt-get", "-q", "-y")
_TOOLS_DISK_BYTES: Final = 1 << 30
_IMAGES_DISK_BYTES: Final = 2 << 30
# Suites that have everything new enough themselves.
_WHOLE_SUITES: Final = frozenset({"trixie", "forky", "sid"})


@dataclass(frozen=True, slots=True)
class Need:
    """A tool: command, Debian's package, what for; `elsewhere`: its name on Fedora.

    `only_with`: the part of `setup --with` that needs it.
    """

    command: str
    package: str
    use: str
    backports: bool = False
    least_version: tuple[int, ...] = ()
    elsewhere: str = ""
    only_with: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostState:
    """`tools`: found commands and versions; () = not asked."""

    distribution: str
    codename: str
    pretty_name: str
    is_root: bool
    debian_arch: str
    tools: Mapping[str, tuple[int, ...]]
    sources: Sequence[AptSource] = ()
    kernel: str = ""
    images: frozenset[str] = frozenset()
    free_bytes: int = 1 << 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Write `content` to `BACKPORTS_FILE`, run `command`, fetch a kernel, or build `name`."""

    kind: Literal["write", "run", "kernel", "image"]
    title: str
    command: tuple[str, ...] = ()
    content: str = ""
    name: str = ""


@dataclass(frozen=True, slots=True)
class Problem:
    """`blocks_all`: no step is done before it is solved."""

    what: str
    hint: str
    blocks_all: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SetupPlan:
    """Ordered steps, and what prevents readiness after them."""

    steps: tuple[Step, ...] = ()
    problems: tuple[Problem, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """`parts`: of `PARTS`."""

    images: tuple[str, ...] = ("default",)
    refresh: bool = False
    mirror: str = ""
    parts: frozenset[str] = frozenset()


def needs(debian_arch: str) -> tuple[Need, ...]:
    """Every tool for this architecture."""
    arm = debian_arch == "arm64"
    qemu = "qemu-system-aarch64" if arm else "qemu-system-x86_64"
    package = "qemu-system-arm" if arm else "qemu-system-x86"
    return (
        Need(
            qemu,
            package,
            "microVM cells",
            backports=True,
            least_version=(8, 2),
            elsewhere="qemu-kvm",
        ),
        Need("runc", "runc", "container cells"),
        Need("runsc", "runsc", "gVisor cells", backports=True, elsewhere="runsc (gvisor.dev)"),
        Need("nft", "nftables", "ranges' packet rules"),
        Need("mmdebstrap", "mmdebstrap", "building images"),
        Need("sqfstar", "squashfs-tools", "packing images"),
        Need("skopeo", "skopeo", "importing images"),
        Need("zstd", "zstd", "importing images"),
        Need("newuidmap", "uidmap", "cells of ordinary users", elsewhere="shadow-utils"),
        Need("buildah", "buildah", "building images from Dockerfiles", only_with="build"),
    )


def missing_tools(state: HostState, parts: frozenset[str] = frozenset()) -> list[Need]:
    """The needed tools that are missing or too old."""
    return [
        need
        for need in needs(state.debian_arch)
        if need.only_with in {"", *parts}
        and ((version := state.tools.get(need.command)) is None or version < need.least_version)
    ]


def plan_setup(state: HostState, wanted: Wanted) -> SetupPlan:
    """The steps to a ready host, and remaining problems.

    Raises `HostError` when a step needs a Debian mirror and none is known.
    """
    missing = missing_tools(state, wanted.parts)
    named = "missing: " + ", ".join(f"{version_text(need)} ({need.use})" for need in missing)
    if missing and state.distribution != "debian":
        return SetupPlan(problems=(_elsewhere(state, missing, named),))
    if missing and state.codename not in {"bookworm", *_WHOLE_SUITES}:
        what = f"{named}; the packages of {state.pretty_name} are too old"
        return SetupPlan(problems=(Problem(what, "use Debian 12 or 13"),))
    installing = _installing(state, missing) if missing else []
    problems = []
    if missing and not state.is_root:
        commands = (shown(step) for step in installing)
        hint = "\n".join(["as root, run `belljar setup`, or:", *commands])
        problems, installing = [Problem(named, hint)], []
    absent = {need.command for need in missing} if problems else set()
    making = _making(state, wanted, is_building=not absent & {"mmdebstrap", "sqfstar"})
    if making:
        debian_sources(state.sources, "bookworm", mirror=wanted.mirror)
    problems += _no_space(state, making)
    return SetupPlan(steps=(*installing, *making), problems=tuple(problems))


def version_text(need: Need) -> str:
    """`command` with the version it must have."""
    least = ".".join(map(str, need.least_version))
    return f"{need.command} ≥ {least}" if least else need.command


def _installing(state: HostState, missing: Sequence[Need]) -> list[Step]:
    """Add backports if needed, update, install from each suite."""
    newer = [need.package for need in missing if need.backports and state.codename == "bookworm"]
    plain = [need.package for need in missing if need.package not in newer]
    steps = []
    if newer and not has_suite(state.sources, "bookworm-backports"):
        main = debian_sources(state.sources, "bookworm")[0]
        suite = AptSource(uri=main.uri, suites=("bookworm-backports",), signed_by=main.signed_by)
        title = "Add the suite bookworm-backports to apt"
        steps.append(Step(kind="write", title=title, content=suite.deb822()))
    steps.append(Step(kind="run", title="Read the package lists", command=(*_APT, "update")))
    for suite_name, packages, option in (
        ("bookworm-backports", newer, ("-t", "bookworm-backports")),
        (state.codename, plain, ()),
    ):
        if packages:
            names = sorted(packages)
            title = f"Install from {suite_name}: {', '.join(names)}"
            command = (*_APT, "install", "--no-install-recommends", *option, *names)
            steps.append(Step(kind="run", title=title, command=command))
    return steps


def _making(state: HostState, wanted: Wanted, *, is_building: bool) -> list[Step]:
    steps = []
    if wanted.refresh or not state.kernel:
        title = "Fetch the guest kernel (Debian's cloud kernel; not installed on this host)"
        steps.append(Step(kind="kernel", title=title))
    for name in wanted.images if is_building else ():
        if wanted.refresh or name not in state.images:
            steps.append(Step(kind="image", title=f"Build the image {name}", name=name))
    return steps


def _no_space(state: HostState, making: Sequence[Step]) -> list[Problem]:
    needed = sum(_IMAGES_DISK_BYTES for step in making if step.kind == "image")
    needed += _TOOLS_DISK_BYTES if making else 0
    if state.free_bytes >= needed:
        return []
    what = (
        f"about {format_size(needed)} of disk is needed, and {format_size(state.free_bytes)} is "
        f"free where the store is"
    )
    hint = "free some space, or set BELLJAR_HOME to a directory on a larger disk"
    return [Problem(what, hint, blocks_all=True)]


def _elsewhere(state: HostState, missing: Sequence[Need], named: str) -> Problem:
    """Names packages as the distribution probably does."""
    names = [need.package for need in missing]
    if state.distribution in {"ubuntu", "linuxmint", "pop", "raspbian"}:
        how = "sudo apt-get install --no-install-recommends"
    elif state.distribution in {"fedora", "rhel", "centos", "rocky", "almalinux"}:
        names, how = [need.elsewhere or need.package for need in missing], "sudo dnf install"
    else:
        names = [version_text(need) for need in missing]
        how = "install with your distribution's tool:"
    only = f"`belljar setup` installs packages on Debian only, and this is {state.pretty_name}"
    hint = f"{how} {' '.join(names)}\nthen run `belljar setup` again"
    return Problem(f"{named}; {only}", hint)


def shown(step: Step) -> str:
    """A step as a command line."""
    if step.kind == "write":
        text = step.content.rstrip("\n").replace("\n", "\\n")
        return f"printf '{text}\\n' > {BACKPORTS_FILE}"
    if step.kind == "run":
        return " ".join(step.command)
    return (
        f"belljar image build {step.name}" if step.kind == "image" else "belljar setup --no-image"
    )
