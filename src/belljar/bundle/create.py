"""Makes a bundle on a connected host: everything, or nothing and the names of what is missing.

The parts are gathered in `.NAME.part` beside the bundle. What is there already is kept, so that an
interrupted call goes on where it was. The bundle appears by a rename.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import sys
import time
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from belljar.bundle.install import (
    ABOUT,
    PATH,
    SCRIPT,
    SHARE,
    Bundle,
    Report,
    open_bundle,
    write_manifest,
)
from belljar.dataclass import dataclass
from belljar.errors import HostError, PolicyError
from belljar.image.apt import AptSource, PrivateApt, debian_sources, host_sources
from belljar.image.kernel import REQUIRED_MODULES, current_kernel, debian_arch
from belljar.image.store import Store, file_sha256
from belljar.image.tools import run_tool, tool
from belljar.ledger.keys import load_or_make_key
from belljar.model.weights import find_weights, verify_weights
from belljar.package import __version__
from belljar.store.locks import locked
from belljar.store.scratch import remove_tree, scratch_dir
from belljar.units import format_size, printable

_BACKPORTS: Final = "bookworm-backports"
_PYTHON: Final = "/usr/bin/python3"  # Debian's: the wheels must fit it, not this process
_VERSION: Final = "import sys; print('%d.%d' % sys.version_info[:2])"
_REST_BYTES: Final = 1 << 30  # of Python packages, whose size no index says beforehand
_TOOLS: Final = "inspect_ai/binaries/inspect-sandbox-tools-"
_UNUSED: Final = frozenset({"__pycache__", "logs", "node_modules"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """The contents of a bundle.

    `packages` and `newer`: Debian's, the second from backports on Debian 12. `weights`: names or
    digests in the store. `lock`: a file of exact versions with hashes. `checkout`: Belljar's
    source, with documentation and examples.
    """

    images: tuple[str, ...]
    packages: tuple[str, ...]
    newer: tuple[str, ...] = ()
    weights: tuple[str, ...] = ()
    lock: Path
    checkout: Path


def create_bundle(home: Path, out: Path, wanted: Contents, *, report: Report) -> Bundle:
    """Gather everything, sign the manifest, and rename the whole to `out`.

    Raises `HostError` that names everything that is missing; then there is no bundle.
    """
    if os.path.lexists(out):
        hint = "give another name; a newer bundle installs over an older one"
        raise PolicyError("something is there already", where=printable(str(out)), hint=hint)
    files, about = store_files(home, wanted)
    codename = platform.freedesktop_os_release().get("VERSION_CODENAME", "")
    if not (codename and Path(_PYTHON).exists()):
        raise HostError("a bundle is made on Debian with its python3, and this host lacks it")
    key = load_or_make_key(home)
    with _part(home, out) as part, scratch_dir(home) as scratch:
        apt, groups = _apt(scratch, codename, wanted)
        debs = dict[str, int]()
        for suite, packages in groups:
            debs |= apt.closure(packages, suite=suite)
        own_bytes = sum(file.stat().st_size for file in files.values())
        report(
            f"{format_size(own_bytes)} of this store, {format_size(sum(debs.values()))} in "
            f"{len(debs)} Debian packages, and the Python packages"
        )
        has = sum(file.stat().st_size for file in part.rglob("*") if file.is_file())
        needs = own_bytes + sum(debs.values()) + _REST_BYTES - has
        if (free := shutil.disk_usage(part).free) < needs:
            what = f"about {format_size(needs)} is needed, {format_size(free)} is free"
            raise HostError(what, where=str(out.parent), hint="give a place on a larger disk")
        for name, file in files.items():
            _copy(file, part / name, report)
        for suite, packages in groups:
            report(f"Debian packages: {', '.join(packages)}")
            apt.download_closure(packages, part / "debian", suite=suite)
        wheels = _wheels(part / "python", wanted, scratch, report)
        texts = {
            "debian/Packages": _index(part / "debian", debs),
            "debian/install.txt": "".join(f"{each}\n" for _, some in groups for each in some),
            "key.txt": f"{key.fingerprint}\n",
        }
        for name, text in texts.items():
            (part / name).write_text(text)
        names = {*files, *texts, *(f"debian/{deb}" for deb in debs), *wheels}
        _keep_only(part, names)
        about |= {
            "v": 1,
            "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "belljar": __version__,
            "arch": debian_arch(),
            "system": codename,
            "python": run_tool([_PYTHON, "-c", _VERSION], timeout_s=60).decode().strip(),
            "size_bytes": sum((part / name).stat().st_size for name in names),
        }
        (part / ABOUT).write_text(json.dumps(about, indent=1) + "\n")
        report("hashing")
        write_manifest(part, {name: file_sha256(part / name) for name in (*names, ABOUT)}, key)
        os.sync()
        part.rename(out)
    return open_bundle(out, expected_key=key.fingerprint)


# --- the store


def store_files(home: Path, wanted: Contents) -> tuple[dict[str, Path], dict[str, Any]]:
    """The files of the store and the checkout by their paths in the bundle; their names.

    Raises `HostError` for all that is missing together.
    """
    missing, files = list[str](), dict[str, Path]()
    about: dict[str, Any] = {"images": [], "weights": []}

    @contextmanager
    def named_if_missing() -> Iterator[None]:
        try:
            yield
        except HostError as error:
            missing.append(f"{error.what} ({error.hint})")

    for ref in dict.fromkeys(wanted.images):
        with named_if_missing():
            image = Store(home).find(ref)
            files |= _tree(image.rootfs.parent, f"images/{image.digest}")
            named = {"names": [*image.names], "origins": [*image.origins]}
            about["images"].append({"digest": image.digest, **named})
    for ref in dict.fromkeys(wanted.weights):
        with named_if_missing():
            weights = find_weights(ref, home=home)
            verify_weights(weights)
            inside = f"/{weights.name}" if weights.is_directory else ""
            files |= _tree(weights.path / "data", f"weights/{weights.digest}{inside}")
            about["weights"].append({"digest": weights.digest, "name": weights.name})
    with named_if_missing():
        kernel = current_kernel(home)
        if kernel.wanted != REQUIRED_MODULES:
            missing.append("the guest kernel lacks modules (run `belljar setup --refresh`)")
        about["kernel"] = kernel.digest
        files |= _tree(kernel.vmlinuz.parent, f"kernels/{kernel.digest}")
    for kind in ("docs", "examples"):
        found = _tree(wanted.checkout / kind, f"{SHARE}/{kind}", skip=_UNUSED)
        missing += [] if found else [f"{kind}: nothing is in {wanted.checkout / kind}"]
        files |= found
    files[SCRIPT] = Path(__file__).with_name(SCRIPT)
    if not wanted.lock.is_file():
        missing.append(f"Python packages: there is no lock file {wanted.lock}")
    if missing:
        what = f"the bundle would lack {len(missing)} thing(s): {printable('; '.join(missing))}"
        raise HostError(what, hint="get them, then create the bundle again; use a checkout")
    return files, about


def _tree(top: Path, path: str, *, skip: frozenset[str] = frozenset()) -> dict[str, Path]:
    """The files below a directory; links are refused."""
    found = dict[str, Path]()
    for file in sorted(top.rglob("*")):
        inner = file.relative_to(top)
        if skip and (skip & {*inner.parts} or any(each.startswith(".") for each in inner.parts)):
            continue
        if file.is_dir() and not file.is_symlink():
            continue
        if file.is_symlink() or not file.is_file() or not PATH.fullmatch(str(inner)):
            raise PolicyError("it can't be in a bundle", where=printable(str(file)))
        found[f"{path}/{inner}"] = file
    return found


# --- gathering


@contextmanager
def _part(home: Path, out: Path) -> Iterator[Path]:
    """The directory in which the bundle grows; one call at a time."""
    part = out.with_name(f".{out.name}.part")
    try:
        with locked(home, "bundle", wait=False):
            part.mkdir(parents=True, exist_ok=True)
            yield part
    except BlockingIOError as error:
        raise HostError("another command makes or installs a bundle") from error
    except OSError as error:
        raise HostError(
            f"the bundle can't be written: {error.strerror}",
            where=printable(str(error.filename or out)),
            hint="free some space and run it again; what is there is kept",
        ) from error


def _copy(source: Path, target: Path, report: Report) -> None:
    """Copy one file, unless one of the same size and time is there already."""
    about = source.stat()
    with suppress(FileNotFoundError):
        found = target.stat()
        if (found.st_size, found.st_mtime_ns) == (about.st_size, about.st_mtime_ns):
            return
    report(f"{target.name} ({format_size(about.st_size)})")
    target.parent.mkdir(parents=True, exist_ok=True)
    fresh = target.with_name(f".{target.name}.new")
    shutil.copy2(source, fresh)
    fresh.replace(target)


def _keep_only(part: Path, names: set[str]) -> None:
    """Remove what an earlier, interrupted call wanted and this one doesn't."""
    for file in sorted(part.rglob("*"), reverse=True):
        if file.is_dir():
            with suppress(OSError):
                file.rmdir()
        elif str(file.relative_to(part)) not in names:
            file.unlink()


