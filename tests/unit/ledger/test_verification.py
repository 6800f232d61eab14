"""Every way of tampering with a run is found, and the first bad line or file is named."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from belljar.ledger.chain import MerkleTree, canonical, sha256_hex
from belljar.ledger.files import digests_of
from belljar.ledger.keys import load_or_make_key
from belljar.ledger.rundir import create_run
from belljar.ledger.schema import make_checkpoint
from belljar.ledger.verification import Status, verify

from .conftest import exec_events, make_run, record_signed

Tamper = Callable[[Path], None]


def edit_lines(name: str, change: Callable[[list[bytes]], list[bytes]]) -> Tamper:
    """Tampering with a file of lines: the change gets them without their newlines, counted from
    0."""

    def tamper(run: Path) -> None:
        lines = (run / name).read_bytes().split(b"\n")[:-1]
        (run / name).write_bytes(b"".join(line + b"\n" for line in change(lines)))

    return tamper


def swapped(lines: list[bytes], first: int, second: int) -> list[bytes]:
    """Two lines in each other's place."""
    lines[first], lines[second] = lines[second], lines[first]
    return lines


def changed(lines: list[bytes], index: int, old: bytes, new: bytes) -> list[bytes]:
    """One line with other bytes that still parse."""
    assert old in lines[index]
    lines[index] = lines[index].replace(old, new)
    return lines


def rechained(lines: list[bytes], index: int) -> list[bytes]:
    """A change to one line, after which every `prev` is made right again: only the signature can
    tell."""
    lines = changed(lines, index, b'"cell":"c1"', b'"cell":"c2"')
    for later in range(index + 1, len(lines)):
        line = json.loads(lines[later])
        lines[later] = canonical(line | {"prev": sha256_hex(lines[later - 1])})
    return lines


def first_body(run: Path) -> Path:
    """The body that the first completed command names: stdout."""
    line = json.loads((run / "ledger.jsonl").read_bytes().split(b"\n")[2])
    digest = str(line["bodies"][0]["sha256"])
    return run / "bodies" / digest[:2] / digest


