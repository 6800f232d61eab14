"""`belljar ledger`, as a person uses it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.unit.report.stories import FLOW, NAME, RANGE, line, planned, probing

from belljar.capture import body_of
from belljar.cli.main import run as belljar
from belljar.events import Actor, Event, JsonValue, Kind
from belljar.ledger.keys import load_or_make_key
from belljar.ledger.rundir import RunDirectory

HOSTILE = "\x1b]0;owned\x07\u202egnp.exe\n"


@pytest.fixture
def run_dir(home: Path) -> Path:
    content = HOSTILE.encode()
    output = body_of("stdout", content)
    with RunDirectory(home, "exec", ["exec", HOSTILE], what=HOSTILE) as run:
        data: dict[str, JsonValue] = {"op": 1, "path": HOSTILE}
        run.recorder.record(
            Event(kind=Kind.FILE_READ_STARTED, cell_id="cell-a", actor=Actor.HARNESS, data=data)
        )
        done: dict[str, JsonValue] = {"op": 1, "bytes": len(content), HOSTILE: HOSTILE}
        run.recorder.record(
            Event(kind=Kind.FILE_READ_COMPLETED, cell_id="cell-a", data=done, bodies=(output,))
        )
        run.recorder.record(
            Event(kind=Kind.PROTOCOL_VIOLATION, cell_id="cell-b", data={"reason": HOSTILE})
        )
    return run.path


@pytest.mark.promise("5.2")
def test_verify_names_the_bad_line(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A changed line: 1, and `file:line` on the screen and in JSON."""
    content = (run_dir / "ledger.jsonl").read_bytes()
    (run_dir / "ledger.jsonl").write_bytes(content.replace(b"cell-b", b"cell-c"))
    assert belljar(["ledger", "verify", "last"]) == 1
    assert "ledger.jsonl:4: changed" in capsys.readouterr().out
    assert belljar(["ledger", "verify", "last", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["problem"]["where"] == "ledger.jsonl:4"


@pytest.mark.promise("5.2")
def test_strict_needs_a_key_to_compare(
    run_dir: Path,
    home: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Without one nobody says whose word it is: 1 with --strict, and how to give a key."""
    own = load_or_make_key(home).fingerprint
    monkeypatch.setenv("BELLJAR_HOME", str(tmp_path / "elsewhere"))
    assert belljar(["ledger", "verify", str(run_dir), "--strict"]) == 1
    assert "--key" in capsys.readouterr().err
    assert belljar(["ledger", "verify", str(run_dir), "--strict", "--json"]) == 1
    said = json.loads(capsys.readouterr().out)
    assert (said["ok"], said["key_compared_with"], len(said["warnings"])) == (False, None, 1)
    assert belljar(["ledger", "verify", str(run_dir), "--strict", "--key", own]) == 0


@pytest.mark.promise("4.4")
def test_show_escapes_everything(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No byte that a guest chose acts on the terminal, as text, as field names or as JSON."""
    for arguments in ([], ["--json"]):
        assert belljar(["ledger", "show", "last", *arguments]) == 0
        out = capsys.readouterr().out
        assert all(char == "\n" or char.isprintable() for char in out)
        assert len(out.splitlines()) == 5
        assert "owned" in out


def test_show_hides_what_the_probes_tried(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Not what another cell, or the same one later, tried; an empty answer names the total."""
    flow, (begin, end) = line(Kind.NETWORK_FLOW, **FLOW), probing("start")
    name = line(Kind.NETWORK_DNS, **NAME, name="a.example", answer="NXDOMAIN")
    other = line(Kind.NETWORK_FLOW, **FLOW | {"cell": "web"})
    cell = planned("c1", range=RANGE, name="default")
    with RunDirectory(home, "exec", []) as run:
        for each in (cell, begin, flow, name, other, end, flow):
            run.recorder.record(Event(kind=each.kind, cell_id=each.cell, data=each.data))

    def shown(*words: str) -> tuple[int, str]:
        assert belljar(["ledger", "show", "last", *words]) == 0
        said = capsys.readouterr()
        return len(said.out.splitlines()), said.err

    assert shown("--kind", "network") == (
        2,
        "2 events of Belljar's own probes are hidden; add --probes\n",
    )
    assert shown("--kind", "network", "--probes") == shown("--kind", "network", "--json") == (4, "")
    assert shown("--kind", "guard") == (0, "no events of that kind or cell (9 events)\n")


def test_verify_finds_another_run_in_its_place(
    run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A directory renamed to another run's id, by every path; a copy may be of any run."""
    other = run_dir.rename(run_dir.with_name("20000101-000000000-abcdef"))
    monkeypatch.chdir(other)
    for ref in (other.name, str(other), f"{other}/", ".", f"../{other.name}", "./../" + other.name):
        assert belljar(["ledger", "verify", "--strict", ref]) == 1
        assert belljar(["verdict", ref]) == 2
    copy = other.rename(tmp_path / "copy")
    assert belljar(["ledger", "verify", "--strict", str(copy)]) == 0
