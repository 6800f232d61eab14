"""Programs of the tests' own, compiled as the package's are: the compiler has their C library
already."""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path

import hatch_build
from hatch_build import FLAGS

# Above the compiler's own directory it would make that library once more: half a minute's work.
NATIVE = Path(hatch_build.__file__).parent / "native"


def compile_static(source: Path, program: Path) -> Path:
    """A static program from one C file, at an absolute path."""
    flags = [flag for flag in FLAGS if not flag.startswith("-W") or flag.startswith("-Wl,")]
    target = ["-target", f"{platform.machine()}-linux-musl", "-o", str(program)]
    words = [sys.executable, "-m", "ziglang", "cc", *flags, *target, str(source)]
    subprocess.run(words, cwd=NATIVE, check=True, capture_output=True)
    return program
