"""Roots of the programs that run in a jail: QEMU, OCI runtimes, the unpacker of images."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Final, TypeAlias

from belljar.errors import HostError
from belljar.isolation.program_root import ProgramRoot, Recipe, ensure_root, with_libraries
from belljar.package import program_path
from belljar.plan.oci import OciCell, OciRuntime
from belljar.plan.qemu import MOUNT_POINTS, Accel
from belljar.units import printable

CONFIG_PATH: Final = "/bundle/config.json"
DIRECTORY_POINTS: Final = tuple(
    f"/{name}" for name in ("proc", "sys", "dev", "tree", "up", "new", "run", "tmp")
)
_HINT: Final = "install it again, or name another in BELLJAR_OCI_RUNTIME; `belljar doctor` tries it"
_AGENT_HINT: Final = "install the package again; its build compiles it"
_SCRIPT_HINT: Final = "name the program that the script runs in the end; `belljar doctor` tries it"
_ELF: Final = b"\x7fELF"
_UNPACKER: Final = Path("/usr/bin/unsquashfs")
_REMOVER: Final = Path("/usr/bin/rm")
_UNPACKER_HINT: Final = "install squashfs-tools, or run `belljar setup`"
_RUNTIME_VERSION: Final = re.compile(
    r"version:? +(?:release-|v)?([0-9][0-9A-Za-z.+~_-]*)", re.ASCII
)


def ensure_runtime_root(home: Path, runtime: OciRuntime) -> ProgramRoot:
    """The root for this runtime and this package's agent. Blocking. Raises `HostError`."""
    program = Path(runtime.path)
    _check_program(program, runtime.name)
    # Its own path, for words that name it, but where something is mounted over that
    points = (*map(Path, DIRECTORY_POINTS), Path(CONFIG_PATH).parent)
    covered = any(program.is_relative_to(point) for point in points)
    inside = f"/usr/bin/{program.name}" if covered else str(program)
    recipe = Recipe(
        directory="runtimes",
        program=program,
        what=runtime.name,
        hint=_HINT,
        files=partial(_runtime_files, program, inside, runtime.name),
        version=partial(runtime_version, program, runtime.name),
        own=(package_binary("agent"), package_binary("probe")),
        file_points=(CONFIG_PATH,),
        directory_points=DIRECTORY_POINTS,
        # Nobody traces a program that he may not read, from its first instruction on. runsc's own
        # process must read what it runs.
        unreadable=(OciCell(hostname="").probe,) if runtime.kind == "runc" else (),
        inside=inside,
    )
    return ensure_root(home, recipe)


def _check_program(program: Path, name: str) -> None:
    try:
        with program.open("rb") as file:
            is_program = os.access(program, os.X_OK) and file.read(len(_ELF)) == _ELF
    except OSError:
        what = f"the OCI runtime {name} is not there, or can't be read"
        raise HostError(what, where=str(program), hint=_HINT) from None
    if not is_program:
        what = (
            f"the OCI runtime {name} is no program (a script, perhaps): it can't be put into a jail"
        )
        raise HostError(what, where=str(program), hint=_SCRIPT_HINT)


def ensure_unpacker_root(home: Path) -> ProgramRoot:
    """The root in which images are unpacked and removed. Blocking. Raises `HostError`."""
    if not os.access(_UNPACKER, os.X_OK):
        raise HostError(
            "unsquashfs is not installed, which unpacks images for containers",
            where=str(_UNPACKER),
            hint=_UNPACKER_HINT,
        )
    recipe = Recipe(
        directory="unpackers",
        program=_UNPACKER,
        what="unsquashfs",
        hint=_UNPACKER_HINT,
        files=_unpacker_files,
        version=str,
        file_points=("/image",),
        directory_points=("/out",),
    )
    return ensure_root(home, recipe)


def runtime_version(program: Path, name: str) -> str:
    """The runtime's version. Raises `HostError` with its status and words when it says none."""
    try:
        result = subprocess.run(
            [str(program), "--version"], capture_output=True, check=False, timeout=20, env={}
        )
    except (OSError, subprocess.SubprocessError) as exc:
        raise HostError(f"{name} can't be run: {exc}", where=str(program), hint=_HINT) from exc
    match = _RUNTIME_VERSION.search(result.stdout.decode("utf-8", "replace").partition("\n")[0])
    if match is None:
        said = printable(result.stdout + result.stderr, max_chars=200) or "nothing"
        what = f"{name} --version ended with status {result.returncode} and said {said}"
        raise HostError(what, where=str(program), hint=_HINT)
    return match[1]


