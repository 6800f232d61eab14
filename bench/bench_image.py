"""How fast an image is imported, and how much memory that takes.

    python bench/bench_image.py [--mib N] [--rounds N] [--json]

The archive holds N MiB of files (4 KiB to 8 MiB; two thirds of the bytes compress well, as programs and text do) in three
layers. It is imported as `docker save` writes it (uncompressed) and as an OCI archive of gzip layers, each time by a
process of its own into an empty store. Memory is the peak of that process, and of the largest of the tools that it starts
(skopeo, sqfstar; at least that process's own when it starts them).
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from belljar.image.oci import import_image

_LAYERS = 3
_PATTERN = b"def handler(request):\n    return request.answer(status=200)\n" * 700


def main() -> None:
    """Make the archives, import each, print what it took."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--mib", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        print(json.dumps(measure(given.one)))
        return
    with tempfile.TemporaryDirectory(prefix="belljar-bench-") as name:
        archives = make(Path(name), given.mib << 20)
        results = {what: rounds(ref, given.rounds) for what, ref in archives.items()}
    load = os.getloadavg()[0]
    if given.json:
        print(json.dumps({"mib": given.mib, "load": load, "imports": results}, indent=2))
        return
    print(f"{given.mib} MiB of files, {given.rounds} rounds, load {load:.1f} at the end")
    for what, found in results.items():
        speed = given.mib / found["seconds"]
        print(
            f"{what:15} {found['seconds']:6.1f} s  {speed:6.1f} MiB/s  {found['peak_mib']:5.0f} MiB peak, tools {found['tools_mib']:5.0f}"
        )


def rounds(ref: str, count: int) -> dict[str, float]:
    """Medians over processes of their own."""
    found = []
    for _ in range(count):
        argv = [sys.executable, __file__, "--one", ref]
        found.append(json.loads(subprocess.run(argv, check=True, capture_output=True).stdout))
    return {key: statistics.median(each[key] for each in found) for key in found[0]}


def measure(ref: str) -> dict[str, float]:
    """One import into an empty store."""
    with tempfile.TemporaryDirectory(prefix="belljar-bench-") as home:
        began = time.monotonic()
        import_image(Path(home), ref)
        seconds = time.monotonic() - began
    # Not ru_maxrss of this process: that counts the memory of the one that started it, until it ran another program.
    peak_kib = next(line.split()[1] for line in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in line)
    tools_kib = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    return {"seconds": seconds, "peak_mib": int(peak_kib) / 1024, "tools_mib": tools_kib / 1024}


def make(directory: Path, total_bytes: int) -> dict[str, str]:
    """Both archives of the same image; references for `belljar image import`."""
    layers = [directory / f"layer{number}.tar" for number in range(_LAYERS)]
    for number, layer in enumerate(layers):
        with tarfile.open(layer, "w") as archive:
            for index, content in enumerate(contents(total_bytes // _LAYERS, seed=number)):
                add(archive, f"srv/layer{number}/{index // 100}/{index}", content)
    config = {
        "architecture": {"x86_64": "amd64", "aarch64": "arm64"}[os.uname().machine],
        "os": "linux",
        "config": {},
        "rootfs": {"type": "layers", "diff_ids": [digest(layer.read_bytes()) for layer in layers]},
    }
    made = {
        "docker-archive": docker_archive(directory, layers, config),
        "oci-archive": oci_archive(directory, layers, config),
    }
    return {what: f"{what}:{path}" for what, path in made.items()}


def contents(total_bytes: int, *, seed: int) -> Iterator[bytes]:
    """Files of many sizes: one in three is noise."""
    drawn = random.Random(seed)  # noqa: S311 - a benchmark's
    left = total_bytes
    while left > 0:
        size = min(left, int(4096 * 2 ** drawn.uniform(0, 11)))
        # No two files are equal: sqfstar would store them once.
        text = (f"# {seed} {left}\n".encode() + _PATTERN * (size // len(_PATTERN) + 1))[:size]
        yield drawn.randbytes(size) if drawn.random() < 1 / 3 else text
        left -= size


def docker_archive(directory: Path, layers: list[Path], config: dict[str, Any]) -> Path:
    """As `docker save` writes it."""
    described = json.dumps(config).encode()
    name = f"{hashlib.sha256(described).hexdigest()}.json"
    listed = [f"{layer.stem}/layer.tar" for layer in layers]
    path = directory / "docker.tar"
    with tarfile.open(path, "w") as archive:
        for file, layer in zip(listed, layers, strict=True):
            archive.add(layer, file)
        add(archive, name, described)
        add(
            archive, "manifest.json", json.dumps([{"Config": name, "RepoTags": ["bench:1"], "Layers": listed}]).encode()
        )
    return path


def oci_archive(directory: Path, layers: list[Path], config: dict[str, Any]) -> Path:
    """An OCI layout with gzip layers, in a tar archive."""
    blobs = [gzipped(layer.read_bytes()) for layer in layers]
    described = json.dumps(config).encode()
    kind = "application/vnd.oci.image"
    manifest = {
        "schemaVersion": 2,
        "mediaType": f"{kind}.manifest.v1+json",
        "config": descriptor(f"{kind}.config.v1+json", described),
        "layers": [descriptor(f"{kind}.layer.v1.tar+gzip", blob) for blob in blobs],
    }
    written = json.dumps(manifest).encode()
    index = {"schemaVersion": 2, "manifests": [descriptor(f"{kind}.manifest.v1+json", written)]}
    path = directory / "oci.tar"
    with tarfile.open(path, "w") as archive:
        add(archive, "oci-layout", b'{"imageLayoutVersion":"1.0.0"}')
        add(archive, "index.json", json.dumps(index).encode())
        for blob in (*blobs, described, written):
            add(archive, f"blobs/{digest(blob).replace(':', '/')}", blob)
    return path


def gzipped(content: bytes) -> bytes:
    """As fast as Docker compresses, about."""
    packer = zlib.compressobj(level=5, wbits=31)
    return packer.compress(content) + packer.flush()


def descriptor(kind: str, content: bytes) -> dict[str, Any]:
    """A blob as a document names it."""
    return {"mediaType": kind, "digest": digest(content), "size": len(content)}


def digest(content: bytes) -> str:
    """As images write it."""
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    """One regular file."""
    info = tarfile.TarInfo(name)
    info.size = len(content)
    archive.addfile(info, io.BytesIO(content))


if __name__ == "__main__":
    main()
