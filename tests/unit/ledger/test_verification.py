"""Every way of tampering with a run is found, and the first bad line or file is named."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from belljar.ledger.chain import canonical, sha256_hex
from belljar.ledger.files import digests_of
from belljar.ledger.keys import load_or_make_key
from belljar.ledger.rundir import RunDirectory
from belljar.ledger.verification import Status, verify

from .conftest import exec_events, make_run, record_signed

Tamper = Callable[[Path], object]
Lines = Callable[[list[bytes]], list[bytes]]
LEDGER_LINES = 12


def edited(name: str, change: Lines) -> Tamper:
    """Tampering with a file of lines: the change gets them without their newlines, from 0."""

    def tamper(run: Path) -> None:
        lines = (run / name).read_bytes().split(b"\n")[:-1]
        (run / name).write_bytes(b"".join(line + b"\n" for line in change(lines)))

    return tamper


def cut(name: str) -> Tamper:
    return lambda run: os.truncate(run / name, (run / name).stat().st_size - 5)


def changed(lines: list[bytes], index: int, old: bytes, new: bytes) -> list[bytes]:
    assert old in lines[index]
    return [*lines[:index], lines[index].replace(old, new), *lines[index + 1 :]]


def rechained(lines: list[bytes], index: int) -> list[bytes]:
    """One line changed and every `prev` made right again: only the signature can tell."""
    lines = changed(lines, index, b'"cell":"c1"', b'"cell":"c2"')
    for later in range(index + 1, len(lines)):
        line = json.loads(lines[later])
        lines[later] = canonical(line | {"prev": sha256_hex(lines[later - 1])})
    return lines


# The line that is named, and a word of what is said of it.
EVENTS: dict[str, tuple[Lines, int, str]] = {
    "changed": (lambda x: changed(x, 4, b'"cell":"c1"', b'"cell":"c2"'), 5, "changed"),
    "first changed": (lambda x: changed(x, 0, b'"x"', b'"y"'), 1, "changed"),
    "last changed": (lambda x: changed(x, 11, b"completed", b"failed"), LEDGER_LINES, "signed"),
    "changed and rechained": (lambda x: rechained(x, 4), 5, "signed"),
    "removed": (lambda x: x[:4] + x[5:], 5, "removed"),
    "first removed": (lambda x: x[1:], 1, "removed"),
    "added": (lambda x: [*x[:5], x[4], *x[5:]], 6, "added"),
    "added at the end": (lambda x: [*x, x[-1]], LEDGER_LINES + 1, "added"),
    "reordered": (lambda x: [*x[:4], x[5], x[4], *x[6:]], 5, "moved"),
    "cut off": (lambda x: x[:7], 8, "cut off"),
    "emptied": (lambda _: [], 1, "cut off"),
    "a huge line": (lambda _: [b"x" * (2 << 20)], 1, "longer than"),
}
CHECKPOINTS: dict[str, tuple[Lines, int, str]] = {
    "changed": (lambda x: changed(x, 1, b'"time":"2', b'"time":"3'), 2, "signature"),
    "removed": (lambda x: x[:1] + x[2:], 2, "removed"),
    "first removed": (lambda x: x[1:], 1, "removed"),
    "added": (lambda x: [x[0], x[0], *x[1:]], 2, "added"),
    "reordered": (lambda x: [x[0], x[2], x[1], *x[3:]], 2, "moved"),
    "cut off": (lambda x: x[:2], 3, "cut off"),
}


def removed(name: str) -> Tamper:
    return lambda run: (run / name).unlink()


def written(name: str, content: bytes = b"") -> Tamper:
    return lambda run: (run / name).write_bytes(content)


def first_body(run: Path) -> Path:
    line = json.loads((run / "ledger.jsonl").read_bytes().split(b"\n")[2])
    digest = str(line["bodies"][0]["sha256"])
    return run / "bodies" / digest[:2] / digest


def to_body(change: Callable[[Path], object]) -> Tamper:
    return lambda run: change(first_body(run))


def added(spell: Callable[[str], str], content: bytes = b"anything") -> Tamper:
    def tamper(run: Path) -> None:
        name = spell(first_body(run).name)
        (run / "bodies" / name[:2]).mkdir(exist_ok=True)
        (run / "bodies" / name[:2] / name).write_bytes(content)

    return tamper


def put_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def link_away(path: Path) -> None:
    outside = path.parents[3] / "outside"
    path.rename(outside)
    path.symlink_to(outside)


LINE, POINTS, LAST = "ledger.jsonl:3", "checkpoints.jsonl", f"ledger.jsonl:{LEDGER_LINES}"
FILES: dict[str, tuple[Tamper, str, str]] = {
    "ledger cut within a line": (cut("ledger.jsonl"), LAST, "cut off"),
    "ledger removed": (removed("ledger.jsonl"), "ledger.jsonl", "missing"),
    "the ledger a link": (lambda run: link_away(run / "ledger.jsonl"), "ledger.jsonl", "link"),
    "the final checkpoint removed": (edited(POINTS, lambda x: x[:-1]), POINTS, "cut off"),
    "a second final checkpoint": (edited(POINTS, lambda x: [*x, x[-1]]), POINTS, "after the run's"),
    "checkpoints cut within a line": (cut(POINTS), POINTS, "cut off"),
    "checkpoints removed": (removed(POINTS), POINTS, "missing"),
    "body changed": (to_body(lambda path: path.write_bytes(b"outpux 1")), LINE, "changed"),
    "body cut off": (to_body(lambda path: os.truncate(path, 3)), LINE, "changed"),
    "body removed": (to_body(Path.unlink), LINE, "missing"),
    "file added among bodies": (written("bodies/extra"), "bodies/extra", "added"),
    "body added": (added(lambda _: sha256_hex(b"new"), b"new"), "bodies/", "added"),
    "body added in capitals": (added(str.upper), "bodies/", "added"),
    "body added with a blank": (added(lambda at: f"{at[:4]} {at[4:]}"), "bodies/", "added"),
    "body a link to the same bytes": (to_body(link_away), LINE, "link"),
    "a linked folder": (to_body(lambda path: link_away(path.parent)), LINE, "link"),
    "a pipe": (to_body(put_pipe), LINE, "plain file"),
    "policy changed": (written("policy.yaml", b"belljar: 2\n"), "policy.yaml", "changed"),
    "policy removed": (removed("policy.yaml"), "policy.yaml", "missing"),
    "log changed": (written("inspect/log.eval", b"log2"), "inspect/log.eval", "changed"),
    "file added": (written("inspect/more"), "inspect/more", "added"),
    "manifest changed": (edited("manifest.json", lambda x: [x[0] + b" "]), "manifest", "changed"),
    "manifest removed": (removed("manifest.json"), "manifest.json", "missing"),
    "a device's name": (written("a\x1b]0;x\x07"), "a\\x1b", "name"),
}
TAMPERS = FILES | {
    f"{name}: {how}": (edited(name, change), f"{name}:{line}", what)
    for name, rows in (("ledger.jsonl", EVENTS), ("checkpoints.jsonl", CHECKPOINTS))
    for how, (change, line, what) in rows.items()
}


@pytest.mark.promise("5.2")
@pytest.mark.parametrize(("tamper", "where", "what"), TAMPERS.values(), ids=TAMPERS.keys())
def test_tampering_is_found(finished: Path, tamper: Tamper, where: str, what: str) -> None:
    """Changed, removed, added, reordered or cut off: it is found, and its line or file named."""
    assert verify(finished).status is Status.VERIFIED
    tamper(finished)
    result = verify(finished)
    assert result.problem is not None
    assert not result.ok()
    assert result.problem.where.startswith(where)
    assert what in result.problem.what


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run that each example leaves as it was."""
    return make_run(tmp_path_factory.mktemp("shared") / "store")