def package_binary(name: str) -> Path:
    """A program of this package. Raises `HostError` when it is missing."""
    path = program_path(name)
    if not os.access(path, os.R_OK):
        raise HostError(
            f"the {name} for {platform.machine()} is missing", where=str(path), hint=_AGENT_HINT
        )
    return path


def _runtime_files(program: Path, inside: str, name: str) -> Iterator[tuple[str, Path]]:
    for target, original in with_libraries(program, what=name, hint=_HINT):
        yield inside if original == program else target, original
    paths = OciCell(hostname="")
    yield paths.agent, package_binary("agent")
    yield paths.probe, package_binary("probe")


def _unpacker_files() -> Iterator[tuple[str, Path]]:
    for program in (_UNPACKER, _REMOVER):
        yield from with_libraries(program, what=program.name, hint=_UNPACKER_HINT)


VmmRoot: TypeAlias = ProgramRoot
_SETUP: Final = "run `belljar setup`; it installs QEMU 8.2 or newer"
_LEAST_VERSION: Final = (8, 2)
_PROGRAMS: Final[Mapping[Accel, tuple[str, ...]]] = {
    # Debian's build for this machine alone: a quarter of the code, but it knows no emulation.
    "kvm": ("/usr/bin/qemu-system-x86_64-microvm", "/usr/bin/qemu-system-x86_64"),
    "tcg": ("/usr/bin/qemu-system-x86_64",),
}
_FIRMWARE: Final = (
    "bios-microvm.bin",
    "qboot.rom",
    "linuxboot_dma.bin",
    "linuxboot.bin",
    "pvh.bin",
    "kvmvapic.bin",
)
_FIRMWARE_DIRECTORIES: Final = (Path("/usr/share/seabios"), Path("/usr/share/qemu"))
_MODULE_DIRECTORIES: Final = (
    Path("/usr/lib/x86_64-linux-gnu/qemu"),
    Path("/usr/lib64/qemu"),
    Path("/usr/lib/qemu"),
)
_QEMU_VERSION: Final = re.compile(
    r"QEMU emulator version ((\d+)\.(\d+)[^\s]*(?: \([^)]*\))?)", re.ASCII
)


def ensure_vmm_root(home: Path, accel: Accel) -> VmmRoot:
    """The root for the installed VMM. Blocking. Raises `HostError`: missing or too old."""
    program = _qemu(accel)
    recipe = Recipe(
        directory="vmm",
        program=program,
        what="QEMU",
        hint=_SETUP,
        files=partial(_qemu_files, program),
        version=partial(_qemu_version, program),
        file_points=MOUNT_POINTS,
    )
    return ensure_root(home, recipe)


def _qemu(accel: Accel) -> Path:
    for candidate in _PROGRAMS[accel]:
        if os.access(candidate, os.X_OK):
            return Path(candidate)
    raise HostError("QEMU is not installed", where=_PROGRAMS[accel][-1], hint=_SETUP)


def _qemu_version(program: Path) -> str:
    output = subprocess.run(
        [str(program), "-version"], capture_output=True, text=True, check=False, timeout=20, env={}
    ).stdout
    match = _QEMU_VERSION.search(output)
    if match is None:
        raise HostError("QEMU does not say its version", where=str(program), hint=_SETUP)
    if (int(match[2]), int(match[3])) < _LEAST_VERSION:
        raise HostError(
            f"QEMU {match[2]}.{match[3]} is too old; 8.2 or newer is needed",
            where=str(program),
            hint=_SETUP,
        )
    return match[1]


def _qemu_files(program: Path) -> Iterator[tuple[str, Path]]:
    modules = [
        path for directory in _MODULE_DIRECTORIES for path in sorted(directory.glob("accel-*.so"))
    ]
    for binary in [program, *modules]:
        yield from with_libraries(binary, what="QEMU", hint=_SETUP)
    for name in _FIRMWARE:
        original = next(
            (path for place in _FIRMWARE_DIRECTORIES if (path := place / name).exists()), None
        )
        if original is not None:
            yield f"/usr/share/qemu/{name}", original