def _apt(
    scratch: Path, codename: str, wanted: Contents
) -> tuple[PrivateApt, list[tuple[str, tuple[str, ...]]]]:
    """apt with this host's sources; the packages of each suite."""
    sources = debian_sources(host_sources(), codename)
    groups = [("", (*wanted.packages, *wanted.newer))]
    if codename == "bookworm":
        main = sources[0]
        sources.append(AptSource(uri=main.uri, suites=(_BACKPORTS,), signed_by=main.signed_by))
        groups = [(_BACKPORTS, wanted.newer), ("", wanted.packages)]
    apt = PrivateApt(scratch / "apt", sources)
    apt.update()
    return apt, groups


def _index(folder: Path, debs: Mapping[str, int]) -> str:
    """The packages' index, by which apt reads the directory as a repository."""
    stanzas = list[str]()
    for name in sorted(debs):
        argv = [tool("dpkg-deb"), "--field", str(folder / name)]
        control = run_tool(argv, timeout_s=60).decode().rstrip()
        extra = f"Size: {debs[name]}\nSHA256: {file_sha256(folder / name)}\n"
        stanzas.append(f"{control}\nFilename: ./{name}\n{extra}")
    return "\n".join(stanzas)


def _wheels(folder: Path, wanted: Contents, scratch: Path, report: Report) -> list[str]:
    """Wheels of the lock file and Belljar's own; their paths. pip keeps what it has fetched."""
    made = scratch / "wheels"
    report("Python packages")
    _pip(["--python", _PYTHON], made, ["--require-hashes", "--requirement", str(wanted.lock)])
    report("Belljar's own wheel")
    can_build = all(map(find_spec, ("hatchling", "ziglang")))
    isolated = ["--no-build-isolation"] if can_build else []
    _pip([], made, [*isolated, str(wanted.checkout)])
    wheels = sorted(made.glob("*.whl"))
    tools = f"{_TOOLS}{debian_arch()}-"
    inspect = next(each for each in wheels if each.name.startswith("inspect_ai-"))
    if not any(name.startswith(tools) for name in zipfile.ZipFile(inspect).namelist()):
        what = f"the bundle would lack Inspect's tools for sandboxes ({tools}…)"
        raise HostError(what, hint="use a version of inspect-ai whose wheel has them")
    remove_tree(folder)
    folder.mkdir()
    return [f"python/{Path(shutil.move(wheel, folder)).name}" for wheel in wheels]


def _pip(options: Sequence[str], folder: Path, arguments: Sequence[str]) -> None:
    words = ("--disable-pip-version-check", "wheel", "--quiet", "--no-deps", "--wheel-dir")
    argv = [sys.executable, "-m", "pip", *options, *words, str(folder), *arguments]
    try:
        run_tool(argv, timeout_s=7200)
    except HostError as error:
        what = f"a Python package can't be had: {error.what}"
        raise HostError(what, hint="check the network and pip's settings") from error