@pytest.mark.promise("5.2")
@settings(max_examples=150)
@given(data=st.data())
def test_any_flipped_byte_of_any_file_is_found(shared: Path, data: st.DataObject) -> None:
    """There is no byte in a finished run directory that can be changed unnoticed."""
    files = sorted(path for path in shared.rglob("*") if path.is_file())
    path = data.draw(st.sampled_from(files))
    flipped = bytearray(content := path.read_bytes())
    flipped[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
    path.write_bytes(flipped)
    try:
        assert verify(shared).status is Status.BAD
    finally:
        path.write_bytes(content)


def test_an_untouched_run_is_verified_anywhere(finished: Path, tmp_path: Path) -> None:
    """Offline: a copy elsewhere, without the store and its key, verifies."""
    key, copy = load_or_make_key(finished.parents[1]).fingerprint, tmp_path / "copy"
    shutil.move(finished, copy)
    result = verify(copy)
    assert (result.status, result.problem, result.warnings) == (Status.VERIFIED, None, ())
    assert (result.key, result.key_checked, result.run_id) == (key, False, finished.name)
    assert (result.events, result.signed_events) == (LEDGER_LINES, LEDGER_LINES)
    assert verify(copy, expected_key=key, expected_run=finished.name).key_checked
    (copy / "manifest.json").rename(copy / "manifest.json.new")
    result = verify(copy)
    assert (result.status, result.problem) == (Status.VERIFIED, None)
    assert "manifest.json.new" in result.warnings[0]


@pytest.mark.promise("5.2")
def test_a_forgery_with_another_key_is_found_only_against_a_known_key(
    finished: Path, tmp_path: Path
) -> None:
    """A whole ledger made anew verifies by itself, and not against the expected key."""
    known = load_or_make_key(finished.parents[1]).fingerprint
    forged = make_run(tmp_path / "forger")
    assert verify(forged).status is Status.VERIFIED
    result = verify(forged, expected_key=known)
    assert result.problem is not None
    assert result.problem.where == "checkpoints.jsonl:1"
    assert known in result.problem.what


def test_another_genuine_run_in_its_place_is_found(home: Path) -> None:
    """A run found under a name must be the run of that name, and no part of it another's."""
    first, second = make_run(home), make_run(home)
    shutil.copy(second / "checkpoints.jsonl", first / "checkpoints.jsonl")
    assert verify(first).status is Status.BAD
    shutil.rmtree(first)
    second.rename(first)
    assert verify(first).status is Status.VERIFIED
    result = verify(first, expected_run=first.name)
    assert result.problem is not None
    assert second.name in result.problem.what


def test_a_crashed_run_verifies_to_its_last_event_and_says_so(home: Path, tmp_path: Path) -> None:
    """Unfinished: no problem, but a warning that counts the unsigned events."""
    crashed = tmp_path / "crashed"  # a copy after 4 signed events and one more
    with (
        patch("belljar.ledger.writer.CHECKPOINT_INTERVAL_S", 0.001),
        RunDirectory(home, "exec", []) as run,
    ):
        record_signed(run, [*exec_events(1), exec_events(2)[0]])
        shutil.copytree(run.path, crashed)
        run.recorder.record(exec_events(2)[1])
        shutil.copy(run.path / "ledger.jsonl", crashed)
        shutil.copytree(run.path / "bodies", crashed / "bodies", dirs_exist_ok=True)
        running = verify(run.path)
        assert running.status is Status.UNFINISHED
        assert "still being written" in running.warnings[-1]
    result = verify(crashed)
    assert (result.status, result.problem) == (Status.UNFINISHED, None)
    assert (result.events, result.signed_events) == (5, 4)
    assert "1 of 5 events are not signed" in result.warnings[-1]
    assert (result.ok(), result.ok(strict=True)) == (True, False)
    os.truncate(crashed / "ledger.jsonl", (crashed / "ledger.jsonl").stat().st_size - 20)
    result = verify(crashed)
    assert (result.status, result.events) == (Status.UNFINISHED, 4)
    assert "ledger.jsonl:5 is incomplete" in result.warnings[0]
    edited("ledger.jsonl", lambda lines: lines[:3])(crashed)
    result = verify(crashed)
    assert result.problem is not None
    assert result.problem.where == "ledger.jsonl:4"


@pytest.mark.parametrize("path", ["/etc/passwd", "../../../etc/passwd", "x" * 5000])
def test_paths_in_a_forged_manifest_open_nothing(
    home: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """The manifest's paths are compared with what is there, never opened."""
    with RunDirectory(home, "exec", []) as run:
        forged = {path: {"sha256": "0" * 64, "bytes": 1}}
        monkeypatch.setattr(
            "belljar.ledger.rundir.digests_of", lambda run_dir: digests_of(run_dir) | forged
        )
    result = verify(run.path)
    assert result.problem is not None
    assert result.problem.where == path
    assert result.problem.what.startswith("missing")
