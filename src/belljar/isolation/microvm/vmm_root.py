"""The VMM's root: a directory tree with the VMM's program, its libraries and firmware and nothing else, made once for each version in the store.

`vmm/<key>/root/…` and `vmm/<key>/vmm.json`. The key is the digest of every file in it. It is found again by looking at the files it was made from
(size, times, inode): a new version of QEMU or of one of its libraries makes another root.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from belljar.errors import HostError
from belljar.plan.qemu import MOUNT_POINTS, Accel

_FORMAT: Final = 1
_SETUP: Final = "run `belljar setup`; it installs QEMU 8.2 or newer"
_LEAST_VERSION: Final = (8, 2)
_PROGRAMS: Final[Mapping[Accel, tuple[str, ...]]] = {
    # Debian's build for this machine alone: a quarter of the code, but it knows no emulation.
    "kvm": ("/usr/bin/qemu-system-x86_64-microvm", "/usr/bin/qemu-system-x86_64"),
    "tcg": ("/usr/bin/qemu-system-x86_64",),
}
_FIRMWARE: Final = ("bios-microvm.bin", "qboot.rom", "linuxboot_dma.bin", "linuxboot.bin", "pvh.bin", "kvmvapic.bin")
_FIRMWARE_DIRECTORIES: Final = (Path("/usr/share/seabios"), Path("/usr/share/qemu"))
_MODULE_DIRECTORIES: Final = (Path("/usr/lib/x86_64-linux-gnu/qemu"), Path("/usr/lib64/qemu"), Path("/usr/lib/qemu"))
_LIBRARY: Final = re.compile(r"^\s*(?:\S+ => )?(/\S+) \(0x[0-9a-f]+\)$", re.ASCII)
_VERSION: Final = re.compile(r"QEMU emulator version ((\d+)\.(\d+)[^\s]*(?: \([^)]*\))?)", re.ASCII)
_Stamp = list[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class VmmRoot:
    """A root that stands. `program` is the VMM's path inside it, `digest` covers everything in it."""

    root: Path
    program: str
    version: str
    digest: str


def ensure_vmm_root(home: Path, accel: Accel) -> VmmRoot:
    """The root for the installed VMM, made when there is none yet. Blocking; two processes make it once.

    Raises:
        HostError: QEMU is missing or too old, or the store can't be written.
    """
    program = _program(accel)
    directory = home / "vmm"
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=0o711)
        if (found := _find(directory, program)) is not None:
            return found
        with _locked(home):
            return _find(directory, program) or _make(directory, program)
    except OSError as exc:
        raise HostError(
            f"the VMM's root could not be made: {exc.strerror}",
            where=str(exc.filename or directory),
            mend="free some space, or mend the store's owner",
        ) from exc


def _program(accel: Accel) -> Path:
    for candidate in _PROGRAMS[accel]:
        if os.access(candidate, os.X_OK):
            return Path(candidate)
    raise HostError("QEMU is not installed", where=_PROGRAMS[accel][-1], mend=_SETUP)


def _find(directory: Path, program: Path) -> VmmRoot | None:
    for description in sorted(directory.glob("*/vmm.json")):
        try:
            data = json.loads(description.read_text())
        except (OSError, ValueError):
            continue
        if (
            data.get("format") == _FORMAT
            and data.get("program") == str(program)
            and _unchanged(description.parent / "root", data)
        ):
            return _root_of(description.parent, data)
    return None


def _unchanged(root: Path, data: Mapping[str, Any]) -> bool:
    """The files it was made from, and the copies, are still the ones that were digested."""
    try:
        originals = all(_stamp(Path(path)) == stamp for path, stamp in data["sources"].items())
        return originals and all(_stamp(root / path.lstrip("/")) == stamp for path, stamp in data["copies"].items())
    except (OSError, KeyError, TypeError):
        return False


def _root_of(directory: Path, data: Mapping[str, Any]) -> VmmRoot:
    return VmmRoot(root=directory / "root", program=data["program"], version=data["version"], digest=data["digest"])


def _stamp(path: Path) -> _Stamp:
    """Changes with every write: ctime can't be set."""
    found = path.stat()
    return [found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino]


