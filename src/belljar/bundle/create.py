"""Makes a bundle on a connected host: everything, or nothing and the names of what is missing.

The parts are gathered in `.NAME.part` beside the bundle, which appears by a rename. What is signed
are digests of the sources, not of what the medium gives back.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
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
    hashed_copy,
    host_kind,
    open_bundle,
    write_manifest,
)
from belljar.dataclass import dataclass
from belljar.errors import HostError, PolicyError
from belljar.image.apt import PrivateApt, debian_sources, host_sources
from belljar.image.config import debian_arch
from belljar.image.kernel import REQUIRED_MODULES, current_kernel
from belljar.image.store import Store, file_sha256, verify
from belljar.image.tools import run_tool, tool
from belljar.ledger.keys import load_or_make_key
from belljar.model.weights import find_weights, verify_weights
from belljar.package import __version__
from belljar.store.home import need_space
from belljar.store.locks import locked
from belljar.store.scratch import remove_tree, scratch_dir
from belljar.units import format_size, iso_time, printable

_BACKPORTS: Final = "bookworm-backports"
_PYTHON: Final = "/usr/bin/python3"  # Debian's: the wheels must fit it, not this process
_VERSION: Final = "import sys; print('%d.%d' % sys.version_info[:2])"
_REST_BYTES: Final = 1 << 30  # of Python packages, whose size no index says beforehand
_TOOLS: Final = "inspect_ai/binaries/inspect-sandbox-tools-"


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
    if not (Path(_PYTHON).exists() and host_kind("")["system"]):
        raise HostError("a bundle is made on Debian with its python3, and this host lacks it")
    key = load_or_make_key(home)
    with _part(home, out) as part, scratch_dir(home) as scratch:
        debian = _DebianSource(scratch / "apt", wanted)
        own_bytes = sum(file.stat().st_size for file in files.values())
        deb_bytes = sum(size for size, _ in debian.files.values())
        report(
            f"{format_size(own_bytes)} of this store, {format_size(deb_bytes)} in "
            f"{len(debian.files)} Debian packages, and the Python packages"
        )
        needs = own_bytes + deb_bytes + _REST_BYTES
        need_space(part, needs, "the bundle", hint="give a place on a larger disk")
        digests = {name: _copy(file, part / name, report) for name, file in files.items()}
        wheels = _wheels(scratch / "wheels", wanted, report)
        digests |= {name: _copy(file, part / name, report) for name, file in wheels.items()}
        report("Debian packages")
        digests |= debian.fetch(part / "debian")
        about |= {
            "v": 1,
            "created": iso_time(time.time()),
            "belljar": __version__,
            **host_kind(run_tool([_PYTHON, "-c", _VERSION], timeout_s=60).decode().strip()),
            "size_bytes": sum((part / name).stat().st_size for name in digests),
        }
        texts = {"key.txt": f"{key.fingerprint}\n", ABOUT: json.dumps(about, indent=1) + "\n"}
        digests |= _write(part, texts)
        write_manifest(part, digests, key)
        os.sync()
        bundle = open_bundle(part, expected_key=key.fingerprint)
        report("verifying")
        bundle.verify(lambda _line: None)
        part.rename(out)
    return replace(bundle, path=out)


# --- the store and the checkout


def store_files(home: Path, wanted: Contents) -> tuple[dict[str, Path], dict[str, Any]]:
    """The files of the store and the checkout, by their paths in the bundle; their names.

    Raises `HostError` for all that is missing together.
    """
    missing, files = list[str](), dict[str, Path]()
    about: dict[str, Any] = {"images": [], "weights": []}

    @contextmanager
    def named_if_missing(what: str = "") -> Iterator[None]:
        try:
            yield
        except HostError as error:
            missing.append(f"{what}{error.what} ({error.hint})")

    for ref in dict.fromkeys(wanted.images):
        with named_if_missing():
            image = Store(home).find(ref)
            verify(image)
            files |= _tree(image.rootfs.parent, f"images/{image.digest}")
            named = {"names": [*image.names], "origins": [*image.origins]}
            about["images"].append({"digest": image.digest, **named})
    for ref in dict.fromkeys(wanted.weights):
        with named_if_missing():
            weights = find_weights(ref, home=home)
            verify_weights(weights)
            if not PATH.fullmatch(weights.name):
                what = f"a bundle can't hold the name of the weights {weights.name!r}"
                raise HostError(what, hint="rename them and add them again")
            inside = f"/{weights.name}" if weights.is_directory else ""
            files |= _tree(weights.path / "data", f"weights/{weights.digest}{inside}")
            about["weights"].append({"digest": weights.digest, "name": weights.name})
    with named_if_missing():
        kernel = current_kernel(home)
        if kernel.wanted != REQUIRED_MODULES:
            missing.append("the guest kernel lacks modules (run `belljar setup`)")
        about["kernel"] = kernel.digest
        files |= _tree(kernel.vmlinuz.parent, f"kernels/{kernel.digest}")
    for kind in ("docs", "examples"):
        with named_if_missing(f"{kind}: "):
            # What git doesn't know stays here: notes, keys, what an example has written
            argv = [tool("git"), "-C", str(wanted.checkout), "ls-files", "-z", kind]
            known = run_tool(argv, timeout_s=60).decode().split("\0")[:-1]
            if not known:
                missing.append(f"{kind}: git knows no file of them in {wanted.checkout}")
            files |= {f"{SHARE}/{each}": _plain(wanted.checkout / each, each) for each in known}
    files[SCRIPT] = Path(__file__).with_name(SCRIPT)
    if not wanted.lock.is_file():
        missing.append(f"Python packages: there is no lock file {wanted.lock}")
    if missing:
        what = f"the bundle would lack {len(missing)} thing(s): {printable('; '.join(missing))}"
        raise HostError(what, hint="get them, then create the bundle again; use a checkout")
    return files, about


def _tree(top: Path, path: str) -> dict[str, Path]:
    """The files below a directory."""
    names = (file.relative_to(top) for file in sorted(top.rglob("*")))
    files = [name for name in names if (top / name).is_symlink() or not (top / name).is_dir()]
    return {f"{path}/{name}": _plain(top / name, str(name)) for name in files}


def _plain(file: Path, name: str) -> Path:
    """A plain file with a name that a manifest may have. Raises `PolicyError`."""
    if file.is_symlink() or not file.is_file() or not PATH.fullmatch(name):
        raise PolicyError("it can't be in a bundle", where=printable(str(file)))
    return file


# --- gathering


@contextmanager
def _part(home: Path, out: Path) -> Iterator[Path]:
    """The directory in which the bundle grows; one call at a time."""
    part = out.with_name(f".{out.name}.part")
    try:
        with locked(home, "bundle", wait=False):
            if part.exists():  # of a call that was interrupted
                remove_tree(part)
            part.mkdir(parents=True)
            yield part
    except BlockingIOError as error:
        raise HostError("another command makes or installs a bundle") from error
    except OSError as error:
        what, where = f"the bundle can't be written: {error.strerror}", error.filename or out
        hint = "free some space and run it again"
        raise HostError(what, where=printable(str(where)), hint=hint) from error


def _copy(source: Path, target: Path, report: Report) -> str:
    """Copy one file; the digest of what was read."""
    report(f"{target.name} ({format_size(source.stat().st_size)})")
    with source.open("rb") as file:
        return hashed_copy(file, target)


def _write(part: Path, texts: Mapping[str, str]) -> dict[str, str]:
    """Write small files; their digests."""
    for name, text in texts.items():
        (part / name).write_text(text)
    return {name: hashlib.sha256(text.encode()).hexdigest() for name, text in texts.items()}


class _DebianSource:
    """Debian's packages from this host's sources; `files`: their sizes and SHA-256 by name."""

    def __init__(self, folder: Path, wanted: Contents) -> None:
        codename = host_kind("")["system"]
        sources = debian_sources(host_sources(), codename)
        self._groups = {"": (*wanted.packages, *wanted.newer)}
        if codename == "bookworm":
            sources.append(replace(sources[0], suites=(_BACKPORTS,)))
            self._groups = {_BACKPORTS: wanted.newer, "": wanted.packages}
        self._apt = PrivateApt(folder, sources)
        self._apt.update()
        self.files = dict[str, tuple[int, str]]()
        for suite, packages in self._groups.items():
            self.files |= self._apt.closure(packages, suite=suite)

    def fetch(self, folder: Path) -> dict[str, str]:
        """Fetch them and make an index, by which apt reads the directory; the digests.

        Raises `HostError` for one that isn't what Debian's signed list says, and removes it.
        """
        for suite, packages in self._groups.items():
            self._apt.download_closure(packages, folder, suite=suite)
        (folder / "lock").unlink()  # apt's own
        (folder / "partial").rmdir()
        index = ""
        for name, (size, digest) in sorted(self.files.items()):
            if file_sha256(folder / name) != digest:
                what = "the file is not what Debian's signed list says"
                raise HostError(what, where=name, hint="run it again")
            argv = [tool("dpkg-deb"), "--field", str(folder / name)]
            control = run_tool(argv, timeout_s=60).decode().rstrip()
            index += f"{control}\nFilename: ./{name}\nSize: {size}\nSHA256: {digest}\n\n"
        names = "".join(f"{name}\n" for packages in self._groups.values() for name in packages)
        digests = _write(folder, {"Packages": index, "install.txt": names})
        digests |= {name: digest for name, (_, digest) in self.files.items()}
        return {f"{folder.name}/{name}": digest for name, digest in digests.items()}


def _wheels(made: Path, wanted: Contents, report: Report) -> dict[str, Path]:
    """Wheels of the lock file and Belljar's own. pip keeps what it has fetched."""
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
    return {f"python/{wheel.name}": wheel for wheel in wheels}


def _pip(options: Sequence[str], folder: Path, arguments: Sequence[str]) -> None:
    words = ("--disable-pip-version-check", "wheel", "--quiet", "--no-deps", "--wheel-dir")
    argv = [sys.executable, "-m", "pip", *options, *words, str(folder), *arguments]
    run_tool(argv, timeout_s=7200)