LEDGER_LINES = 12
EVENTS = {
    "changed": (
        edit_lines("ledger.jsonl", lambda x: changed(x, 4, b'"cell":"c1"', b'"cell":"c2"')),
        "ledger.jsonl:5",
        "changed",
    ),
    "changed, not json": (
        edit_lines("ledger.jsonl", lambda x: [*x[:4], b"{", *x[5:]]),
        "ledger.jsonl:5",
        "not an event",
    ),
    "changed spelling": (
        edit_lines("ledger.jsonl", lambda x: changed(x, 4, b'"cell":', b'"cell": ')),
        "ledger.jsonl:5",
        "canonical",
    ),
    "first changed": (
        edit_lines("ledger.jsonl", lambda x: changed(x, 0, b'"x"', b'"y"')),
        "ledger.jsonl:1",
        "changed",
    ),
    "last changed": (
        edit_lines("ledger.jsonl", lambda x: changed(x, -1, b"completed", b"failed")),
        f"ledger.jsonl:{LEDGER_LINES}",
        "signed",
    ),
    "changed and rechained": (
        edit_lines("ledger.jsonl", lambda x: rechained(x, 4)),
        "ledger.jsonl:5",
        "signed",
    ),
    "removed": (edit_lines("ledger.jsonl", lambda x: x[:4] + x[5:]), "ledger.jsonl:5", "removed"),
    "first removed": (edit_lines("ledger.jsonl", lambda x: x[1:]), "ledger.jsonl:1", "removed"),
    "added": (
        edit_lines("ledger.jsonl", lambda x: [*x[:5], x[4], *x[5:]]),
        "ledger.jsonl:6",
        "added",
    ),
    "added at the end": (
        edit_lines("ledger.jsonl", lambda x: [*x, x[-1]]),
        f"ledger.jsonl:{LEDGER_LINES + 1}",
        "added",
    ),
    "reordered": (
        edit_lines("ledger.jsonl", lambda x: swapped(x, 4, 5)),
        "ledger.jsonl:5",
        "moved",
    ),
    "cut off": (edit_lines("ledger.jsonl", lambda x: x[:7]), "ledger.jsonl:8", "cut off"),
    "last removed": (
        edit_lines("ledger.jsonl", lambda x: x[:-1]),
        f"ledger.jsonl:{LEDGER_LINES}",
        "cut off",
    ),
    "cut within a line": (
        lambda run: os.truncate(run / "ledger.jsonl", (run / "ledger.jsonl").stat().st_size - 5),
        f"ledger.jsonl:{LEDGER_LINES}",
        "cut off",
    ),
    "emptied": (lambda run: os.truncate(run / "ledger.jsonl", 0), "ledger.jsonl:1", "cut off"),
    "file removed": (lambda run: (run / "ledger.jsonl").unlink(), "ledger.jsonl", "missing"),
    "a huge line": (
        lambda run: (run / "ledger.jsonl").write_bytes(b"x" * (2 << 20)),
        "ledger.jsonl:1",
        "longer than",
    ),
}
CHECKPOINTS = {
    "changed": (
        edit_lines("checkpoints.jsonl", lambda x: changed(x, 1, b'"size"', b'"sizf"')),
        "checkpoints.jsonl:2",
        "",
    ),
    "changed time": (
        edit_lines(
            "checkpoints.jsonl", lambda x: [x[0], x[1].replace(b'"time":"2', b'"time":"3'), *x[2:]]
        ),
        "checkpoints.jsonl:2",
        "signature",
    ),
    "removed": (
        edit_lines("checkpoints.jsonl", lambda x: x[:1] + x[2:]),
        "checkpoints.jsonl:2",
        "removed",
    ),
    "first removed": (
        edit_lines("checkpoints.jsonl", lambda x: x[1:]),
        "checkpoints.jsonl:1",
        "removed",
    ),
    "added": (
        edit_lines("checkpoints.jsonl", lambda x: [x[0], x[0], *x[1:]]),
        "checkpoints.jsonl:2",
        "added",
    ),
    "reordered": (
        edit_lines("checkpoints.jsonl", lambda x: swapped(x, 1, 2)),
        "checkpoints.jsonl:2",
        "moved",
    ),
    "final removed": (
        edit_lines("checkpoints.jsonl", lambda x: x[:-1]),
        "checkpoints.jsonl",
        "cut off",
    ),
    "cut off": (edit_lines("checkpoints.jsonl", lambda x: x[:2]), "checkpoints.jsonl:3", "cut off"),
    "cut within a line": (
        lambda run: os.truncate(
            run / "checkpoints.jsonl", (run / "checkpoints.jsonl").stat().st_size - 5
        ),
        "checkpoints.jsonl",
        "cut off",
    ),
    "added at the end": (
        edit_lines("checkpoints.jsonl", lambda x: [*x, x[-1]]),
        "checkpoints.jsonl",
        "after the run's final",
    ),
    "file removed": (
        lambda run: (run / "checkpoints.jsonl").unlink(),
        "checkpoints.jsonl",
        "missing",
    ),
}
BODIES = {
    "changed": (lambda run: first_body(run).write_bytes(b"outpux 1"), "ledger.jsonl:3", "changed"),
    "cut off": (lambda run: os.truncate(first_body(run), 3), "ledger.jsonl:3", "changed"),
    "removed": (lambda run: first_body(run).unlink(), "ledger.jsonl:3", "missing"),
    "added": (lambda run: (run / "bodies" / "extra").write_bytes(b""), "bodies/extra", "added"),
    "another added": (lambda run: add_body(run, b"new"), "bodies/", "added"),
    "a link to the same bytes": (lambda run: link_away(first_body(run)), "ledger.jsonl:3", "link"),
    "a linked folder": (lambda run: link_away(first_body(run).parent), "ledger.jsonl:3", "link"),
    "a pipe": (lambda run: put_pipe(first_body(run)), "ledger.jsonl:3", "plain file"),
}
FILES = {
    "policy changed": (
        lambda run: (run / "policy.yaml").write_text("belljar: 2\n"),
        "policy.yaml",
        "changed",
    ),
    "policy removed": (lambda run: (run / "policy.yaml").unlink(), "policy.yaml", "missing"),
    "log changed": (
        lambda run: (run / "inspect" / "log.eval").write_bytes(b"log2"),
        "inspect/log.eval",
        "changed",
    ),
    "file added": (
        lambda run: (run / "inspect" / "more").write_bytes(b""),
        "inspect/more",
        "added",
    ),
    "manifest changed": (
        edit_lines("manifest.json", lambda x: [x[0] + b" "]),
        "manifest.json",
        "changed",
    ),
    "manifest removed": (lambda run: (run / "manifest.json").unlink(), "manifest.json", "missing"),
    "a link": (lambda run: link_away(run / "policy.yaml"), "policy.yaml", "link"),
    "the ledger a link": (lambda run: link_away(run / "ledger.jsonl"), "ledger.jsonl", "link"),
    "a device's name": (lambda run: (run / "a\x1b]0;x\x07").write_bytes(b""), "a\\x1b", "name"),
}


