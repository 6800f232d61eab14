"""Build hook: compiles the static programs under `native/` (`guest` → agent, `jail`, `probes` → probe,
`wire`) for x86-64 and arm64.

The compiler is the `ziglang` wheel, so no user needs one. Missing sources, another compiler than `pyproject.toml` names, or licence texts that
are not those of what the compiler links in, fail the build. The wheel also gets a bill of materials (CycloneDX, PEP 770) and a readme without
relative links.

Runs for wheels and for editable installs (both put the programs into `src/belljar/_bin/`, which git ignores), and by hand: `python hatch_build.py`. A program is
compiled again only when its sources, the flags or the compiler's version changed. The output is reproducible: no time, path or host name goes in.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
    from hatchling.metadata.plugin.interface import MetadataHookInterface
except ImportError:  # by hand, where only the compiler is installed
    BuildHookInterface = MetadataHookInterface = object  # type: ignore[assignment,misc]

ARCHITECTURES = ("x86_64", "aarch64")
PROGRAMS = {"guest": "agent", "jail": "jail", "probes": "probe", "wire": "wire"}
"""The folder under `native/` → the name of its program."""
FLAGS = (
    "-std=c11", "-Os", "-static", "-s", "-Wall", "-Wextra", "-Werror", "-fno-unwind-tables", "-fno-asynchronous-unwind-tables", "-ffunction-sections", "-fdata-sections",
    "-fstack-protector-strong", "-Wl,--gc-sections", "-Wl,--build-id=none",
)  # fmt: skip
# Static programs run on every Linux of these two architectures, whatever its libc; there is nothing in the wheel for another system.
TAG = "py3-none-manylinux_2_17_aarch64.manylinux_2_17_x86_64.musllinux_1_1_aarch64.musllinux_1_1_x86_64"


def sources_of(folder: Path) -> list[Path]:
    """The C sources and headers of one program, those of all programs included, in a fixed order."""
    return sorted([*folder.glob("*.c"), *folder.glob("*.h"), *folder.parent.glob("*.h")])


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
        target = [
            "-target",
            f"{architecture}-linux-musl",
            f'-DBUILD_ID="{build[:12]}"',
            "-o",
            str(result),
        ]
        subprocess.run(
            [sys.executable, "-m", "ziglang", "cc", *FLAGS, *target, *names], cwd=folder, check=True
        )
        result.chmod(0o755)
        result.replace(out)


def build_all(root: Path) -> Iterator[Path]:
    """Brings every program up to date and yields the paths of all of them."""
    bin_dir = root / "src" / "belljar" / "_bin"
    stamps = root / "build"
    bin_dir.mkdir(exist_ok=True)
    stamps.mkdir(exist_ok=True)
    builds = {}
    for folder, name in PROGRAMS.items():
        source = root / "native" / folder
        if not any(source.glob("*.c")):
            raise SystemExit(
                f"hatch_build: the sources of `{name}` are missing: no C file in {source}"
            )
        builds[source] = fingerprint(source)

    def build_for(architecture: str) -> list[Path]:
        outs = []
        for source, build in builds.items():
            out = bin_dir / f"{PROGRAMS[source.name]}-{architecture}"
            stamp = stamps / f"{out.name}.built-from"
            if not (out.exists() and stamp.exists() and stamp.read_text() == build):
                compile_program(source, architecture, build, out)
                stamp.write_text(build)
            outs.append(out)
        return outs

    # Side by side: the compiler makes its C library for each architecture, on one processor.
    with ThreadPoolExecutor(len(ARCHITECTURES)) as pool:
        for outs in pool.map(build_for, ARCHITECTURES):
            yield from outs


LINKED = {"musl": "lib/libc/musl/COPYRIGHT", "zig": "LICENSE"}
"""What is linked into the programs → its licence, as a path in the compiler's wheel; `licenses/NAME.txt` here."""
VENDORED = {
    "src/belljar/live/uplot.js": "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f"
}
"""Others' files that are shipped as they are published → SHA-256."""
UPLOT_VERSION = "1.6.32"
SBOM = "build/belljar-sandbox.cdx.json"


def check_compiler(root: Path, project: Mapping[str, Any]) -> str:
    """The version of the compiler. It is the one that the build requires, and what it links in has the licences that the wheel shows."""
    try:
        distribution = importlib.metadata.distribution("ziglang")
    except importlib.metadata.PackageNotFoundError:
        raise SystemExit("hatch_build: the compiler is missing: pip install ziglang") from None
    if f"ziglang=={distribution.version}" not in project["build-system"]["requires"]:
        raise SystemExit(
            f"hatch_build: ziglang {distribution.version} is not the version that pyproject.toml names"
        )
    for name, place in LINKED.items():
        theirs = Path(str(distribution.locate_file("ziglang"))) / place
        if theirs.read_bytes() != (root / "licenses" / f"{name}.txt").read_bytes():
            raise SystemExit(
                f"hatch_build: licenses/{name}.txt is not the compiler's {place}: copy it anew"
            )
    for place, digest in VENDORED.items():
        if hashlib.sha256((root / place).read_bytes()).hexdigest() != digest:
            raise SystemExit(f"hatch_build: {place} is not the file that was published")
    return distribution.version


