"""Makes a bundle on a connected host: everything, or nothing and the names of what is missing.

The parts are gathered in `.NAME.part` beside the bundle. What is there already, whole and right, is
kept, so that an interrupted call goes on where it was. The bundle appears by a rename.
"""

from __future__ import annotations

import fcntl
import hashlib
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
    sign,
    sums,
)
from belljar.dataclass import dataclass
from belljar.errors import HostError, PolicyError
from belljar.image.apt import AptSource, DebFile, PrivateApt, debian_sources, host_sources
from belljar.image.kernel import REQUIRED_MODULES, Kernel, current_kernel, debian_arch
from belljar.image.store import Image, Store, file_sha256, sync_file
from belljar.image.tools import run_tool, tool
from belljar.ledger.keys import load_or_make_key
from belljar.package import __version__
from belljar.store.scratch import remove_tree, scratch_dir
from belljar.units import format_size, printable

DISTRIBUTION: Final = "belljar-sandbox"
_EXTRAS: Final = frozenset({"guard", "inspect", "network"})
_BACKPORTS: Final = "bookworm-backports"
_REST_BYTES: Final = 1 << 30  # of Python packages, whose size no index says beforehand
_TOOLS: Final = "inspect_ai/binaries/inspect-sandbox-tools-"
_CODE: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")
_PYTHON: Final = re.compile(r"python3\.\d+_(?:\d+%3a)?(3\.\d+\.\d+)[^_]*_[^_]+\.deb")
_REQUIRES: Final = re.compile(r"^Requires-Python: (.+)$", re.MULTILINE)
_UNUSED: Final = frozenset({"__pycache__", "logs", "node_modules"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What a bundle holds besides Belljar and its documentation.

    `packages` and `newer`: Debian's, the second from backports on Debian 12. `lock`: a file of
    exact versions with hashes; None: the versions that are installed here. `checkout`: where the
    documentation and the examples are; None: they can't be had.
    """

    images: tuple[str, ...]
    packages: tuple[str, ...]
    newer: tuple[str, ...] = ()
    weights: tuple[Path, ...] = ()
    lock: Path | None = None
    checkout: Path | None = None
    mirror: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A file of this host that becomes an item."""

    kind: ItemKind
    name: str
    path: str
    file: Path


def checkout() -> Path | None:
    """The directory of the source that this process runs from, if it is one."""
    root = Path(__file__).resolve().parents[3]
    return root if (root / "hatch_build.py").is_file() and (root / "docs").is_dir() else None


def create_bundle(home: Path, out: Path, wanted: Wanted, *, report: Report) -> Manifest:
    """Gather everything, sign the manifest, and rename the whole to `out`.

    Raises `HostError` that names everything that is missing; then there is no bundle.
    """
    if os.path.lexists(out):
        raise PolicyError(
            "something is there already",
            where=printable(str(out)),
            hint="give another name; a newer bundle installs over an older one",
        )
    sources, names = local_sources(home, wanted)
    codename = platform.freedesktop_os_release().get("VERSION_CODENAME", "")
    with _part(out) as part, scratch_dir(home) as scratch:
        apt, groups = _apt(scratch, codename, wanted)
        debs = {
            file.name: file for suite, some in groups for file in apt.closure(some, suite=suite)
        }
        python = debian_python(debs)
        local_bytes = sum(each.file.stat().st_size for each in sources)
        deb_bytes = sum(file.size for file in debs.values())
        report(
            f"{format_size(local_bytes)} of this store, {format_size(deb_bytes)} in {len(debs)} "
            f"Debian packages, and the Python packages"
        )
        _check_space(part, local_bytes + deb_bytes + _REST_BYTES)
        key = load_or_make_key(home)
        items = list(_debian(part, apt, groups, debs, wanted, key.fingerprint, report))
        items += _python(part, wanted, python, scratch, report)
        (scratch / "names.json").write_text(json.dumps(names, sort_keys=True))
        listed = Source(
            kind="image", name="names", path="images/names.json", file=scratch / "names.json"
        )
        for each in (*sources, listed):
            items.append(_copied(part, each, report))
        _drop_others(part, {item.path for item in items})
        manifest = Manifest(
            created=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            belljar=__version__,
            arch=debian_arch(),
            system=codename,
            python=f"{sys.version_info.major}.{sys.version_info.minor}",
            packages=tuple(sorted({*wanted.packages, *wanted.newer})),
            items=tuple(sorted(items, key=lambda item: item.path)),
        )
        encoded = encode(manifest)
        for name, content in (
            (SUMS, sums(manifest, encoded)),
            (SIGNATURE, sign(encoded, key)),
            (MANIFEST, encoded),
        ):
            (part / name).write_bytes(content)
            sync_file(part / name)
        part.rename(out)
    return manifest


def digest_of(bundle: Path) -> str:
    """What a person compares: the digest of `SHA256SUMS`, which covers everything else."""
    return file_sha256(bundle / SUMS)


# --- what this host has


def local_sources(home: Path, wanted: Wanted) -> tuple[list[Source], dict[str, dict[str, str]]]:
    """The store's files, weights and documentation; the names and origins of the images.

    Raises `HostError` for all that is missing together.
    """
    missing, sources = list[str](), list[Source]()
    names: dict[str, dict[str, str]] = {"names": {}, "origins": {}}
    store = Store(home)
    for ref in dict.fromkeys(wanted.images):
        try:
            image = store.find(ref)
        except HostError as error:
            missing.append(f"{error.what} ({error.hint})")
            continue
        sources += _of_image(image, ref)
        names["names"] |= dict.fromkeys(image.names, image.digest)
        names["origins"] |= dict.fromkeys(image.origins, image.digest)
    try:
        kernel = current_kernel(home)
        if kernel.wanted != REQUIRED_MODULES:
            missing.append("the guest kernel lacks modules (run `belljar setup --refresh`)")
        sources += _of_kernel(kernel)
    except HostError as error:
        missing.append(f"{error.what} ({error.hint})")
    for path in wanted.weights:
        if path.exists():
            sources += _of_tree("weights", path.name, path, f"weights/{path.name}")
        else:
            missing.append(f"weights {printable(str(path))}: there is no such file")
    if wanted.checkout is None:
        missing.append("documentation and examples (run it from a checkout of Belljar)")
    else:
        for kind in ("docs", "examples"):
            sources += _of_tree(kind, kind, wanted.checkout / kind, kind)
    if wanted.lock is not None and not wanted.lock.is_file():
        missing.append(f"lock file {printable(str(wanted.lock))}: there is no such file")
    if missing:
        what = f"the bundle would lack {len(missing)} thing(s): {'; '.join(missing)}"
        raise HostError(what, hint="get them, then create the bundle again")
    script = Path(__file__).with_name(SCRIPT)
    return [*sources, Source(kind="script", name=SCRIPT, path=SCRIPT, file=script)], names


def _of_image(image: Image, name: str) -> Iterator[Source]:
    for file in (image.rootfs, image.rootfs.with_name("image.json")):
        path = f"images/{image.digest}/{file.name}"
        yield Source(kind="image", name=name, path=path, file=file)


def _of_kernel(kernel: Kernel) -> Iterator[Source]:
    top = kernel.vmlinuz.parent
    files = (kernel.vmlinuz, kernel.config, top / "kernel.json", *kernel.modules)
    for file in files:
        path = f"kernels/{kernel.digest}/{file.relative_to(top)}"
        yield Source(kind="kernel", name=kernel.version, path=path, file=file)


def _of_tree(kind: ItemKind, name: str, top: Path, path: str) -> Iterator[Source]:
    """A file, or the files below a directory; links are refused."""
    if top.is_file():
        yield Source(kind=kind, name=name, path=path, file=top)
        return
    for file in sorted(top.rglob("*")):
        inner = file.relative_to(top)
        if file.is_dir() or _UNUSED & {*inner.parts} or inner.name.startswith("."):
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


def _item(part: Path, kind: ItemKind, file: Path, name: str = "") -> Item:
    size, path = file.stat().st_size, str(file.relative_to(part))
    return Item(kind=kind, name=name or file.name, path=path, size=size, sha256=file_sha256(file))


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
    part: Path,
    apt: PrivateApt,
    groups: _Groups,
    debs: Mapping[str, DebFile],
    wanted: Wanted,
    fingerprint: str,
    report: Report,
) -> Iterator[Item]:
    """The packages as a repository that apt can read."""
    folder = part / "debian"
    for file in folder.glob("*.deb"):
        if file.name in debs and file_sha256(file) != debs[file.name].sha256:
            file.unlink()
    for suite, packages in groups:
        report(f"Debian packages: {', '.join(packages)}")
        apt.download_closure(packages, folder, suite=suite)
    index = list[str]()
    for name, deb in sorted(debs.items()):
        file = folder / name
        if not file.is_file() or file_sha256(file) != deb.sha256:
            raise HostError("the package is not the one in apt's signed list", where=name)
        control = run_tool([tool("dpkg-deb"), "--field", str(file)], timeout_s=60).decode()
        extra = f"Filename: ./{name}\nSize: {deb.size}\nSHA256: {deb.sha256}\n"
        index.append(f"{control.rstrip()}\n{extra}")
        yield Item(
            kind="debian", name=name, path=f"debian/{name}", size=deb.size, sha256=deb.sha256
        )
    for name, text in (
        ("Packages", "\n".join(index)),
        ("install.txt", "".join(f"{each}\n" for each in (*wanted.newer, *wanted.packages))),
        ("key.txt", f"{fingerprint}\n"),
    ):
        (folder / name).write_text(text)
        yield _item(part, "debian", folder / name)


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
    part: Path, wanted: Wanted, python: str, scratch: Path, report: Report
) -> Iterator[Item]:
    """Wheels of the lock file or of what is installed, Belljar's own, and their hashes."""
    folder, mark = part / "python", part / ".python.json"
    exact = "\n".join(installed_versions()) if wanted.lock is None else ""
    lock = locked_for(wanted.lock.read_text(), python) if wanted.lock is not None else exact
    key = hashlib.sha256(lock.encode()).hexdigest()
    if _marked(mark, folder) != key:
        report("Python packages")
        remove_tree(folder)
        made = scratch / "wheels"
        file = scratch / "lock.txt"
        file.write_text(lock)
        hashes = ["--require-hashes"] if wanted.lock else []
        _pip(["--no-deps", *hashes, "--requirement", str(file), "--wheel-dir", str(made)])
        made.mkdir(exist_ok=True)
        shutil.copytree(made, folder)
        files = {wheel.name: file_sha256(wheel) for wheel in folder.glob("*.whl")}
        mark.write_text(json.dumps({"key": key, "files": files}))
    for old in folder.glob(f"{DISTRIBUTION.replace('-', '_')}-*"):
        old.unlink()
    report("Belljar's own wheel")
    own = [f"{DISTRIBUTION}=={__version__}"]
    if wanted.checkout is not None:
        can_build = all(map(_is_importable, ("hatchling", "ziglang")))
        own = [*(["--no-build-isolation"] if can_build else []), str(wanted.checkout)]
    _pip(["--no-deps", "--wheel-dir", str(folder), *own])
    wheels = sorted(folder.glob("*.whl"))
    _check_tools(wheels)
    _check_python(wheels, python)
    lines = list[str]()
    for wheel in wheels:
        item = _item(part, "python", wheel)
        name, version, *_ = wheel.name.split("-")
        lines.append(f"{name}=={version} --hash=sha256:{item.sha256}\n")
        yield item
    (folder / "requirements.txt").write_text("".join(lines))
    yield _item(part, "python", folder / "requirements.txt")


