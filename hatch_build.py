"""Build hook: compiles the static programs (`guest/` → agent, `jail/` → jail, `probes/` → probe, `wire/` → wire) for x86-64 and arm64.

The compiler is the `ziglang` wheel, so no user needs one.

Runs for wheels and for editable installs (both put the programs into `src/belljar/_bin/`, which git ignores), and by hand: `python hatch_build.py`. A program is
compiled again only when its sources, the flags or the compiler's version changed. The output is reproducible: no time, path or host name goes in.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ImportError:  # by hand, where only the compiler is installed
    BuildHookInterface = object  # type: ignore[assignment,misc]

ARCHITECTURES = ("x86_64", "aarch64")
PROGRAMS = {"guest": "agent", "jail": "jail", "probes": "probe", "wire": "wire"}
FLAGS = (
    "-std=c11", "-Os", "-static", "-s", "-Wall", "-Wextra", "-Werror", "-fno-unwind-tables", "-fno-asynchronous-unwind-tables", "-ffunction-sections", "-fdata-sections",
    "-fstack-protector-strong", "-Wl,--gc-sections", "-Wl,--build-id=none",
)  # fmt: skip
# Static programs run on every Linux of these two architectures, whatever its libc; there is nothing in the wheel for another system.
TAG = "py3-none-manylinux_2_17_aarch64.manylinux_2_17_x86_64.musllinux_1_1_aarch64.musllinux_1_1_x86_64"


def sources_of(folder: Path) -> list[Path]:
    """The C sources and headers, in a fixed order."""
    return sorted([*folder.glob("*.c"), *folder.glob("*.h")])


def fingerprint(folder: Path) -> str:
    """What the program is made of: sources, flags, compiler."""
    digest = hashlib.sha256(repr((FLAGS, importlib.metadata.version("ziglang"))).encode())
    for source in sources_of(folder):
        digest.update(f"{source.name}\0{source.stat().st_size}\0".encode() + source.read_bytes())
    return digest.hexdigest()


def compile_program(folder: Path, architecture: str, build: str, out: Path) -> None:
    """One program for one architecture; `out` appears whole or not at all. A compiler's error is shown as it is."""
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=".build-") as scratch:
        result = Path(scratch) / out.name
        names = [source.name for source in sources_of(folder) if source.suffix == ".c"]
        target = ["-target", f"{architecture}-linux-musl", f'-DBUILD_ID="{build[:12]}"', "-o", str(result)]
        subprocess.run([sys.executable, "-m", "ziglang", "cc", *FLAGS, *target, *names], cwd=folder, check=True)
        result.chmod(0o755)
        result.replace(out)


def build_all(root: Path) -> Iterator[Path]:
    """Brings every program up to date and yields the paths of all of them."""
    bin_dir = root / "src" / "belljar" / "_bin"
    stamps = root / "build"
    bin_dir.mkdir(exist_ok=True)
    stamps.mkdir(exist_ok=True)
    for folder, name in PROGRAMS.items():
        if not sources_of(root / folder):
            continue
        build = fingerprint(root / folder)
        for architecture in ARCHITECTURES:
            out = bin_dir / f"{name}-{architecture}"
            stamp = stamps / f"{out.name}.built-from"
            if not (out.exists() and stamp.exists() and stamp.read_text() == build):
                compile_program(root / folder, architecture, build, out)
                stamp.write_text(build)
            yield out


class CustomBuildHook(BuildHookInterface):  # type: ignore[type-arg,misc,unused-ignore]
    """Hatchling calls this for wheels, standard and editable."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002 - hatchling's signature
        """Compile, and tell hatchling that the wheel is for Linux."""
        if self.target_name != "wheel":
            return
        for _ in build_all(Path(self.root)):
            pass
        build_data["pure_python"] = False
        build_data["tag"] = TAG


if __name__ == "__main__":
    for built in build_all(Path(__file__).resolve().parent):
        sys.stdout.write(f"{built.name} {os.stat(built).st_size} bytes\n")  # noqa: PTH116
