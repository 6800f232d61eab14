"""Roots of jailed programs: `<directory>/<digest of all files>/{root/…,<directory>.json}`.

One is reused while its sources' size, times and inodes are unchanged.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Final

from belljar.dataclass import dataclass
from belljar.errors import HostError, host_errors
from belljar.host.model import RuntimeFact
from belljar.host.tools import QEMU_MIN, ask_text, at_least, run_briefly
from belljar.package import program_path
from belljar.plan.oci import BUNDLE, OciCell
from belljar.plan.qemu import MOUNT_POINTS, Accel
from belljar.store.locks import in_use, locked
from belljar.store.scratch import MAKING, owned_name, remove_tree, retire, write_whole

STORE_HINT: Final = "make room there, or set BELLJAR_HOME to a directory that this user can write"
# Of a root's description.
_FORMAT: Final = 2
# A line of ldd's.
_LIBRARY: Final = r"(?a)^\s*(?:\S+ => )?(/\S+) \(0x[0-9a-f]+\)$"
# How glibc's and musl's ldd say that there is nothing to copy.
_NOT_DYNAMIC: Final = ("not a dynamic executable", "statically linked")


@dataclass(frozen=True, slots=True)
class ProgramRoot:
    """`program` is its path inside; `digest` covers everything."""

    root: Path
    program: str
    version: str
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RootRecipe:
    """`files` are (path in the root, original); `inside` is the program there, if elsewhere.

    `own` files tell apart installations that share a store; `…_points` are empty, to mount on.
    """

    directory: str
    program: Path
    files: Callable[[], Iterable[tuple[str, Path]]]
    inside: str = ""
    version: Callable[[], str] = str
    own: tuple[Path, ...] = ()
    file_points: tuple[str, ...] = ()
    directory_points: tuple[str, ...] = ()
    unreadable: tuple[str, ...] = ()

    @property
    def inside_path(self) -> str:
        return self.inside or str(self.program)

    @property
    def identity(self) -> list[object]:
        points = [*self.file_points, *(f"{point}/" for point in self.directory_points)]
        hidden, own = list(self.unreadable), list(map(str, self.own))
        return [_FORMAT, str(self.program), self.inside_path, points, hidden, own]


def ensure_root(home: Path, recipe: RootRecipe) -> ProgramRoot:
    """Return the root, made once. Blocks; raises `HostError`."""
    directory = home / recipe.directory
    what = f"the root of {recipe.program.name} could not be made"
    with host_errors(what, where=directory, hint=STORE_HINT):
        directory.mkdir(parents=True, exist_ok=True, mode=0o711)
        if (found := _find(directory, recipe)) is not None:
            return found
        with locked(home, recipe.directory):
            return _find(directory, recipe) or _make(directory, recipe)


def with_libraries(binary: Path) -> Iterator[tuple[str, Path]]:
    """Yield (path in root, original) of all that is loaded."""
    yield str(binary), binary
    status, output = run_briefly("/usr/bin/ldd", str(binary))
    if any(word in output for word in _NOT_DYNAMIC):
        return
    if status != 0 or "not found" in output:
        what = f"{binary.name} or its libraries can't be found"
        raise HostError(what, where=str(binary), hint=_SETUP)
    for line in output.splitlines():
        if match := re.match(_LIBRARY, line):
            yield match[1], Path(match[1])


def _find(directory: Path, recipe: RootRecipe) -> ProgramRoot | None:
    for description in sorted(directory.glob(f"[!.]*/{recipe.directory}.json")):
        root = description.parent / "root"
        try:
            data = json.loads(description.read_text())
            files = [(Path(path), stamp) for path, stamp in data["sources"].items()]
            files += [(root / path.lstrip("/"), stamp) for path, stamp in data["copies"].items()]
            is_current = all(file_stamp(path) == stamp for path, stamp in files)
            if is_current and data["recipe"] == recipe.identity:
                version, digest = data["version"], data["digest"]
                return ProgramRoot(
                    root=root, program=recipe.inside_path, version=version, digest=digest
                )
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return None


def file_stamp(path: Path) -> list[int]:
    """Every write changes it: ctime can't be set."""
    found = path.stat()
    return [found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino]


def _make(directory: Path, recipe: RootRecipe) -> ProgramRoot:
    version, sources = recipe.version(), dict(recipe.files())
    scratch = Path(tempfile.mkdtemp(prefix=owned_name(MAKING), dir=directory))
    try:
        inputs = [recipe.identity, _fill(scratch / "root", sources, recipe)]
        digest = hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()
        scratch.chmod(0o711)
        final = directory / digest
        # Its description was out of date: the files' stamps changed, their contents did not
        if final.exists():
            # Living cells may be in it: then it goes with a later sweep
            retired = retire(final)
            if not in_use(retired):
                remove_tree(retired)
        scratch.rename(final)
    except BaseException:
        remove_tree(scratch)
        raise
    root = final / "root"
    data = {
        "recipe": recipe.identity,
        "version": version,
        "digest": digest,
        "sources": {str(original): file_stamp(original) for original in sources.values()},
        "copies": {target: file_stamp(root / target.lstrip("/")) for target in sources},
    }
    write_whole(final / f"{recipe.directory}.json", json.dumps(data, sort_keys=True, indent=1))
    return ProgramRoot(root, recipe.inside_path, version, digest)


