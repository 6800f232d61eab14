"""Importing and building images with the real tools: skopeo, squashfs-tools, mmdebstrap; umoci as
the judge of how layers merge."""

from __future__ import annotations

import gzip
import re
import shutil
import stat
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.fakes.images import (
    directory,
    docker_archive,
    entry,
    hard_link,
    layer,
    oci_archive,
    symlink,
    users_folder,
)

from belljar.image.config import HealthCheck
from belljar.image.oci import import_image
from belljar.image.store import Store, verify

CONFIG = {
    "Healthcheck": {"Test": ["CMD-SHELL", "up"], "Interval": 5_000_000_000},
    "Volumes": {"/var/data/deep": {}, "/lib/linked": {}, "/bin": {}},
    "Env": ["PATH=/bin", "GREETING=hello=world"],
    "User": "app",
    "WorkingDir": "/srv/app",
    "Entrypoint": ["/bin/run", "--now"],
    "Cmd": ["all"],
}
LOWER = layer(
    directory("./"),
    directory("bin"),
    entry("bin/run", b"#!/bin/sh\n", mode=0o755, uid=0, gid=0),
    entry("bin/su", b"set me", mode=0o4755),
    directory("srv/app", uid=1000, gid=1001),
    entry("srv/app/data", b"d" * 70_000, uid=1000, gid=1001, mode=0o640, mtime=1_600_000_000),
    entry("srv/app/gone", b"gone"),
    directory("opaque"),
    entry("opaque/lower", b"lower"),
    symlink("lib", "usr/lib"),
    directory("usr/lib"),
    symlink("etc-link", "/etc/passwd", uid=7, gid=8),
    entry("n" * 150 + "é", b"long name"),
)
UPPER = layer(
    entry("srv/app/.wh.gone"),
    entry("opaque/upper", b"upper"),
    entry("opaque/.wh..wh..opq"),
    entry("lib/thing", b"through a link"),
    hard_link("srv/app/again", "srv/app/data"),
    entry("big-owner", b"x", uid=4_000_000_000, gid=70_000),
)


def output(*argv: object, **options: Any) -> str:  # noqa: ANN401 - of subprocess
    words = [str(word) for word in argv]
    return str(subprocess.run(words, capture_output=True, text=True, check=True, **options).stdout)


def listing(rootfs: Path) -> dict[str, str]:
    """Path → type, mode, owner and link target, as squashfs-tools read them."""
    line = r"^(\S{10}) (\S+)\s+\d+ \S+ \S+ squashfs-root/?(.*?)(?: -> (.*))?$"
    found = re.findall(line, output("unsquashfs", "-lln", rootfs), re.MULTILINE)
    return {path: " ".join(filter(None, (mode, owner, to))) for mode, owner, path, to in found}


def content(rootfs: Path, path: str) -> str:
    return output("unsquashfs", "-cat", rootfs, path)


@pytest.fixture
def store_home(tmp_path: Path) -> Iterator[Path]:
    """An empty store; whatever happens in it, no scratch is left."""
    home = tmp_path / "store"
    yield home
    assert not list((home / "tmp").iterdir()) if (home / "tmp").exists() else True


@pytest.mark.promise("1.6")
@pytest.mark.parametrize("transport", ["oci-archive", "docker-archive"])
def test_every_file_transport_gives_the_same_tree_and_configuration(
    transport: str, tmp_path: Path, store_home: Path
) -> None:
    """Owners, modes, links and configuration are kept, whatever the packing; volumes are there."""
    write = docker_archive if transport == "docker-archive" else oci_archive
    archive = write(tmp_path / "small.tar", [LOWER, UPPER], CONFIG)
    image = import_image(store_home, f"{transport}:{archive}", name="small")
    # The digest covers the tree and the configuration, and nothing of how or when they came.
    same = oci_archive(tmp_path / "same.tar", [LOWER, UPPER], CONFIG)
    assert import_image(store_home, f"oci-archive:{same}", name="same").digest == image.digest
    assert image.env == {"PATH": "/bin", "GREETING": "hello=world"}
    assert (image.user, image.workdir) == ("app", "/srv/app")
    assert (image.entrypoint, image.cmd) == (("/bin/run", "--now"), ("all",))
    assert image.healthcheck == HealthCheck(test=("CMD-SHELL", "up"), interval_ns=5_000_000_000)
    found = listing(image.rootfs)
    expected = {
        "": "drwxr-xr-x 0/0",
        "srv/app/data": "-rw-r----- 1000/1001",
        "srv/app": "drwxr-xr-x 1000/1001",
        "bin/su": "-rwxr-xr-x 0/0",
        "big-owner": "-rw-r--r-- 4000000000/70000",
        "etc/machine-id": "-rw-r--r-- 0/0",
        "tmp": "drwxrwxrwt 0/0",
        "var/data/deep": "drwxr-xr-x 0/0",
    }
    assert {path: found[path] for path in expected} == expected
    assert found["lib"].startswith("lrwx")
    assert found["etc-link"].partition(" ")[2] == "7/8 /etc/passwd"
    assert image.high_owner == "big-owner (4000000000:70000)"
    assert not {"srv/app/gone", "opaque/lower"} & found.keys()
    assert "opaque/upper" in found
    assert not [path for path in found if ".wh." in path]
    assert content(image.rootfs, "usr/lib/thing") == "through a link"
    assert content(image.rootfs, "srv/app/again") == "d" * 70_000
    assert content(image.rootfs, "n" * 150 + "é") == "long name"
    verify(image)