def add_body(run: Path, content: bytes) -> None:
    """A body that is what its name says, but that no event names."""
    digest = hashlib.sha256(content).hexdigest()
    (run / "bodies" / digest[:2]).mkdir(exist_ok=True)
    (run / "bodies" / digest[:2] / digest).write_bytes(content)


def put_pipe(path: Path) -> None:
    """A pipe in a file's place: opening it must not make us wait."""
    path.unlink()
    os.mkfifo(path)


def link_away(path: Path) -> None:
    """Move it out of the run and put a symlink to it in its place: the same bytes, but changeable
    from elsewhere."""
    outside = path.parents[3] / "outside"
    path.rename(outside)
    path.symlink_to(outside)


TAMPERS = {
    f"{of}: {name}": tamper
    for of, tampers in (
        ("event", EVENTS),
        ("checkpoint", CHECKPOINTS),
        ("body", BODIES),
        ("file", FILES),
    )
    for name, tamper in tampers.items()
}


@pytest.mark.promise("5.2")
@pytest.mark.parametrize(("tamper", "where", "what"), TAMPERS.values(), ids=TAMPERS.keys())
def test_tampering_is_found(finished: Path, tamper: Tamper, where: str, what: str) -> None:
    """Changed, removed, added, reordered or cut off: it is found, and its line or file named.

    Events and checkpoints are chained and signed, and the last checkpoint is marked; a body is
    named by a line, and every other file by the manifest, whose digest the last checkpoint has. No
    link is followed.
    """
    assert verify(finished).status is Status.VERIFIED
    tamper(finished)
    with pytest.MonkeyPatch.context() as patch:
        for _ in range(2):
            result = verify(finished)
            assert result.problem is not None
            assert not result.ok()
            assert result.problem.where.startswith(where)
            assert what in result.problem.what
            # As on a system that opens nothing beneath a directory (Windows).
            patch.setattr(os, "supports_dir_fd", set())


