"""The VMM's root: QEMU, its libraries and firmware, and nothing else. See `program_root`."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Final, TypeAlias

from belljar.errors import HostError
from belljar.isolation.program_root import ProgramRoot, Recipe, ensure_root, with_libraries
from belljar.plan.qemu import MOUNT_POINTS, Accel

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
_VERSION: Final = re.compile(r"QEMU emulator version ((\d+)\.(\d+)[^\s]*(?: \([^)]*\))?)", re.ASCII)


def ensure_vmm_root(home: Path, accel: Accel) -> VmmRoot:
    """The root for the installed VMM, made when there is none yet.

    Blocking; two processes make it once.

    Raises:
        HostError: QEMU is missing or too old, or the store can't be written.
    """
    program = _program(accel)
    recipe = Recipe(
        directory="vmm",
        program=program,
        what="QEMU",
        hint=_SETUP,
        files=partial(_files, program),
        version=partial(_version, program),
        file_points=MOUNT_POINTS,
    )
    return ensure_root(home, recipe)


def _program(accel: Accel) -> Path:
    for candidate in _PROGRAMS[accel]:
        if os.access(candidate, os.X_OK):
            return Path(candidate)
    raise HostError("QEMU is not installed", where=_PROGRAMS[accel][-1], hint=_SETUP)


def _version(program: Path) -> str:
    output = subprocess.run(
        [str(program), "-version"], capture_output=True, text=True, check=False, timeout=20, env={}
    ).stdout
    match = _VERSION.search(output)
    if match is None:
        raise HostError("QEMU does not say its version", where=str(program), hint=_SETUP)
    if (int(match[2]), int(match[3])) < _LEAST_VERSION:
        raise HostError(
            f"QEMU {match[2]}.{match[3]} is too old; 8.2 or newer is needed",
            where=str(program),
            hint=_SETUP,
        )
    return match[1]


def _files(program: Path) -> Iterator[tuple[str, Path]]:
    """(path in the root, original) of everything the VMM opens."""
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