def _marked(mark: Path, folder: Path) -> str:
    """The key of what was fetched earlier, if every file is as it was."""
    try:
        found = json.loads(mark.read_text())
        same = all(file_sha256(folder / name) == sha for name, sha in found["files"].items())
        return str(found["key"]) if same else ""
    except (OSError, ValueError, KeyError, AttributeError):
        return ""


def _pip(arguments: Sequence[str]) -> None:
    argv = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--quiet"]
    try:
        run_tool([*argv, *arguments], timeout_s=7200)
    except HostError as error:
        what = f"a Python package can't be had: {error.what}"
        raise HostError(what, hint="check the network and pip's settings") from error


def _is_importable(name: str) -> bool:
    from importlib.util import find_spec

    return find_spec(name) is not None


def _check_tools(wheels: Sequence[Path]) -> None:
    """Inspect would fetch its tools for sandboxes from the network if its wheel had none."""
    own = f"{_TOOLS}{debian_arch()}-"
    for wheel in wheels:
        if wheel.name.startswith("inspect_ai-"):
            with zipfile.ZipFile(wheel) as file:
                if any(name.startswith(own) for name in file.namelist()):
                    return
    what = f"the bundle would lack Inspect's tools for sandboxes ({own}…)"
    raise HostError(what, hint="use a version of inspect-ai whose wheel has them")


