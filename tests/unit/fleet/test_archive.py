"""Archives between machines: whole, and harmless whatever they hold."""

from __future__ import annotations

import io
import os
import struct
import tarfile
import zlib
from pathlib import Path

import pytest
import zstandard

from belljar.errors import LedgerError, PolicyError
from belljar.fleet import archive
from belljar.fleet.archive import check_log, pack, pack_task, unpack
from belljar.image.layers import LayerError


def tree(root: Path) -> dict[str, bytes]:
    return {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()}


def test_a_directory_arrives_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Empty, small, large and deep files, in pieces of any size; private to this user."""
    monkeypatch.setattr(archive, "PIECE_BYTES", 1000)
    run = tmp_path / "run"
    (run / "bodies" / "ab").mkdir(parents=True)
    for name, content in {"a": b"", "bodies/ab/c": os.urandom(5000), "ö" * 90: b"x" * 512}.items():
        (run / name).write_bytes(content)
    sent = tmp_path / "sent.tar"
    sent.write_bytes(b"".join(pack(run)))
    with sent.open("rb") as file:
        unpack(file, tmp_path / "there")
    assert tree(tmp_path / "there") == tree(run)
    assert all(not p.stat().st_mode & 0o077 for p in (tmp_path / "there").rglob("*") if p.is_file())
    assert (tmp_path / "there").stat().st_mode & 0o077 == 0
    with tarfile.open(sent) as known:  # anybody can open it
        assert len(known.getnames()) == 3


def test_a_link_in_a_run_directory_is_not_followed(tmp_path: Path) -> None:
    """It is an error, not another file's content."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "link").symlink_to("/etc/hostname")
    with pytest.raises(LedgerError):
        list(pack(tmp_path / "run"))


@pytest.mark.parametrize(
    "kind", ["up", "absolute", "link", "hard", "device", "folder", "twice", "inside", "long", "cut"]
)
def test_a_hostile_archive_is_refused(tmp_path: Path, kind: str) -> None:
    """Names that lead out or are too long here, links, devices, a file twice or as a directory, an
    archive that is cut: it is the archive's fault, and nothing outside of the new directory is
    touched."""
    made = io.BytesIO()
    names = {"up": "../out", "absolute": "/tmp/out", "long": f"{'d' * 255}/" * 15 + "n" * 240}
    with tarfile.open(fileobj=made, mode="w") as tar:
        info = tarfile.TarInfo(names.get(kind, "in"))
        info.size = 1
        kinds = {
            "link": tarfile.SYMTYPE,
            "hard": tarfile.LNKTYPE,
            "device": tarfile.CHRTYPE,
            "folder": tarfile.DIRTYPE,
        }
        if kind in kinds:
            info.type, info.linkname, info.size = kinds[kind], "../out", 0
        tar.addfile(info, io.BytesIO(b"x"))
        if kind in ("twice", "inside"):
            info.name += "/in" * (kind == "inside")
            tar.addfile(info, io.BytesIO(b"x"))
    content = made.getvalue()
    sent = tmp_path / "sent.tar"
    sent.write_bytes(content[:512] if kind == "cut" else content)
    (tmp_path / "inner").mkdir()
    with sent.open("rb") as file, pytest.raises(LayerError):
        unpack(file, tmp_path / "inner" / "there")
    assert not (tmp_path / "inner" / "out").exists()
    assert not (tmp_path / "out").exists()


def test_a_task_is_sent_without_secrets_and_within_bounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No `.env`, no repository, no link; too much is refused with the directory's name."""
    (tmp_path / ".git").mkdir()
    for name in (".env", "task.py", ".git/config"):
        (tmp_path / name).write_text(name)
    (tmp_path / "link").symlink_to("/etc/hostname")
    sent = tmp_path.parent / f"{tmp_path.name}.tar"
    sent.write_bytes(pack_task(tmp_path))
    with tarfile.open(sent) as known:
        assert known.getnames() == ["task.py"]
    monkeypatch.setattr(archive, "MAX_TASK_BYTES", 3)
    with pytest.raises(PolicyError):
        pack_task(tmp_path)


def zipped(path: Path, content: bytes, method: int) -> None:
    """A zip file whose index says that its one member has a byte."""
    packed = content
    if method == 8:
        packed = zlib.compress(content)[2:-4]
    elif method == 93:
        packed = zstandard.compress(content)
    shape = (method, 0, 0, zlib.crc32(content), len(packed), 1)
    own = struct.pack("<4s5H3I2H", b"PK\3\4", 20, 0, *shape, 1, 0) + b"m" + packed
    index = struct.pack("<4s6H3I5H2I", b"PK\1\2", 20, 20, 0, *shape, 1, 0, 0, 0, 0, 0, 0) + b"m"
    end = struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, 1, 1, len(index), len(own), 0)
    path.write_bytes(own + index + end)


def overlapping(content: bytes, count: int = 3) -> bytes:
    """A zip file of one member, with an index that names it so often."""
    at, end = content.index(b"PK\1\2"), content.index(b"PK\5\6")
    index = content[at:end] * count
    sizes = struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, count, count, len(index), at, 0)
    return content[:at] + index + sizes


@pytest.mark.parametrize("method", [0, 8, 93])
def test_a_log_that_expands_too_far_is_refused_whatever_its_index_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: int
) -> None:
    """Its members are counted while they are read, each and together, and never held whole."""
    path = tmp_path / "a.eval"
    monkeypatch.setattr(archive, "PIECE_BYTES", 1 << 16)
    zipped(path, bytes(1 << 20), method)
    check_log(path)
    for bound in ("MAX_MEMBER_BYTES", "MAX_LOG_BYTES"):
        with monkeypatch.context() as patch:
            patch.setattr(archive, bound, (1 << 20) - 1)
            with pytest.raises(LedgerError):
                check_log(path)


@pytest.mark.parametrize(
    "how", ["comment", "large index", "wide", "packed", "overlap", "not a zip", "json"]
)
def test_a_log_that_two_readers_could_read_differently_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """A comment that may hold another index, fields of 64 bits, a method of its own, an index
    without bound, members that share their bytes, and a JSON log without a bound."""
    path = tmp_path / ("a.json" if how == "json" else "a.eval")
    zipped(path, bytes(5000), 0)
    content = path.read_bytes()
    changed = {
        "comment": content[:-2] + b"\1\0x",
        "wide": content[:-12] + b"\xff" * 4 + content[-8:],
        "packed": content.replace(b"PK\1\2\x14\0\x14\0\0\0\0", b"PK\1\2\x14\0\x14\0\0\0\x0e"),
        "overlap": overlapping(content),
        "not a zip": b"{}",
        "json": b"{}" * 9,
    }
    path.write_bytes(changed.get(how, content))
    monkeypatch.setattr(archive, "MAX_LOG_INDEX_BYTES", 10 if how == "large index" else 1 << 20)
    monkeypatch.setattr(archive, "MAX_MEMBER_BYTES", 10 if how == "json" else 1 << 20)
    with pytest.raises(LedgerError):
        check_log(path)