def _fill(root: Path, sources: Mapping[str, Path], recipe: RootRecipe) -> dict[str, str]:
    digests = {}
    for name, original in sorted(sources.items()):
        target = root / name.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(original, target)
        target.chmod(0o555 if os.access(original, os.X_OK) else 0o444)
        with target.open("rb") as copy:
            digests[name] = hashlib.file_digest(copy, "sha256").hexdigest()
    for name in recipe.unreadable:
        (root / name.lstrip("/")).chmod(0o511)
    for name in recipe.file_points:
        point = root / name.lstrip("/")
        point.parent.mkdir(parents=True, exist_ok=True)
        point.touch(mode=0o444)
    for name in recipe.directory_points:
        (root / name.lstrip("/")).mkdir(parents=True, exist_ok=True)
    for path in sorted((root, *root.rglob("*")), reverse=True):
        if path.is_dir():
            path.chmod(0o555)
    return digests


# The launcher binds the cell's own over it: the file there is empty.
CONFIG_PATH: Final = f"{BUNDLE}/config.json"
DIRECTORY_POINTS: Final = tuple(
    f"/{name}" for name in ("proc", "sys", "dev", "tree", "up", "new", "run", "tmp")
)
_SETUP: Final = f"run `belljar setup`; it installs what is missing, and QEMU {QEMU_MIN} or newer"
PACKAGE_HINT: Final = "install the package again; its build compiles it"
_UNPACKER: Final = Path("/usr/bin/unsquashfs")
_REMOVER: Final = Path("/usr/bin/rm")


def ensure_runtime_root(home: Path, runtime: RuntimeFact) -> ProgramRoot:
    program = Path(runtime.path)
    # Where nothing is mounted over it
    inside, paths = f"/usr/bin/{program.name}", OciCell(hostname="")

    def files() -> Iterator[tuple[str, Path]]:
        for target, original in with_libraries(program):
            yield inside if original == program else target, original
        yield paths.agent, package_program("agent")
        yield paths.probe, package_program("probe")

    recipe = RootRecipe(
        directory="runtimes",
        program=program,
        inside=inside,
        files=files,
        own=(package_program("agent"), package_program("probe")),
        file_points=(CONFIG_PATH,),
        directory_points=DIRECTORY_POINTS,
        # An unreadable program can't be traced, from its first instruction on. runsc's own process
        # must read what it runs.
        unreadable=(paths.probe,) if runtime.kind != "runsc" else (),
    )
    return ensure_root(home, recipe)


def ensure_unpacker_root(home: Path) -> ProgramRoot:
    recipe = RootRecipe(
        directory="unpackers",
        program=_UNPACKER,
        files=lambda: (*with_libraries(_UNPACKER), *with_libraries(_REMOVER)),
        file_points=("/image",),
        directory_points=("/out",),
    )
    return ensure_root(home, recipe)


def package_program(name: str, *, mode: int = os.R_OK) -> Path:
    path = program_path(name)
    if not os.access(path, mode):
        what = f"Belljar's program `{name}` for {platform.machine()} is missing"
        raise HostError(what, where=str(path), hint=PACKAGE_HINT)
    return path


_PROGRAMS: Final[Mapping[Accel, tuple[str, ...]]] = {
    # Debian's build for this machine alone: a quarter of the code, but it knows no emulation.
    "kvm": ("/usr/bin/qemu-system-x86_64-microvm", "/usr/bin/qemu-system-x86_64"),
    "tcg": ("/usr/bin/qemu-system-x86_64",),
}
_FIRMWARE: Final = (
    *("bios-microvm.bin", "qboot.rom", "linuxboot_dma.bin"),
    *("linuxboot.bin", "pvh.bin", "kvmvapic.bin"),
)
# Debian packages SeaBIOS apart from QEMU.
_FIRMWARE_DIRECTORIES: Final = (Path("/usr/share/seabios"), Path("/usr/share/qemu"))
_MODULES: Final = Path("/usr/lib/x86_64-linux-gnu/qemu")
# With the distribution's own name for its build, which tells apart builds of one version.
_QEMU_VERSION: Final = r"(?a)QEMU emulator version ((\d+\.\d+)[^\s]*(?: \([^)]*\))?)"


def ensure_vmm_root(home: Path, accel: Accel) -> ProgramRoot:
    candidates = _PROGRAMS[accel]
    program = next((Path(path) for path in candidates if os.access(path, os.X_OK)), None)
    if program is None:
        raise HostError("QEMU is not installed", where=candidates[-1], hint=_SETUP)
    recipe = RootRecipe(
        directory="vmm",
        program=program,
        files=partial(_qemu_files, program),
        version=partial(_qemu_version, program),
        file_points=MOUNT_POINTS,
    )
    return ensure_root(home, recipe)


def _qemu_version(program: Path) -> str:
    match = re.search(_QEMU_VERSION, ask_text(str(program), "-version"))
    if match is None or not at_least(match[2], QEMU_MIN):
        said = "of an unknown version" if match is None else match[2]
        what = f"QEMU {said} is no good; {QEMU_MIN} or newer is needed"
        raise HostError(what, where=str(program), hint=_SETUP)
    return match[1]


def _qemu_files(program: Path) -> Iterator[tuple[str, Path]]:
    modules = sorted(_MODULES.glob("accel-*.so"))
    for binary in [program, *modules]:
        yield from with_libraries(binary)
    for name in _FIRMWARE:
        places = (place / name for place in _FIRMWARE_DIRECTORIES)
        if (original := next((path for path in places if path.exists()), None)) is not None:
            yield f"/usr/share/qemu/{name}", original