def _check_python(wheels: Sequence[Path], python: str) -> None:
    """pip would refuse it, on a host where nothing can be fetched."""
    from packaging.specifiers import SpecifierSet

    for wheel in wheels:
        with zipfile.ZipFile(wheel) as file:
            name = next(each for each in file.namelist() if each.endswith(".dist-info/METADATA"))
            match = _REQUIRES.search(file.read(name).decode("utf-8", "replace"))
        if match is not None and python not in SpecifierSet(match[1]):
            what = f"the bundle would lack {wheel.name} for Python {python}: it needs {match[1]}"
            raise HostError(what, hint="give --lock FILE with versions for that Python")


def installed_versions() -> list[str]:
    """`name==version` of what Belljar with its extras needs, as it is installed here."""
    from importlib.metadata import PackageNotFoundError, distribution

    from packaging.requirements import Requirement

    found = dict[str, str]()
    queue: list[tuple[str, frozenset[str]]] = [(DISTRIBUTION, _EXTRAS)]
    seen = set[tuple[str, frozenset[str]]]()
    while queue:
        name, extras = queue.pop()
        key = re.sub(r"[-_.]+", "-", name).lower()
        if (key, extras) in seen:
            continue
        seen.add((key, extras))
        try:
            installed = distribution(name)
        except PackageNotFoundError as error:
            what = f"the bundle would lack the Python package {printable(name)}"
            raise HostError(what, hint="install it here, or give --lock FILE") from error
        if key != DISTRIBUTION:
            found[key] = f"{key}=={installed.version}"
        for line in installed.requires or ():
            need = Requirement(line)
            marks = [{"extra": each} for each in (*extras, "")]
            if need.marker is None or any(map(need.marker.evaluate, marks)):
                queue.append((need.name, frozenset(need.extras)))
    return sorted(found.values())
