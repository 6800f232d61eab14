"""What is judged of a build's result before it is packed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest

from belljar.image.config import ImageConfig
from belljar.image.kernel import debian_arch
from belljar.image.layers import ImportLimits, LayerError
from belljar.image.result import Files, has_kept_xattrs, missing_points, pack_result, read_files
from belljar.image.storage import Tools
from belljar.image.tools import Inside


def listed(*lines: str) -> bytes:
    """What `find` writes of these files."""
    return b"".join(line.encode() + b"\0" for line in lines)


def test_files_are_read_as_listed() -> None:
    """Kinds, the newest time and set-user-ID bits are known; a name may hold any byte but zero;
    sockets are left out; a hard link counts once."""
    files = read_files(
        listed(
            "d 2775 2 1 4096 1700000000.5 etc",
            "f 644 2 2 60 5.0 etc/a b\n",
            "f 644 2 2 60 5.0 again",
            "s 644 1 3 0 9.0 socket",
            "l 777 1 4 3 7.0 link",
        ),
        ImportLimits(max_bytes=100),
    )
    assert files.kinds == {b"etc": b"d", b"etc/a b\n": b"f", b"again": b"f", b"link": b"l"}
    assert (files.newest_s, files.has_setuid) == (1_700_000_000, False)
    assert read_files(listed("f 4755 1 1 1 1.0 su"), ImportLimits()).has_setuid


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("c 644 1 1 0 1.0 null", "character device"),
        ("b 644 1 1 0 1.0 disk", "block device"),
        ("f 644 1 1 101 1.0 large", "larger than 100 bytes"),
        ("f 644 1 1 1 1.0 " + "a/" * 200 + "b", "directories deep"),
        ("f 644 1 1 1 1.0 " + "/".join(["a" * 200] * 21), "too long"),
        ("p 644 1 1 0 1.0 etc/passwd", "/etc/passwd is a pipe"),
        ("l 777 1 1 4 1.0 proc", "/proc is a symbolic link"),
        ("f 644 1 1 0 1.0 dev", "/dev is a file"),
    ],
)
def test_what_no_image_may_have_is_refused(line: str, what: str) -> None:
    """Devices, and what is beyond the limits of an import, are refused by name."""
    with pytest.raises(LayerError, match=what):
        read_files(listed(line), ImportLimits(max_bytes=100))
    with pytest.raises(LayerError, match="more than 1 entries"):
        read_files(listed(*["d 755 1 1 0 1.0 a", "d 755 1 2 0 1.0 b"]), ImportLimits(max_entries=1))


def test_attributes_are_kept_or_dropped_never_mixed() -> None:
    """`user.*` is kept, capabilities where set-user-ID bits are; a file system whose attributes
    would be kept with others is refused."""
    assert not has_kept_xattrs(b"security.selinux\nsecurity.capability\n", keep_setuid=False)
    assert has_kept_xattrs(b"security.capability\n", keep_setuid=True)
    assert has_kept_xattrs(b"user.a\nsecurity.selinux\n", keep_setuid=False)
    with pytest.raises(LayerError, match=r"security\.capability"):
        has_kept_xattrs(b"user.a\nsecurity.capability\n", keep_setuid=False)


def test_missing_mount_points_are_made() -> None:
    """Directories and files that each cell needs are defined where nothing is; nothing is put
    below a link, and no name ends its own definition."""
    files = Files(kinds={b"etc": b"l", b"proc": b"f", b"dev": b"d"}, newest_s=7)
    config = ImageConfig(workdir='/a "b\\', volumes=("/dev/c/d", "/etc/e"))
    made = list(missing_points(files, config))
    assert made == [
        '"a \\"b\\\\" D 7 755 0 0',
        '"dev/c" D 7 755 0 0',
        '"dev/c/d" D 7 755 0 0',
        '"sys" D 7 755 0 0',
        '"run" D 7 755 0 0',
        '"tmp" D 7 1777 0 0',
    ]


class Forger:
    """Stands for a namespace's tools that hostile code has taken over; it can do what its root can
    in the working directory."""

    def __init__(self, work: Path, *acts: Callable[[Path], object]) -> None:
        work.mkdir(parents=True)
        self.inside = Inside(first_uid=0, work=work, user_fd=-1, mounts_fd=-1)
        self._acts = iter(acts)

    def buildah(self) -> list[str]:
        """Its command line."""
        return ["buildah"]

    def run(self, *_argv: str) -> bytes:
        """The next act."""
        next(self._acts)(self.inside.work)
        return b""


def honest(work: Path, **forged: bytes) -> None:
    """Write the lists that the tools would, but for these."""
    arch = {"x86_64": "amd64"}.get(debian_arch(), debian_arch())
    config = {"architecture": arch, "os": "linux", "config": {}, "rootfs": {"diff_ids": []}}
    lists = {
        "files": listed("d 755 1 1 0 1.0 etc"),
        "xattrs": b"",
        "layers": b"7\n",
        "image": json.dumps({"Config": json.dumps(config)}).encode(),
    }
    for name, content in (lists | forged).items():
        (work / "out" / name).write_bytes(content)


def packed(work: Path) -> None:
    """Write what mksquashfs would."""
    (work / "out/rootfs").write_bytes(b"hsqs")


def linked_twice(work: Path) -> None:
    """The same, with a name that stays in reach."""
    packed(work)
    (work / "more").hardlink_to(work / "out/rootfs")


def elsewhere(work: Path) -> None:
    """Put a link to a directory of the host in the place of the results."""
    (work / "out").rename(work / "gone")
    (work / "out").symlink_to(work.parents[1] / "host")


@pytest.mark.parametrize(
    "acts",
    [
        (honest, elsewhere),
        (honest, lambda work: (work / "out/rootfs").symlink_to(work.parents[1] / "host/rootfs")),
        (honest, linked_twice),
        (honest, lambda work: (work / "out/rootfs").mkdir()),
        (lambda work: honest(work, layers=b"many"), packed),
        (lambda work: honest(work, files=b"\0" * 100),),
        (lambda work: honest(work, xattrs=b"\n" * (2 << 20)),),
        (lambda work: (work / "out/files").symlink_to(work.parents[1] / "host/files"),),
        (lambda work: honest(work, image=b"[]"),),
    ],
)
def test_forged_results_are_refused_and_no_file_of_the_host_is_taken(
    tmp_path: Path, acts: tuple[Callable[[Path], object], ...]
) -> None:
    """Whatever stands where a build's tools write: links, hard links, directories, lists that are
    none. The host's own files are neither read, moved nor changed."""
    host = tmp_path / "host"
    host.mkdir()
    for name in ("files", "xattrs", "layers", "image", "rootfs"):
        (host / name).write_text("the host's")
    tools = cast("Tools", Forger(tmp_path / "scratch/build", *acts))
    with pytest.raises(LayerError):
        pack_result(tools, (), keep_setuid=False)
    assert {path.name: path.read_text() for path in host.iterdir()} == dict.fromkeys(
        ("files", "xattrs", "layers", "image", "rootfs"), "the host's"
    )


def test_what_was_packed_is_out_of_the_namespaces_reach(tmp_path: Path) -> None:
    """The same lists, unforged, are accepted; the volumes are the Dockerfile's."""
    tools = cast("Tools", Forger(tmp_path / "scratch/build", honest, packed))
    result = pack_result(tools, ("/v",), keep_setuid=False)
    assert result.config.volumes == ("/v",)
    assert result.rootfs == tmp_path / "scratch/rootfs"
    assert result.rootfs.read_bytes() == b"hsqs"


def test_a_place_of_the_results_that_a_step_has_taken_is_refused(tmp_path: Path) -> None:
    """The directory is made anew, or the build ends with one error."""
    forger = Forger(tmp_path / "scratch/build", honest, packed)
    (forger.inside.work / "out").mkdir()
    with pytest.raises(LayerError):
        pack_result(cast("Tools", forger), (), keep_setuid=False)
