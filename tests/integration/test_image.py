"""Importing and building images with the real tools: skopeo, squashfs-tools, mmdebstrap; umoci as
the judge of how layers merge."""

from __future__ import annotations

import gzip
import os
import re
import shutil
import stat
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.fakes.images import (
    directory,
    docker_archive,
    entry,
    hard_link,
    layer,
    oci_archive,
    symlink,
)
from tests.machine import public_folder

import belljar
from belljar.image.config import HealthCheck
from belljar.image.oci import import_image
from belljar.image.store import Store, verify

CONFIG = {
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


def listing(rootfs: Path) -> dict[str, str]:
    """Path → type, mode, owner and link target, as squashfs-tools read them."""
    shown = subprocess.run(
        ["unsquashfs", "-lln", str(rootfs)], capture_output=True, text=True, check=True
    ).stdout
    found = {}
    for line in shown.splitlines():
        match = re.fullmatch(
            r"(\S{10}) (\S+)\s+\d+ \S+ \S+ squashfs-root/?(.*?)(?: -> (.*))?", line
        )
        if match:
            found[match[3]] = " ".join(filter(None, (match[1], match[2], match[4])))
    return found


def content(rootfs: Path, path: str) -> bytes:
    """A file's bytes out of a packed image."""
    return subprocess.run(
        ["unsquashfs", "-cat", str(rootfs), path], capture_output=True, check=True
    ).stdout


@pytest.fixture
def store_home(tmp_path: Path) -> Iterator[Path]:
    """An empty store; whatever happens in it, no scratch is left."""
    home = tmp_path / "store"
    yield home
    assert not list((home / "tmp").iterdir()) if (home / "tmp").exists() else True


@pytest.mark.parametrize("transport", ["oci-archive", "oci", "docker-archive"])
def test_every_file_transport_gives_the_same_tree_and_configuration(
    transport: str, tmp_path: Path, store_home: Path
) -> None:
    """What skopeo reads from files is imported with its owners, modes, links and configuration,
    whatever the packing."""
    archive = tmp_path / "small.tar"
    if transport == "docker-archive":
        docker_archive(archive, [LOWER, UPPER], CONFIG)
    else:
        oci_archive(archive, [LOWER, UPPER], CONFIG)
    if transport == "oci":
        with tarfile.open(archive) as opened:
            opened.extractall(tmp_path / "layout", filter="data")
        archive = tmp_path / "layout"

    image = import_image(store_home, f"{transport}:{archive}", name="small")

    # The digest covers the tree and the configuration, and nothing of how or when they came.
    same = oci_archive(tmp_path / "same.tar", [LOWER, UPPER], CONFIG)
    assert import_image(store_home, f"oci-archive:{same}", name="same").digest == image.digest
    assert (image.env, image.user, image.workdir) == (
        {"PATH": "/bin", "GREETING": "hello=world"},
        "app",
        "/srv/app",
    )
    assert (image.entrypoint, image.cmd) == (("/bin/run", "--now"), ("all",))
    found = listing(image.rootfs)
    assert found[""].startswith("drwxr-xr-x 0/0")
    assert found["srv/app/data"] == "-rw-r----- 1000/1001"
    assert found["srv/app"] == "drwxr-xr-x 1000/1001"
    assert found["bin/su"] == "-rwxr-xr-x 0/0"
    assert (
        found["etc-link"] == "lrwxrwxrwx 7/8 /etc/passwd"
        or found["etc-link"] == "lrw-r--r-- 7/8 /etc/passwd"
    )
    assert found["big-owner"] == "-rw-r--r-- 4000000000/70000"
    assert image.high_owner == "big-owner (4000000000:70000)"
    assert "srv/app/gone" not in found
    assert "opaque/lower" not in found
    assert "opaque/upper" in found
    assert not [path for path in found if ".wh." in path]
    assert content(image.rootfs, "usr/lib/thing") == b"through a link"
    assert content(image.rootfs, "srv/app/again") == b"d" * 70_000
    assert content(image.rootfs, "n" * 150 + "é") == b"long name"
    assert found["etc/machine-id"] == "-rw-r--r-- 0/0"
    assert found["tmp"] == "drwxrwxrwt 0/0"
    verify(image)


@pytest.mark.promise("1.6")
def test_what_only_dockers_format_has_is_kept(tmp_path: Path, store_home: Path) -> None:
    """A health check and a shell are the image's after the import; volumes and the work directory
    are there."""
    config = {
        "Healthcheck": {"Test": ["CMD-SHELL", "up"], "Interval": 5_000_000_000},
        "Shell": ["/bin/bash", "-c"],
        "Volumes": {"/var/data/deep": {}, "/lib/linked": {}, "/bin": {}},
        "WorkingDir": "/site/here",
        "StopSignal": "SIGINT",
    }
    archive = docker_archive(tmp_path / "a.tar", [LOWER], config)
    image = import_image(store_home, f"docker-archive:{archive}", name="checked")
    assert image.healthcheck == HealthCheck(test=("CMD-SHELL", "up"), interval_ns=5_000_000_000)
    assert (image.shell, image.stop_signal) == (("/bin/bash", "-c"), "SIGINT")
    found = listing(image.rootfs)
    for place in ("var", "var/data", "var/data/deep", "site/here"):
        assert found[place] == "drwxr-xr-x 0/0"
    assert found["lib"].startswith("lrwx")
    assert found["bin"].startswith("drwx")
    verify(image)


@pytest.mark.root
def test_layers_merge_as_umoci_merges_them(tmp_path: Path, store_home: Path) -> None:
    """umoci, unpacking as root, and the merge in memory agree on every path, type, mode, owner and
    link of an honest image."""
    if shutil.which("umoci") is None:
        pytest.skip("needs umoci (scripts/test installs it)")
    archive = oci_archive(tmp_path / "small.tar", [LOWER, UPPER], CONFIG)
    image = import_image(store_home, f"oci-archive:{archive}", name="small", keep_setuid=True)
    subprocess.run(
        [
            "skopeo",
            "--insecure-policy",
            "copy",
            "-q",
            f"oci-archive:{archive}",
            f"oci:{tmp_path / 'copy'}:x",
        ],
        check=True,
    )
    subprocess.run(
        ["umoci", "raw", "unpack", "--image", f"{tmp_path / 'copy'}:x", str(tmp_path / "judged")],
        check=True,
        capture_output=True,
    )
    root = tmp_path / "judged"
    judged = {}
    for path in [root, *root.rglob("*")]:
        status = path.lstat()
        words = [stat.filemode(status.st_mode), f"{status.st_uid}/{status.st_gid}"]
        judged[str(path.relative_to(root)).removeprefix(".")] = " ".join(
            [*words, *([str(path.readlink())] if path.is_symlink() else [])]
        )
    ours = {
        path: shown
        for path, shown in listing(image.rootfs).items()
        if path in judged or not made_by_us(path)
    }
    # A link's mode means nothing on Linux; the root directory is always root's.
    assert {p: s.replace("lrw-r--r--", "lrwxrwxrwx") for p, s in ours.items() if p} == {
        p: s for p, s in judged.items() if p
    }


def made_by_us(path: str) -> bool:
    """What an import adds when the image lacks it."""
    return path.partition("/")[0] in {"dev", "proc", "sys", "run", "tmp", "etc"}


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


@pytest.mark.parametrize("packing", ["plain", "gzip", "gzip-members", "zstd"])
def test_every_compression_of_images_is_read(
    packing: str, tmp_path: Path, store_home: Path
) -> None:
    """Plain, gzip (also in several members) and zstd layers give the same image."""
    half = len(LOWER) // 2
    packers = {
        "plain": (lambda b: b, "tar"),
        "gzip": (gzip.compress, "tar+gzip"),
        "gzip-members": (lambda b: gzip.compress(b[:half]) + gzip.compress(b[half:]), "tar+gzip"),
        "zstd": (
            lambda b: (
                subprocess.run(["zstd", "-c"], input=b, capture_output=True, check=True).stdout
            ),
            "tar+zstd",
        ),
    }
    compress, suffix = packers[packing]
    archive = oci_archive(
        tmp_path / "a.tar",
        [LOWER],
        compress=compress,
        media_type=f"application/vnd.oci.image.layer.v1.{suffix}",
    )
    image = import_image(store_home, f"oci-archive:{archive}", name="a")
    assert content(image.rootfs, "srv/app/data") == b"d" * 70_000


def test_an_image_without_layers_holds_what_a_guest_mounts_on(
    tmp_path: Path, store_home: Path
) -> None:
    """`FROM scratch` with nothing else: no content, and still the places of every guest."""
    archive = oci_archive(tmp_path / "a.tar", [])
    image = import_image(store_home, f"oci-archive:{archive}", name="a")
    assert {"dev", "proc", "sys", "run", "tmp", "etc/hosts"} <= listing(image.rootfs).keys()


USERS_IMPORT = """
import sys
from pathlib import Path
from belljar.image.oci import import_image
print(import_image(Path(sys.argv[1]), sys.argv[2], name="small").rootfs)
"""


@pytest.mark.root
def test_an_ordinary_user_imports_with_the_right_owners(
    tmp_path: Path, ordinary_user: tuple[int, int]
) -> None:
    """Owners in the image don't need root on the host."""
    uid, gid = ordinary_user
    archive = oci_archive(tmp_path / "a.tar", [LOWER, UPPER], CONFIG)
    with tempfile.TemporaryDirectory(prefix="image-user-", dir=public_folder()) as name:
        # The checkout may lie where another user can't look; the image room needs nothing but the
        # standard library.
        work = Path(name)
        shutil.copytree(
            Path(belljar.__file__).parent,
            work / "src/belljar",
            ignore=shutil.ignore_patterns("__pycache__", "_bin"),
        )
        shutil.copy(archive, work / "a.tar")
        os.chown(work, uid, gid)
        done = subprocess.run(
            ["/usr/bin/python3", "-c", USERS_IMPORT, f"{work}/store", f"oci-archive:{work}/a.tar"],
            user=uid,
            group=gid,
            extra_groups=[],
            env={
                "PATH": "/usr/bin:/bin:/usr/sbin",
                "PYTHONPATH": f"{work}/src",
                "HOME": name,
                "PYTHONDONTWRITEBYTECODE": "1",
            },
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        found = listing(Path(done.stdout.strip()))
        assert found["srv/app/data"] == "-rw-r----- 1000/1001"
        assert found["big-owner"] == "-rw-r--r-- 4000000000/70000"


def test_the_prepared_default_image_is_neutral_and_clean(prepared_home: Path) -> None:
    """The default image has its user, an empty machine-id, no host keys, no package sources and
    nothing that names us."""
    image = Store(prepared_home).find("default")
    found = listing(image.rootfs)
    assert (image.user, image.workdir) == ("user", "/home/user")
    assert found["home/user"].endswith("1000/1000")
    assert content(image.rootfs, "etc/machine-id") == b""
    assert content(image.rootfs, "etc/resolv.conf") == b""
    assert not [
        path
        for path in found
        if re.search(r"ssh_host|belljar|mmdebstrap|sources\.list$|\.pwd\.lock|dpkg/.*-old", path)
    ]
    assert not [
        path for path in found if re.match(r"(var/log|var/cache|tmp|dev|var/lib/apt/lists)/", path)
    ]
    for tool in ("bash", "python3", "curl", "git", "ps", "tar", "less", "file"):
        assert f"usr/bin/{tool}" in found
    verify(image)