def bill_of_materials(
    root: Path, project: Mapping[str, Any], version: str, zig: str
) -> dict[str, Any]:
    """CycloneDX 1.6: the programs by digest, what is linked into them, and the Python packages that are required, as ranges. Reproducible: no time, no serial number."""
    name = project["project"]["name"]
    own = f"pkg:pypi/{name}@{version}"
    linked: list[dict[str, Any]] = [
        {"type": "library", "bom-ref": f"pkg:generic/zig-compiler-rt@{zig}", "name": "zig-compiler-rt", "version": zig, "purl": f"pkg:generic/zig-compiler-rt@{zig}"},
        {"type": "library", "bom-ref": f"pkg:generic/musl?with=zig-{zig}", "name": "musl", "description": f"as shipped with Zig {zig}"},
    ]  # fmt: skip
    linked += [
        {"type": "library", "bom-ref": f"pkg:npm/uplot@{UPLOT_VERSION}", "name": "uplot", "version": UPLOT_VERSION, "purl": f"pkg:npm/uplot@{UPLOT_VERSION}", "hashes": [{"alg": "SHA-256", "content": digest}]}
        for digest in VENDORED.values()
    ]  # fmt: skip
    for one in linked:
        one["licenses"] = [{"license": {"id": "MIT"}}]
    programs = [
        {
            "type": "file",
            "bom-ref": f"file:{path.name}",
            "name": f"belljar/_bin/{path.name}",
            "hashes": [
                {"alg": "SHA-256", "content": hashlib.sha256(path.read_bytes()).hexdigest()}
            ],
        }
        for path in sorted((root / "src/belljar/_bin").iterdir())
        if path.name.rpartition("-")[0] in PROGRAMS.values()
    ]
    required = {  # two extras may name one package
        text: "optional"
        for texts in project["project"]["optional-dependencies"].values()
        for text in texts
    }
    required |= dict.fromkeys(project["project"]["dependencies"], "required")
    packages = []
    for text, scope in sorted(required.items()):
        package, bounds = re.fullmatch(r"([A-Za-z0-9._-]+)(?:\[[^]]*\])?(.*)", text).groups()  # type: ignore[union-attr]
        purl = f"pkg:pypi/{package.lower().replace('_', '-').replace('.', '-')}"
        packages.append(
            {
                "type": "library",
                "bom-ref": purl,
                "name": package,
                "purl": purl,
                "scope": scope,
                "properties": [{"name": "belljar:requirement", "value": bounds}],
            }
        )
    refs = [one["bom-ref"] for one in linked]
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": {"type": "application", "bom-ref": own, "name": name, "version": version, "purl": own}},
        "components": [*linked, *programs, *packages],
        "dependencies": [
            {"ref": own, "dependsOn": [one["bom-ref"] for one in [*programs, *packages]]},
            *({"ref": one["bom-ref"], "dependsOn": refs} for one in programs),
        ],
    }  # fmt: skip


_LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!https?://|mailto:)([^)\s]*)\)")


def readme_for_index(text: str, base_url: str | None) -> str:
    """The readme with absolute links, or, where the project has no address, with the text of its relative links alone."""
    if base_url is None:
        return _LINK.sub(lambda link: "" if link[1] else link[2], text)
    return _LINK.sub(lambda link: f"{link[1]}[{link[2]}]({base_url.rstrip('/')}/{link[3]})", text)


class CustomMetadataHook(MetadataHookInterface):  # type: ignore[misc,unused-ignore]
    """Hatchling calls this for the package's description."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set the readme."""
        text = (Path(self.root) / "README.md").read_text()
        base_url = metadata.get("urls", {}).get("Source")
        metadata["readme"] = {
            "content-type": "text/markdown",
            "text": readme_for_index(text, base_url),
        }


class CustomBuildHook(BuildHookInterface):  # type: ignore[type-arg,misc,unused-ignore]
    """Hatchling calls this for wheels, standard and editable."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002 - hatchling's signature
        """Compile, and tell hatchling that the wheel is for Linux."""
        if self.target_name != "wheel":
            return
        root = Path(self.root)
        project = tomllib.loads((root / "pyproject.toml").read_text())
        zig = check_compiler(root, project)
        for _ in build_all(root):
            pass
        bill = bill_of_materials(root, project, self.metadata.version, zig)
        (root / SBOM).write_text(json.dumps(bill, indent=1, sort_keys=True) + "\n")
        build_data["sbom_files"].append(SBOM)
        build_data["pure_python"] = False
        build_data["tag"] = TAG


if __name__ == "__main__":
    for built in build_all(Path(__file__).resolve().parent):
        sys.stdout.write(f"{built.name} {os.stat(built).st_size} bytes\n")  # noqa: PTH116