@pytest.mark.promise("5.2")
@settings(max_examples=150)
@given(data=st.data())
def test_any_flipped_byte_of_any_file_is_found(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """There is no byte in a finished run directory that can be changed unnoticed."""
    run = _shared_run(tmp_path_factory)
    files = sorted(path for path in run.rglob("*") if path.is_file())
    path = data.draw(st.sampled_from(files))
    content = path.read_bytes()
    index = data.draw(st.integers(0, len(content) - 1))
    flipped = bytearray(content)
    flipped[index] ^= data.draw(st.integers(1, 255))
    path.write_bytes(flipped)
    try:
        assert verify(run).status is Status.BAD
    finally:
        path.write_bytes(content)


_RUNS: list[Path] = []


def _shared_run(factory: pytest.TempPathFactory) -> Path:
    if not _RUNS:
        _RUNS.append(make_run(factory.mktemp("shared") / "store"))
    return _RUNS[0]


def test_an_untouched_run_is_verified_anywhere(finished: Path, tmp_path: Path) -> None:
    """Offline: a copy elsewhere, without the store and its key, verifies; whose key it was is
    told."""
    key = load_or_make_key(finished.parents[1]).fingerprint
    shutil.move(finished, tmp_path / "copy")
    result = verify(tmp_path / "copy")
    assert (result.status, result.problem, result.warnings) == (Status.VERIFIED, None, ())
    assert (result.key, result.key_checked, result.run_id) == (key, False, finished.name)
    assert (result.events, result.signed_events) == (LEDGER_LINES, LEDGER_LINES)
    assert verify(tmp_path / "copy", expected_key=key, expected_run=finished.name).key_checked


@pytest.mark.promise("5.2")
def test_a_forgery_with_another_key_is_found_only_against_a_known_key(
    finished: Path, tmp_path: Path
) -> None:
    """Said honestly: a whole ledger made anew verifies by itself; against the expected key it does
    not."""
    known = load_or_make_key(finished.parents[1]).fingerprint
    forged = make_run(tmp_path / "forger")
    assert verify(forged).status is Status.VERIFIED
    result = verify(forged, expected_key=known)
    assert result.problem is not None
    assert result.problem.where == "checkpoints.jsonl:1"
    assert known in result.problem.what


def test_another_genuine_run_in_its_place_is_found(home: Path) -> None:
    """A run found under a name must be the run of that name."""
    first, second = make_run(home), make_run(home)
    shutil.rmtree(first)
    second.rename(first)
    assert verify(first).status is Status.VERIFIED
    result = verify(first, expected_run=first.name)
    assert result.problem is not None
    assert second.name in result.problem.what


def test_checkpoints_of_another_run_do_not_fit(home: Path) -> None:
    """The same key's checkpoints of another run are refused."""
    first, second = make_run(home), make_run(home)
    shutil.copy(second / "checkpoints.jsonl", first / "checkpoints.jsonl")
    assert verify(first).status is Status.BAD


def test_a_key_that_is_not_its_fingerprint_is_refused(finished: Path) -> None:
    """A checkpoint that names one key and is signed by another is no checkpoint."""
    other = load_or_make_key(finished.parents[1] / "other")
    line = json.loads(
        make_checkpoint(
            other,
            MerkleTree(),
            run_id="x",
            number=0,
            prev="0" * 64,
            time="2026-11-20T21:53:46.123456Z",
        )
    )
    line["key"] = load_or_make_key(finished.parents[1]).fingerprint
    (finished / "checkpoints.jsonl").write_bytes(canonical(line) + b"\n")
    result = verify(finished)
    assert result.problem is not None
    assert "fingerprint" in result.problem.what


def _crashed(home: Path, tmp_path: Path) -> Path:
    """What is left of a run whose process died after 4 signed events and one more: a copy taken
    while it is written."""
    with create_run(home, "exec", [], checkpoint_interval_s=0.001) as run:
        record_signed(run, [*exec_events(1), exec_events(2)[0]])
        shutil.copytree(run.path, tmp_path / "crashed")
        run.recorder.record(exec_events(2)[1])
        shutil.copy(run.path / "ledger.jsonl", tmp_path / "crashed")
        shutil.copytree(run.path / "bodies", tmp_path / "crashed" / "bodies", dirs_exist_ok=True)
    return tmp_path / "crashed"


def test_a_crashed_run_verifies_to_its_last_event_and_says_so(home: Path, tmp_path: Path) -> None:
    """Unfinished: no problem, but a warning that counts the unsigned events; strictly, a
    failure."""
    result = verify(_crashed(home, tmp_path))
    assert (result.status, result.problem) == (Status.UNFINISHED, None)
    assert (result.events, result.signed_events) == (5, 4)
    assert "1 of 5 events are not signed" in result.warnings[-1]
    assert result.ok()
    assert not result.ok(strict=True)


def test_a_half_written_line_of_a_crashed_run_is_recognised(home: Path, tmp_path: Path) -> None:
    """The event that was being written is reported as lost, not as tampering."""
    crashed = _crashed(home, tmp_path)
    os.truncate(crashed / "ledger.jsonl", (crashed / "ledger.jsonl").stat().st_size - 20)
    result = verify(crashed)
    assert (result.status, result.events) == (Status.UNFINISHED, 4)
    assert "ledger.jsonl:5 is incomplete" in result.warnings[0]


def test_a_crashed_run_is_still_checked(home: Path, tmp_path: Path) -> None:
    """Cut back into what was signed, it is bad, however it ended."""
    crashed = _crashed(home, tmp_path)
    edit_lines("ledger.jsonl", lambda lines: lines[:3])(crashed)
    result = verify(crashed)
    assert result.problem is not None
    assert result.problem.where == "ledger.jsonl:4"


def test_a_running_run_verifies(home: Path) -> None:
    """While it is written: unfinished, and said to be alive."""
    with create_run(home, "exec", [], checkpoint_interval_s=0.001) as run:
        record_signed(run, exec_events(1))
        result = verify(run.path)
        assert result.status is Status.UNFINISHED
        assert "still being written" in result.warnings[-1]


def test_a_crash_before_the_last_rename_is_complete(finished: Path) -> None:
    """The manifest under its first name, with the digest that the final checkpoint names, is the
    manifest."""
    (finished / "manifest.json").rename(finished / "manifest.json.new")
    result = verify(finished)
    assert (result.status, result.problem) == (Status.VERIFIED, None)
    assert "manifest.json.new" in result.warnings[0]


def test_what_is_not_a_run_directory(tmp_path: Path) -> None:
    """A missing directory is the caller's error; an empty one is a bad run."""
    with pytest.raises(FileNotFoundError):
        verify(tmp_path / "nowhere")
    result = verify(tmp_path)
    assert str(result.problem) == "ledger.jsonl: missing"


@pytest.mark.parametrize("path", ["/etc/passwd", "../../../etc/passwd", "x" * 5000])
def test_paths_in_a_forged_manifest_open_nothing(
    home: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """The manifest's paths are compared with what is there, never opened."""
    with create_run(home, "exec", []) as run:
        forged = {path: {"sha256": "0" * 64, "bytes": 1}}
        monkeypatch.setattr(
            "belljar.ledger.rundir.digests_of",
            lambda run_dir, **options: digests_of(run_dir, **options) | forged,
        )
    result = verify(run.path)
    assert result.problem is not None
    assert result.problem.where == path
    assert result.problem.what.startswith("missing")
