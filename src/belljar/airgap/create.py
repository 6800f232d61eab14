"""Makes a bundle on a connected host: everything, or nothing and the names of what is missing.

The parts are gathered in `.NAME.part` beside the bundle. What is there already, whole and right, is
kept, so that an interrupted call goes on where it was. The bundle appears by a rename.
"""

from __future__ import annotations

import fcntl
import json
import os
import platform
import re
import shutil
import sys
import time
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from belljar.airgap.manifest import (
    MANIFEST,
    SCRIPT,
    SIGNATURE,
    SUMS,
    Item,
    ItemKind,
    Manifest,
    Report,
    encode,
    parse,
    sign,
    sums,
)
from belljar.dataclass import dataclass
from belljar.errors import HostError, PolicyError
from belljar.image.apt import AptSource, DebFile, PrivateApt, debian_sources, host_sources
from belljar.image.kernel import REQUIRED_MODULES, current_kernel, debian_arch
from belljar.image.store import Store, file_sha256, sync_file
from belljar.image.tools import run_tool, tool
from belljar.ledger.keys import load_or_make_key
from belljar.package import __version__
from belljar.store.scratch import remove_tree, scratch_dir
from belljar.units import format_size, printable

_BACKPORTS: Final = "bookworm-backports"
_REST_BYTES: Final = 1 << 30  # of Python packages, whose size no index says beforehand
_TOOLS: Final = "inspect_ai/binaries/inspect-sandbox-tools-"
_CODE: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")
_PYTHON: Final = re.compile(r"python3\.\d+_(?:\d+%3a)?(3\.\d+\.\d+)[^_]*_[^_]+\.deb")
_REQUIRES: Final = re.compile(r"^Requires-Python: (.+)$", re.MULTILINE)
_UNUSED: Final = frozenset({"__pycache__", "logs", "node_modules"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What a bundle holds.

    `packages` and `newer`: Debian's, the second from backports on Debian 12. `lock`: a file of
    exact versions with hashes. `checkout`: Belljar's source, with documentation and examples.
    """

    images: tuple[str, ...]
    packages: tuple[str, ...]
    newer: tuple[str, ...] = ()
    weights: tuple[Path, ...] = ()
    lock: Path
    checkout: Path
    mirror: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A file of this host that becomes an item."""

    kind: ItemKind
    name: str
    path: str
    file: Path


def create_bundle(home: Path, out: Path, wanted: Wanted, *, report: Report) -> Manifest:
    """Gather everything, sign the manifest, and rename the whole to `out`.

    Raises `HostError` that names everything that is missing; then there is no bundle.
    """
    if os.path.lexists(out):
        hint = "give another name; a newer bundle installs over an older one"
        raise PolicyError("something is there already", where=printable(str(out)), hint=hint)
    sources, names = local_sources(home, wanted)
    codename = platform.freedesktop_os_release().get("VERSION_CODENAME", "")
    if not codename:
        raise HostError("a bundle is made on Debian, and this is another system")
    with _part(out) as part, scratch_dir(home) as scratch:
        apt, groups = _apt(scratch, codename, wanted)
        debs = {deb.name: deb for suite, some in groups for deb in apt.closure(some, suite=suite)}
        python = debian_python(debs)
        local_bytes = sum(each.file.stat().st_size for each in sources)
        deb_bytes = sum(deb.size for deb in debs.values())
        report(
            f"{format_size(local_bytes)} of this store, {format_size(deb_bytes)} in {len(debs)} "
            f"Debian packages, and the Python packages"
        )
        _check_space(part, local_bytes + deb_bytes + _REST_BYTES)
        key = load_or_make_key(home)
        listed = scratch / "names.json"
        listed.write_text(json.dumps(names, sort_keys=True))
        sources.append(Source(kind="image", name="names", path="images/names.json", file=listed))
        items = [_copied(part, each, report) for each in sources]
        items += _debian(part / "debian", apt, groups, debs, key.fingerprint, report)
        items += _python(part / "python", wanted, python, scratch, report)
        _drop_others(part, {item.path for item in items})
        manifest = Manifest(
            created=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            belljar=__version__,
            arch=debian_arch(),
            system=codename,
            python=f"{sys.version_info.major}.{sys.version_info.minor}",
            items=tuple(sorted(items, key=lambda item: item.path)),
        )
        encoded = encode(manifest)
        listed_sums, signature = sums(manifest.items, encoded), sign(encoded, key)
        for name, content in ((SUMS, listed_sums), (SIGNATURE, signature), (MANIFEST, encoded)):
            (part / name).write_bytes(content)
            sync_file(part / name)
        part.rename(out)
    return parse(encoded, signature, expected_key=key.fingerprint)


# --- what this host has


def local_sources(home: Path, wanted: Wanted) -> tuple[list[Source], dict[str, dict[str, str]]]:
    """The store's files, weights and documentation; the names and origins of the images.

    Raises `HostError` for all that is missing together.
    """
    missing, sources = list[str](), list[Source]()
    names: dict[str, dict[str, str]] = {"names": {}, "origins": {}}
    for ref in dict.fromkeys(wanted.images):
        try:
            image = Store(home).find(ref)
        except HostError as error:
            missing.append(f"{error.what} ({error.hint})")
            continue
        sources += _tree("image", ref, image.rootfs.parent, f"images/{image.digest}")
        names["names"] |= dict.fromkeys(image.names, image.digest)
        names["origins"] |= dict.fromkeys(image.origins, image.digest)
    try:
        kernel = current_kernel(home)
        if kernel.wanted != REQUIRED_MODULES:
            missing.append("the guest kernel lacks modules (run `belljar setup --refresh`)")
        place = kernel.vmlinuz.parent
        sources += _tree("kernel", kernel.version, place, f"kernels/{kernel.digest}")
    except HostError as error:
        missing.append(f"{error.what} ({error.hint})")
    named: list[tuple[ItemKind, Path, str]] = [
        *(("weights", path, f"weights/{path.name}") for path in wanted.weights),
        ("docs", wanted.checkout / "docs", "docs"),
        ("examples", wanted.checkout / "examples", "examples"),
        ("script", Path(__file__).with_name(SCRIPT), SCRIPT),
    ]
    for kind, place, path in named:
        if place.exists():
            sources += _tree(kind, place.name, place, path)
        else:
            missing.append(f"{kind}: there is no {printable(str(place))}")
    if not wanted.lock.is_file():
        missing.append(f"Python packages: there is no lock file {printable(str(wanted.lock))}")
    if missing:
        what = f"the bundle would lack {len(missing)} thing(s): {'; '.join(missing)}"
        raise HostError(what, hint="get them, then create the bundle again; use a checkout")
    return sources, names


def _tree(kind: ItemKind, name: str, top: Path, path: str) -> Iterator[Source]:
    """A file, or the files below a directory; links are refused."""
    if top.is_file():
        yield Source(kind=kind, name=name, path=path, file=top)
        return
    is_text = kind in ("docs", "examples")
    for file in sorted(top.rglob("*")):
        inner = file.relative_to(top)
        if file.is_dir() and not file.is_symlink():
            continue
        if is_text and (_UNUSED & {*inner.parts} or inner.name.startswith(".")):
            continue
        if file.is_symlink() or not file.is_file() or not all(map(_CODE.fullmatch, inner.parts)):
            raise PolicyError("it can't be in a bundle", where=printable(str(file)))
        yield Source(kind=kind, name=name, path=f"{path}/{inner}", file=file)


# --- gathering


@contextmanager
def _part(out: Path) -> Iterator[Path]:
    """The directory in which the bundle grows; one call at a time."""
    part = out.with_name(f".{out.name}.part")
    part.mkdir(parents=True, exist_ok=True)
    lock = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise HostError("another command makes this bundle", where=str(out)) from error
        yield part
    except OSError as error:
        raise HostError(
            f"the bundle can't be written: {error.strerror}",
            where=printable(str(error.filename or out)),
            hint="free some space and run it again; what is there is kept",
        ) from error
    finally:
        os.close(lock)


def _check_space(part: Path, wanted_bytes: int) -> None:
    has = sum(file.stat().st_size for file in part.rglob("*") if file.is_file())
    free = shutil.disk_usage(part).free
    if free + has < wanted_bytes:
        what = f"about {format_size(wanted_bytes - has)} is needed, {format_size(free)} is free"
        raise HostError(what, where=str(part.parent), hint="give a place on a larger disk")


def _copied(part: Path, source: Source, report: Report) -> Item:
    """Copy one file, unless the same bytes are there already."""
    target = part / source.path
    sha256, size = file_sha256(source.file), source.file.stat().st_size
    if not (target.is_file() and target.stat().st_size == size and file_sha256(target) == sha256):
        report(f"{source.path} ({format_size(size)})")
        target.parent.mkdir(parents=True, exist_ok=True)
        fresh = target.with_name(f".{target.name}.new")
        shutil.copyfile(source.file, fresh)
        sync_file(fresh)
        fresh.replace(target)
        sha256 = file_sha256(target)
    return Item(kind=source.kind, name=source.name, path=source.path, size=size, sha256=sha256)


def _item(kind: ItemKind, file: Path) -> Item:
    size, path = file.stat().st_size, f"{file.parent.name}/{file.name}"
    return Item(kind=kind, name=file.name, path=path, size=size, sha256=file_sha256(file))


def _drop_others(part: Path, paths: set[str]) -> None:
    """Remove what an earlier, interrupted call wanted and this one doesn't."""
    for file in sorted(part.rglob("*"), reverse=True):
        if file.is_dir():
            with suppress(OSError):
                file.rmdir()
        elif str(file.relative_to(part)) not in paths:
            file.unlink()


_Groups = list[tuple[str, tuple[str, ...]]]


def _apt(scratch: Path, codename: str, wanted: Wanted) -> tuple[PrivateApt, _Groups]:
    """apt with this host's sources; the packages of each suite."""
    sources = debian_sources(host_sources(), codename, mirror=wanted.mirror)
    groups: _Groups = [("", (*wanted.packages, *wanted.newer))]
    if codename == "bookworm":
        main = sources[0]
        backports = AptSource(uri=main.uri, suites=(_BACKPORTS,), signed_by=main.signed_by)
        sources.append(backports)
        groups = [(_BACKPORTS, wanted.newer), ("", wanted.packages)]
    apt = PrivateApt(scratch / "apt", sources)
    apt.update()
    return apt, groups


def _debian(
    folder: Path,
    apt: PrivateApt,
    groups: _Groups,
    debs: Mapping[str, DebFile],
    fingerprint: str,
    report: Report,
) -> Iterator[Item]:
    """The packages as a repository that apt can read."""
    for file in folder.glob("*.deb"):
        if file.name in debs and file_sha256(file) != debs[file.name].sha256:
            file.unlink()
    for suite, packages in groups:
        report(f"Debian packages: {', '.join(packages)}")
        apt.download_closure(packages, folder, suite=suite)
    index = list[str]()
    for name, deb in sorted(debs.items()):
        item = _item("debian", folder / name)
        if item.sha256 != deb.sha256:
            raise HostError("the package is not the one in apt's signed list", where=name)
        control = run_tool([tool("dpkg-deb"), "--field", str(folder / name)], timeout_s=60).decode()
        extra = f"Filename: ./{name}\nSize: {deb.size}\nSHA256: {deb.sha256}\n"
        index.append(f"{control.rstrip()}\n{extra}")
        yield item
    for name, text in (
        ("Packages", "\n".join(index)),
        ("install.txt", "".join(f"{each}\n" for _, packages in groups for each in packages)),
        ("key.txt", f"{fingerprint}\n"),
    ):
        (folder / name).write_text(text)
        yield _item("debian", folder / name)


def debian_python(debs: Iterable[str]) -> str:
    """The version of Debian's Python among these packages' files.

    Raises `HostError` where this process, whose wheels are gathered, runs another minor version.
    """
    found = next((match[1] for name in debs if (match := _PYTHON.match(name))), "")
    own = f"{sys.version_info.major}.{sys.version_info.minor}"
    if not found.startswith(f"{own}."):
        what = f"the bundle's Python is Debian's {found or '(none)'}, and this process runs {own}"
        raise HostError(what, hint="run it by a virtual environment of Debian's python3")
    return found


def locked_for(lock: str, python: str) -> str:
    """The entries of a lock file that this version of Python needs, without their conditions.

    Pure. Raises `PolicyError`.
    """
    from packaging.requirements import InvalidRequirement, Requirement

    chosen = list[str]()
    for line in lock.replace("\\\n", " ").splitlines():
        head, *hashes = re.split(r"\s+--hash=", line.partition("#")[0].strip())
        if not head:
            continue
        try:
            need = Requirement(head)
        except InvalidRequirement:
            need = None
        if need is None or not hashes or not str(need.specifier).startswith("=="):
            what = f"{printable(head, max_chars=80)!r} is no exact version with hashes"
            raise PolicyError(what, where="lock file")
        if need.marker is None or need.marker.evaluate({"python_full_version": python}):
            extras = f"[{','.join(sorted(need.extras))}]" if need.extras else ""
            chosen.append(" --hash=".join([f"{need.name}{extras}{need.specifier}", *hashes]))
    return "\n".join([*chosen, ""])


def _python(
    folder: Path, wanted: Wanted, python: str, scratch: Path, report: Report
) -> Iterator[Item]:
    """Wheels of the lock file, Belljar's own, and their hashes. pip keeps what it has fetched."""
    report("Python packages")
    lock, made = scratch / "lock.txt", scratch / "wheels"
    lock.write_text(locked_for(wanted.lock.read_text(), python))
    _pip(["--require-hashes", "--requirement", str(lock), "--wheel-dir", str(made)])
    report("Belljar's own wheel")
    can_build = all(map(find_spec, ("hatchling", "ziglang")))
    isolated = ["--no-build-isolation"] if can_build else []
    _pip(["--wheel-dir", str(made), *isolated, str(wanted.checkout)])
    wheels = sorted(made.glob("*.whl"))
    _check_wheels(wheels, python)
    remove_tree(folder)
    folder.mkdir()
    lines = list[str]()
    for wheel in wheels:
        item = _item("python", Path(shutil.move(wheel, folder)))
        name, version, *_ = wheel.name.split("-")
        lines.append(f"{name}=={version} --hash=sha256:{item.sha256}\n")
        yield item
    (folder / "requirements.txt").write_text("".join(lines))
    yield _item("python", folder / "requirements.txt")


def _pip(arguments: Sequence[str]) -> None:
    options = ("--disable-pip-version-check", "wheel", "--quiet", "--no-deps")
    try:
        run_tool([sys.executable, "-m", "pip", *options, *arguments], timeout_s=7200)
    except HostError as error:
        what = f"a Python package can't be had: {error.what}"
        raise HostError(what, hint="check the network and pip's settings") from error


def _check_wheels(wheels: Sequence[Path], python: str) -> None:
    """Each fits this Python; Inspect's has its tools for sandboxes, which it would fetch else.

    pip would refuse a wheel on a host where no other can be fetched. Raises `HostError`.
    """
    from packaging.specifiers import SpecifierSet

    tools = f"{_TOOLS}{debian_arch()}-"
    has_tools = False
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as file:
            names = file.namelist()
            about = next(each for each in names if each.endswith(".dist-info/METADATA"))
            match = _REQUIRES.search(file.read(about).decode("utf-8", "replace"))
        has_tools = has_tools or any(name.startswith(tools) for name in names)
        if match is not None and python not in SpecifierSet(match[1]):
            what = f"the bundle would lack {wheel.name} for Python {python}: it needs {match[1]}"
            raise HostError(what, hint="give --lock FILE with versions for that Python")
    if not has_tools:
        what = f"the bundle would lack Inspect's tools for sandboxes ({tools}…)"
        raise HostError(what, hint="use a version of inspect-ai whose wheel has them")
