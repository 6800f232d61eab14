"""Container images made by hand, honest and hostile: layers as tar bytes, and the archives that
skopeo reads."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import platform
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

from tests.machine import public_folder

import belljar
from belljar.image.config import ImageConfig
from belljar.image.store import Image, Store

ARCH = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), "amd64")
Json = dict[str, Any]


def entry(
    name: str, content: bytes = b"", *, kind: bytes = tarfile.REGTYPE, **fields: object
) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.type, info.size = kind, len(content)
    info.mode = 0o755 if kind == tarfile.DIRTYPE else 0o644
    for field, value in fields.items():
        setattr(info, field, value)
    return info, content


def directory(name: str, **fields: object) -> tuple[tarfile.TarInfo, bytes]:
    return entry(name, b"", kind=tarfile.DIRTYPE, **fields)


def symlink(name: str, target: str, **fields: object) -> tuple[tarfile.TarInfo, bytes]:
    return entry(name, b"", kind=tarfile.SYMTYPE, linkname=target, **fields)


def hard_link(name: str, target: str, **fields: object) -> tuple[tarfile.TarInfo, bytes]:
    return entry(name, b"", kind=tarfile.LNKTYPE, linkname=target, **fields)


def layer(*entries: tuple[tarfile.TarInfo, bytes]) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for info, content in entries:
            archive.addfile(info, io.BytesIO(content))
    return made.getvalue()


@dataclass(frozen=True)
class BytesOf:
    content: bytes

    def pread(self, count: int, offset: int) -> bytes:
        """Up to `count` bytes at `offset`, never more than a header or its bound at once."""
        assert count <= 1 << 20
        return self.content[offset : offset + count]


def sha256(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def blob_of(media_type: str, content: bytes) -> Json:
    return {"mediaType": media_type, "digest": sha256(content), "size": len(content)}


def config_document(layers: Sequence[bytes], config: Mapping[str, Any] | None = None) -> Json:
    return {
        "architecture": ARCH,
        "os": "linux",
        "created": "2024-01-02T03:04:05Z",
        "config": dict(config or {}),
        "rootfs": {"type": "layers", "diff_ids": [sha256(content) for content in layers]},
    }


def oci_archive(
    path: Path,
    layers: Sequence[bytes],
    config: Mapping[str, Any] | None = None,
    *,
    compress: Callable[[bytes], bytes] = gzip.compress,
    media_type: str = "application/vnd.oci.image.layer.v1.tar+gzip",
    tweak: Callable[[Json, Json], object] = lambda _manifest, _config: None,
    blobs_tweak: Callable[[dict[str, bytes]], None] = lambda _blobs: None,
    annotations: Mapping[str, str] | None = None,
) -> Path:
    """Write an OCI archive. `annotations`: of its only entry. `tweak` may change manifest and
    configuration, `blobs_tweak` what is stored under which digest."""
    packed = [compress(content) for content in layers]
    document = config_document(layers, config)
    manifest: Json = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": {},
        "layers": [blob_of(media_type, blob) for blob in packed],
    }
    tweak(manifest, document)
    config_bytes = json.dumps(document).encode()
    described = blob_of("application/vnd.oci.image.config.v1+json", config_bytes)
    manifest["config"] = manifest["config"] or described
    manifest_bytes = json.dumps(manifest).encode()
    blobs = {sha256(content): content for content in (*packed, config_bytes, manifest_bytes)}
    blobs_tweak(blobs)
    described = blob_of(str(manifest["mediaType"]), manifest_bytes)
    described |= {"annotations": dict(annotations)} if annotations else {}
    index = {"schemaVersion": 2, "manifests": [described]}
    files = {
        "oci-layout": b'{"imageLayoutVersion":"1.0.0"}',
        "index.json": json.dumps(index).encode(),
    }
    files |= {f"blobs/{digest.replace(':', '/')}": content for digest, content in blobs.items()}
    path.write_bytes(layer(*(entry(name, content) for name, content in files.items())))
    return path


def docker_archive(
    path: Path,
    layers: Sequence[bytes],
    config: Mapping[str, Any] | None = None,
    *,
    tags: Sequence[Sequence[str]] = (("small:latest",),),
) -> Path:
    """Write what `docker save` writes: an image for each entry of `tags`."""
    config_bytes = json.dumps(config_document(layers, config)).encode()
    name = f"{hashlib.sha256(config_bytes).hexdigest()}.json"
    listed = [f"{hashlib.sha256(content).hexdigest()}/layer.tar" for content in layers]
    manifest = [{"Config": name, "RepoTags": list(each), "Layers": listed} for each in tags]
    files = {name: config_bytes, "manifest.json": json.dumps(manifest).encode()}
    files |= dict(zip(listed, layers, strict=True))
    path.write_bytes(layer(*(entry(file, content) for file, content in files.items())))
    return path


def put_image(
    home: Path,
    name: str,
    content: bytes = b"hsqs",
    config: ImageConfig | None = None,
    **about: Any,  # noqa: ANN401 - as the store has it
) -> Image:
    """Have these bytes as an image of a store, to which the name then belongs."""
    home.mkdir(exist_ok=True)
    (rootfs := home / "rootfs").write_bytes(content)
    words: dict[str, Any] = {"source": "test", "created": "", **about}
    return Store(home).add(rootfs, config or ImageConfig(), name=name, **words)


SMALL_PROGRAMS = (
    *("bash", "cat", "chown", "dash", "echo", "env", "find", "grep", "head", "id", "ln", "ls"),
    *("mkdir", "printf", "sh", "sleep", "tail", "true"),
)
SMALL_LIBRARIES = (
    *("ld-*", "libacl.*", "libattr.*", "libc.so*", "libm.so*", "libpcre2*", "libselinux*"),
    "libtinfo*",
)
SMALL_REST = (
    *("bin", "sbin", "lib", "lib64", "usr/lib64", "etc", "home", "root", "tmp", "var/tmp", "proc"),
    *("sys", "dev"),
)
# What a step in Python needs besides.
PYTHON = (
    "usr/bin/python3*",
    *(f"usr/lib/python3.*/{name}" for name in ("*.py", "collections", "encodings", "re")),
    *(f"usr/lib/*-linux-gnu/{name}" for name in ("libexpat*", "libz.*")),
)


def add_small_image(
    home: Path, name: str = "small", config: ImageConfig | None = None, *, more: Sequence[str] = ()
) -> None:
    """A shell and a few programs of the default image under its configuration or this one:
    building, unpacking and packing it takes less than a second, the default image ten."""
    store = Store(home)
    default = store.find("default")
    programs = [f"usr/bin/{program}" for program in SMALL_PROGRAMS]
    libraries = [f"usr/lib/*-linux-gnu/{library}" for library in SMALL_LIBRARIES]
    (home / "tmp").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=home / "tmp") as scratch:
        root, packed = Path(scratch, "root"), Path(scratch, "small.sqfs")
        wanted = (*SMALL_REST, *programs, *libraries, *more)
        for argv in (
            ["unsquashfs", "-q", "-n", "-d", str(root), str(default.rootfs), *wanted],
            ["mksquashfs", str(root), str(packed), "-quiet", "-no-progress", "-comp", "lz4"],
        ):
            subprocess.run(argv, check=True, capture_output=True)
        store.add(packed, config or default.config, name=name, source="a test", created="")


@dataclass(frozen=True)
class UsersFolder:
    """A directory of a user's, with a copy of the package: the checkout may lie where only root can
    look, and of others the image room needs the standard library alone."""

    path: Path
    uid: int
    gid: int

    def run(self, program: str, *arguments: object) -> str:
        words = ["/usr/bin/python3", "-Bc", program, *(str(word) for word in arguments)]
        environment = {"PATH": "/usr/bin:/bin:/usr/sbin", "HOME": str(self.path)}
        done = subprocess.run(
            words,
            user=self.uid,
            group=self.gid,
            extra_groups=[],
            env={**environment, "PYTHONPATH": f"{self.path}/src"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def own(self) -> None:
        for place in (self.path, *self.path.rglob("*")):
            os.chown(place, self.uid, self.gid, follow_symlinks=False)


@contextmanager
def users_folder(uid: int, gid: int, library: str = "") -> Iterator[UsersFolder]:
    """A `UsersFolder` that other users may pass through, with this library."""
    with tempfile.TemporaryDirectory(prefix="image-user-", dir=public_folder()) as name:
        Path(name).chmod(0o755)
        without = shutil.ignore_patterns("_bin")
        shutil.copytree(Path(belljar.__file__).parent, Path(name, "src/belljar"), ignore=without)
        for file in distribution(library).files or () if library else ():
            (target := Path(name, "src", file)).parent.mkdir(exist_ok=True)
            shutil.copy2(file.locate(), target)
        made = UsersFolder(Path(name), uid, gid)
        made.own()
        yield made