def _make(directory: Path, program: Path) -> VmmRoot:
    version = _version(program)
    sources = dict(_files(program))
    scratch = Path(tempfile.mkdtemp(prefix=".making-", dir=directory))
    try:
        digests = {
            target: _copy(original, scratch / "root" / target.lstrip("/"))
            for target, original in sorted(sources.items())
        }
        for target in MOUNT_POINTS:
            point = scratch / "root" / target.lstrip("/")
            point.parent.mkdir(parents=True, exist_ok=True)
            point.touch(mode=0o444)
        digest = hashlib.sha256(json.dumps([_FORMAT, digests], sort_keys=True).encode()).hexdigest()
        for path in sorted((scratch / "root").rglob("*"), reverse=True):
            if path.is_dir():
                path.chmod(0o555)
        (scratch / "root").chmod(0o555)
        scratch.chmod(0o711)
        final = directory / digest
        if final.exists():  # its description was out of date: the files' stamps changed, their contents did not
            _remove_tree(final)
        scratch.rename(final)
    except BaseException:
        _remove_tree(scratch)
        raise
    data = {
        "format": _FORMAT,
        "program": str(program),
        "version": version,
        "digest": digest,
        "sources": {str(original): _stamp(original) for original in sources.values()},
        "copies": {target: _stamp(final / "root" / target.lstrip("/")) for target in sources},
        "files": digests,
    }
    draft = final / ".vmm.json"
    draft.write_text(json.dumps(data, sort_keys=True, indent=1))
    draft.rename(final / "vmm.json")
    return _root_of(final, data)


def _remove_tree(path: Path) -> None:
    for directory in [path, *path.rglob("*")]:
        if directory.is_dir() and not directory.is_symlink():
            directory.chmod(0o700)
    shutil.rmtree(path)


def _version(program: Path) -> str:
    output = subprocess.run(
        [str(program), "-version"], capture_output=True, text=True, check=False, timeout=20, env={}
    ).stdout
    match = _VERSION.search(output)
    if match is None:
        raise HostError("QEMU does not say its version", where=str(program), mend=_SETUP)
    if (int(match[2]), int(match[3])) < _LEAST_VERSION:
        raise HostError(
            f"QEMU {match[2]}.{match[3]} is too old; 8.2 or newer is needed", where=str(program), mend=_SETUP
        )
    return match[1]


def _files(program: Path) -> Iterator[tuple[str, Path]]:
    """(path in the root, original) of everything the VMM opens."""
    modules = [path for directory in _MODULE_DIRECTORIES for path in sorted(directory.glob("accel-*.so"))]
    for binary in [program, *modules]:
        yield str(binary), binary
        for library in _libraries(binary):
            yield str(library), library
    for name in _FIRMWARE:
        original = next((path for place in _FIRMWARE_DIRECTORIES if (path := place / name).exists()), None)
        if original is not None:
            yield f"/usr/share/qemu/{name}", original


def _libraries(binary: Path) -> list[Path]:
    """What the dynamic loader says it would load, the loader itself included."""
    result = subprocess.run(
        ["/usr/bin/ldd", str(binary)], capture_output=True, text=True, check=False, timeout=20, env={"LC_ALL": "C"}
    )
    if result.returncode or "not found" in result.stdout:
        raise HostError("QEMU's libraries can't be found", where=str(binary), mend=_SETUP)
    return [Path(match[1]) for line in result.stdout.splitlines() if (match := _LIBRARY.match(line))]


def _copy(original: Path, target: Path) -> str:
    """A copy of the file's contents, nobody's to write; its digest."""
    target.parent.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256()
    with original.open("rb") as source, target.open("wb") as copy:
        while chunk := source.read(1 << 20):
            digest.update(chunk)
            copy.write(chunk)
    target.chmod(0o555 if os.access(original, os.X_OK) else 0o444)
    return digest.hexdigest()


@contextmanager
def _locked(home: Path) -> Iterator[None]:
    locks = home / "locks"
    locks.mkdir(parents=True, exist_ok=True, mode=0o700)
    fd = os.open(locks / "vmm", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)