@pytest.mark.root
def test_layers_merge_as_umoci_merges_them(tmp_path: Path, store_home: Path) -> None:
    """umoci and the merge in memory agree on each path, type, mode, owner and link."""
    if shutil.which("umoci") is None:
        pytest.skip("needs umoci (scripts/test installs it)")
    archive = oci_archive(tmp_path / "small.tar", [LOWER, UPPER], CONFIG)
    image = import_image(store_home, f"oci-archive:{archive}", name="small", keep_setuid=True)
    copy, root = tmp_path / "copy", tmp_path / "judged"
    skopeo = ("skopeo", "--insecure-policy", "copy", "-q")
    output(*skopeo, f"oci-archive:{archive}", f"oci:{copy}:x")
    output("umoci", "raw", "unpack", "--image", f"{copy}:x", root)
    judged = {}
    for path in root.rglob("*"):  # the root directory is always root's
        status = path.lstat()
        words = [stat.filemode(status.st_mode), f"{status.st_uid}/{status.st_gid}"]
        words += [str(path.readlink())] if path.is_symlink() else []
        judged[str(path.relative_to(root))] = " ".join(words)
    added = {
        "",
        *["dev", "proc", "sys", "run", "tmp", "etc", "var"],
    }  # what an import adds when it lacks
    ours = {
        path: shown.replace("lrw-r--r--", "lrwxrwxrwx")  # a link's mode means nothing on Linux
        for path, shown in listing(image.rootfs).items()
        if path in judged or path.partition("/")[0] not in added
    }
    assert ours == judged


def test_setuid_is_kept_only_when_asked(tmp_path: Path, store_home: Path) -> None:
    """setuid bits and file capabilities are taken away unless `keep_setuid`."""
    capability = {"SCHILY.xattr.security.capability": "\x01\x00\x00\x02\x00\x20\x00\x00"}
    entries = layer(entry("su", b"s", mode=0o6755), entry("ping", b"p", pax_headers=capability))
    archive = oci_archive(tmp_path / "a.tar", [entries])
    plain = import_image(store_home, f"oci-archive:{archive}", name="plain")
    kept = import_image(store_home, f"oci-archive:{archive}", name="kept", keep_setuid=True)
    assert listing(plain.rootfs)["su"].startswith("-rwxr-xr-x")
    assert listing(kept.rootfs)["su"].startswith("-rwsr-sr-x")
    assert plain.digest != kept.digest


HALF = len(LOWER) // 2
PACKERS: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "plain": ("tar", lambda layer: layer),
    "gzip": ("tar+gzip", gzip.compress),
    "gzip-members": (
        "tar+gzip",
        lambda layer: gzip.compress(layer[:HALF]) + gzip.compress(layer[HALF:]),
    ),
    "zstd": (
        "tar+zstd",
        lambda layer: subprocess.run(["zstd"], input=layer, stdout=-1, check=True).stdout,
    ),
}


@pytest.mark.parametrize("packing", PACKERS)
def test_every_compression_of_images_is_read(
    packing: str, tmp_path: Path, store_home: Path
) -> None:
    """Plain, gzip (also in members) and zstd give the same image; without layers, mount points."""
    suffix, pack = PACKERS[packing]
    kind = f"application/vnd.oci.image.layer.v1.{suffix}"
    archive = oci_archive(tmp_path / "a.tar", [LOWER], compress=pack, media_type=kind)
    image = import_image(store_home, f"oci-archive:{archive}", name="a")
    assert content(image.rootfs, "srv/app/data") == "d" * 70_000
    empty = import_image(store_home, f"oci-archive:{oci_archive(archive, [])}", name="empty")
    assert {"dev", "proc", "sys", "run", "tmp", "etc/hosts"} <= listing(empty.rootfs).keys()


USERS_IMPORT = """
import sys
from pathlib import Path
from belljar.image.oci import import_image
print(import_image(Path(sys.argv[1]), sys.argv[2], name="small").rootfs)
"""


@pytest.mark.root
def test_an_ordinary_user_imports_with_the_right_owners(ordinary_user: tuple[int, int]) -> None:
    """Owners in the image don't need root on the host."""
    with users_folder(*ordinary_user) as folder:
        archive = oci_archive(folder.path / "a.tar", [LOWER, UPPER], CONFIG)
        rootfs = folder.run(USERS_IMPORT, folder.path / "store", f"oci-archive:{archive}")
        found = listing(Path(rootfs))
    assert found["srv/app/data"] == "-rw-r----- 1000/1001"
    assert found[""] == "drwxr-xr-x 0/0"  # not the user's, who may have a workload's number
    assert found["big-owner"] == "-rw-r--r-- 4000000000/70000"


def test_the_prepared_default_image_is_neutral_and_clean(prepared_home: Path) -> None:
    """It has its user, an empty machine-id, no host keys or sources, and nothing names us."""
    image = Store(prepared_home).find("default")
    found = listing(image.rootfs)
    assert (image.user, image.workdir) == ("user", "/home/user")
    assert found["home/user"].endswith("1000/1000")
    assert content(image.rootfs, "etc/machine-id") == content(image.rootfs, "etc/resolv.conf") == ""
    named = r"ssh_host|belljar|mmdebstrap|sources\.list$|\.pwd\.lock|dpkg/.*-old"
    used = r"(var/log|var/cache|tmp|dev|var/lib/apt/lists)/"
    assert not [path for path in found if re.search(named, path) or re.match(used, path)]
    tools = ("bash", "python3", "curl", "git", "ps", "tar", "less", "file")
    assert {f"usr/bin/{tool}" for tool in tools} <= found.keys()
    verify(image)
