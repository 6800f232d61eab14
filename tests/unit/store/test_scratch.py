"""Scratch directories of the store."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from belljar.process import this_process
from belljar.store import scratch
from belljar.store.scratch import MAKING, owned_dir, owned_name, remove_tree, scratch_dir, sweep

LEVELS = 3_000


@pytest.mark.promise("1.8")
def test_a_tree_of_any_depth_is_removed(tmp_path: Path) -> None:
    """A build step can make more levels than Python has frames or a process descriptors."""
    top = tmp_path / "top"
    top.mkdir()
    at = os.open(top, os.O_RDONLY)
    for _ in range(LEVELS):
        os.mkdir("level", dir_fd=at)
        deeper = os.open("level", os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = deeper
    os.close(at)
    remove_tree(top)
    assert not top.exists()


def test_scratch_of_the_dead_is_swept_and_of_the_living_kept(tmp_path: Path) -> None:
    """Only a directory whose owner is gone, or whose pid is another process's now, is removed."""
    with scratch_dir(tmp_path) as mine:
        parent = mine.parent
        reused = parent / f"{os.getpid()}-{this_process().start_ticks + 1}-abc"
        (reused / "inner/deep").mkdir(parents=True)
        (reused / "inner").chmod(0)
        (parent / "notes").mkdir()
        assert sweep(parent) == [reused]
        assert not reused.exists()
        assert mine.is_dir()
    assert [path.name for path in parent.iterdir()] == ["notes"]


def test_the_living_are_kept_by_a_sweep_that_does_not_see_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In another PID namespace every owner looks dead: there the lock alone keeps its draft."""
    monkeypatch.setattr(scratch, "is_alive", lambda _process: False)
    with owned_dir(tmp_path, prefix=MAKING) as draft:
        killed = draft.with_name(owned_name(MAKING, "killed"))
        killed.mkdir()
        assert sweep(tmp_path, prefix=MAKING) == [killed]
        assert draft.is_dir()
    assert list(tmp_path.iterdir()) == []


def test_a_draft_that_is_locked_after_a_sweep_found_it_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sweep of another PID namespace may list it before its lock: it looks again."""
    with owned_dir(tmp_path) as draft:
        monkeypatch.setattr(scratch, "orphans", lambda *_, **__: [draft])
        assert sweep(tmp_path) == []
        assert draft.is_dir()


def test_a_lack_of_descriptors_makes_no_owner_dead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What can't be looked up is no orphan: the sweep fails and removes nothing."""
    mine = tmp_path / owned_name(what="mine")
    mine.mkdir()

    def none_left(path: Path, *_args: object, **_options: object) -> str:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), str(path))

    monkeypatch.setattr(Path, "read_text", none_left)
    monkeypatch.setattr(Path, "read_bytes", none_left)
    with pytest.raises(OSError, match="open files"):
        sweep(tmp_path)
    assert mine.is_dir()
