"""A cell's file operations on record: before they begin, and when their outcome is known."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest
from tests.fakes.vm import staged

from belljar.cell.guarded import REDACTED, GuardedRecorder
from belljar.cell.local_tree import TreeManifest, list_source, records_of
from belljar.channel import FileTooLargeError
from belljar.channel.trees import RecordKind, TreeRecord, encode
from belljar.events import Kind
from belljar.policy.guarding import Action, GuardRules, Place
from belljar.signals.values import KnownValue, ValueSource

pytestmark = [pytest.mark.anyio, pytest.mark.thorough_in("trio")]
WALK = 5
LEAVE = encode(TreeRecord(path="", kind=RecordKind.LEAVE))
FILE = encode(TreeRecord(path="f", kind=RecordKind.FILE, mode=0o4755, size_bytes=3))
ENTER = encode(TreeRecord(path="", kind=RecordKind.ENTER, mode=0o755))


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.promise("5.3")
async def test_an_upload_is_on_record(tmp_path: Path) -> None:
    """With each file's digest; its contents reach the guest and not the record."""
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "f").write_text("secret")
    async with staged() as stage:
        done = await stage.cell.upload(tmp_path / "d", "/srv/d")
        assert stage.kinds() == [Kind.FILES_STARTED, Kind.FILES_COMPLETED]
        assert stage.guest.put.endswith(b"secret")
        (body,) = stage.last(Kind.FILES_COMPLETED).bodies
        lines = [json.loads(line) for line in body.content.splitlines()]
        assert [line["path"] for line in lines] == ["", "f"]
        assert b"secret" not in body.content
        assert (body.sha256, done.sha256) == (done.sha256, lines and body.sha256)
        assert stage.last(Kind.FILES_COMPLETED).data["sha256"] == done.sha256


@pytest.mark.promise("5.3")
async def test_a_download_is_on_record(tmp_path: Path) -> None:
    """With its counts; a failed one leaves nothing, and says why."""
    async with staged() as stage:
        stage.guest.answers[WALK] = ENTER + FILE + b"abc" + LEAVE
        await stage.cell.download("/d", tmp_path / "d")
        data = stage.last(Kind.FILES_COMPLETED).data
        assert (data["entries"], data["files"], data["bytes"]) == (2, 1, 3)
        stage.guest.errors[WALK] = errno.EACCES
        with pytest.raises(PermissionError):
            await stage.cell.download("/d", tmp_path / "e")
        assert stage.last(Kind.FILES_FAILED).data["errno"] == errno.EACCES
        assert names(tmp_path) == ["d"]
        assert stage.kinds()[-1] is Kind.FILES_FAILED


async def test_what_the_guard_redacts_stays_in_the_cell(tmp_path: Path) -> None:
    """In a file that is read, and in one of a tree."""
    secret, rules = b"protected-value-1", GuardRules(actions={Place.OUTPUT: Action.REDACT})
    value = KnownValue(id="v", text=secret.decode(), source=ValueSource.DECOY)
    size = len(secret)
    file = encode(TreeRecord(path="f", kind=RecordKind.FILE, mode=0o644, size_bytes=size))
    async with staged() as stage:
        guard = GuardedRecorder(stage.recorder, rules, bytes(32), [value])
        stage.cell._recorder, stage.cell.guard, stage.cell._redacts = guard, guard, True
        stage.guest.answers[WALK] = ENTER + file + secret + LEAVE
        await stage.cell.download("/d", tmp_path / "d")
        assert (tmp_path / "d" / "f").read_bytes() == REDACTED
        await stage.cell.write_file("/f", secret)
        assert await stage.cell.read_file("/f") == REDACTED


async def test_names_that_would_remove_everything_are_refused() -> None:
    """Before the guest hears of them."""
    async with staged() as stage:
        for path in ("/", "//", ".", "a/..", "", "./"):
            with pytest.raises(ValueError, match="removed"):
                await stage.cell.remove(path)
        assert not stage.guest.started_order


def test_what_is_sent_is_bounded_and_stays_inside(tmp_path: Path) -> None:
    """Before anything is read: too many, too large, a link out, a pipe."""
    (tree := tmp_path / "tree").mkdir()
    (tree / "f").write_text("four")
    (tree / "z").write_text("last")
    (tree / "l").symlink_to("z")
    with pytest.raises(ValueError, match="more than 2"):
        list_source(tree, max_files=2, max_bytes=100)
    with pytest.raises(FileTooLargeError):
        list_source(tree, max_files=100, max_bytes=7)
    source = list_source(tree, max_files=100, max_bytes=100)
    for text in ("", "much more than it was"):
        (tree / "z").write_text(text)
        with pytest.raises(ValueError, match="z has changed its size"):
            list(records_of(source, "", TreeManifest()))
    (tree / "l").unlink()
    (tree / "l").symlink_to("/etc/passwd")
    with pytest.raises(ValueError, match="leads out"):
        list_source(tree, max_files=100, max_bytes=100)
    (tree / "l").unlink()
    os.mkfifo(tree / "l")
    with pytest.raises(ValueError, match="not a regular file"):
        list_source(tree, max_files=100, max_bytes=100)
