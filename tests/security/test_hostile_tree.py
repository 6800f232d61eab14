"""A compromised agent answers a download: whatever it sends, nothing but the target is touched."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.fakes.vm import staged

from belljar.cell.local_tree import TreeDestination
from belljar.channel.trees import RecordKind, TreeReader, TreeRecord, encode
from belljar.errors import CellError, ProtocolViolation

pytestmark = pytest.mark.anyio
LEAVE = TreeRecord(path="", kind=RecordKind.LEAVE)
NAMES = st.sampled_from(["a", "A", "b", "\udcff", "é", "é", " ", "-rf", ".git", "CON"])
LINKS = st.sampled_from(
    [*("a", ".", "..", "../..", "/etc", "a/..", "a/../../x", "../b", "//x"), "b/../../outside"]
)
RECORDS = st.one_of(
    st.builds(
        lambda n: (TreeRecord(path=n, kind=RecordKind.FILE, mode=0o7777, size_bytes=4), b"evil"),
        NAMES,
    ),
    st.builds(lambda n: (TreeRecord(path=n, kind=RecordKind.ENTER, mode=0o7777), b""), NAMES),
    st.builds(lambda n, to: (TreeRecord(path=n, kind=RecordKind.LINK, link=to), b""), NAMES, LINKS),
    st.builds(lambda n: (TreeRecord(path=n, kind=RecordKind.OTHER, mode=0o6666), b""), NAMES),
    st.just((LEAVE, b"")),
)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def state(folder: Path) -> dict[str, tuple[int, bytes]]:
    found = {}
    for path in folder.rglob("*"):
        mode = path.lstat().st_mode
        found[str(path)] = (mode, path.read_bytes() if stat.S_ISREG(mode) else b"")
    return found


@pytest.mark.promise("4.3")
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(records=st.lists(RECORDS, max_size=14), overwrite=st.booleans(), skip=st.booleans())
def test_no_stream_leaves_the_target(
    records: list[tuple[TreeRecord, bytes]], overwrite: bool, skip: bool
) -> None:
    """What is outside stays, no link leads out, a failure leaves the target as it was."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch).resolve()
        target, outside = folder / "work" / "target", folder / "outside"
        for made in (target / "a", outside):
            made.mkdir(parents=True)
        (target / "b").symlink_to(outside)
        (outside / "kept").write_text("kept")
        before, kept = state(outside), state(target)
        stream = encode(TreeRecord(path="", kind=RecordKind.ENTER, mode=0o755))
        stream += b"".join(encode(record) + content for record, content in records)
        reader = TreeReader(contents=True, depth=64, max_entries=10, max_bytes=40)
        destination = TreeDestination(target, overwrite=overwrite, skip_unsafe=skip)
        try:
            destination.take(reader.feed(stream))
            reader.finish()
            destination.place()
        except (ProtocolViolation, OSError, ValueError):
            destination.discard()
            assert state(target) == kept
        assert state(outside) == before
        assert names(folder / "work") == ["target"]
        if (target / "b").is_symlink() and (target / "b").readlink() == outside:
            (target / "b").unlink()
        for path in target.rglob("*"):
            mode = path.lstat().st_mode
            assert not mode & 0o6000
            assert stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISLNK(mode)
            if stat.S_ISLNK(mode):
                assert Path(os.path.realpath(path)).is_relative_to(target)


@pytest.mark.promise("4.3")
async def test_a_link_is_no_answer_to_a_download(tmp_path: Path) -> None:
    """The target never becomes a link or a device, whatever is allowed besides."""
    for kind, link in ((RecordKind.LINK, "outside"), (RecordKind.OTHER, "")):
        async with staged() as stage:
            stage.guest.answers[5] = encode(TreeRecord(path="", kind=kind, link=link))
            with pytest.raises(CellError, match="broke the protocol"):
                await stage.cell.download("/d", tmp_path / "d", overwrite=True, skip_unsafe=True)
        assert not names(tmp_path)


@pytest.mark.promise("4.3")
async def test_a_bomb_is_bounded(tmp_path: Path) -> None:
    """A file that says it is endless and entries without end stop at what was asked for."""
    endless = encode(TreeRecord(path="f", kind=RecordKind.FILE, size_bytes=1 << 50))
    many = b"".join(encode(TreeRecord(path=str(n), kind=RecordKind.FILE)) for n in range(100))
    for bomb in (endless + b"x" * 4096, many):
        async with staged() as stage:
            stage.guest.answers[5] = encode(TreeRecord(path="", kind=RecordKind.ENTER)) + bomb
            with pytest.raises(CellError, match="broke the protocol"):
                await stage.cell.download("/d", tmp_path / "d", max_files=50, max_bytes=1 << 20)
        assert not names(tmp_path)
