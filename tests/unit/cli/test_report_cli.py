"""`belljar report`: real Inspect and ledger, fake cells."""

from __future__ import annotations

import resource
import shutil
from pathlib import Path

import pytest
from tests.fakes.cell import RecordedCells
from tests.unit.cli.test_verdict_cli import TASK

from belljar.cli.main import run as belljar
from belljar.cli.report import report_of_run
from belljar.events import Event, Kind
from belljar.harness.evaluate import RunRequest, run_evaluation
from belljar.ledger import create_run, verify
from belljar.ledger.verification import Status


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store of the test's own, a task, and the directory in which it is run."""
    monkeypatch.setenv("BELLJAR_HOME", str(tmp_path / "home"))
    (tmp_path / "task.py").write_text(TASK)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "home"


def evaluated(home: Path) -> Path:
    """A sealed run of two samples."""
    words = ["task.py", "--model", "mockllm/model", "--max-samples", "1", "--no-fail-on-error"]
    request = RunRequest(inspect_args=words, quiet=True, home=home, source=RecordedCells())
    return run_evaluation(request).path


def test_a_page_is_beside_the_sealed_run_and_the_same_each_time(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The page is written outside of the run directory, which still verifies; making it again, or
    from a copy elsewhere, gives the same bytes."""
    path = evaluated(home)
    assert belljar(["report"]) == 0
    page = home / "reports" / f"{path.name}.html"
    assert str(page) in capsys.readouterr().out
    first = page.read_bytes()
    assert page.stat().st_mode & 0o777 == 0o600
    assert belljar(["report", path.name[:12]]) == 0
    assert page.read_bytes() == first
    copy = home.parent / "copy" / path.name
    shutil.copytree(path, copy)
    assert belljar(["report", str(copy)]) == 0
    assert copy.with_name(f"{path.name}.html").read_bytes() == first
    assert belljar(["report", "last", "-o", "here.html"]) == 0
    assert Path("here.html").read_bytes() == first
    assert verify(path).status is Status.VERIFIED
    assert list(home.parent.rglob(".*.html.*")) == []


def test_a_record_that_was_changed_says_so_in_the_page(home: Path) -> None:
    """A changed, truncated or unknown record is alarm and exit code 1; the page is still made."""
    path = evaluated(home)
    ledger = path / "ledger.jsonl"
    whole = ledger.read_bytes()
    assert "does not verify" not in _page(path, code=0)
    for changed in (whole.replace(b"mockllm", b"mockLLM"), whole[: len(whole) // 2], b"{}\n", b""):
        if changed != whole:
            ledger.write_bytes(changed)
            assert "does not verify" in _page(path, code=1)
    ledger.write_bytes(whole)
    (path / "plan.json").write_text("[" * 100_000)
    assert "does not verify" in _page(path, code=1)
    (path / "plan.json").unlink()
    (home / "keys").rename(home / "other-keys")
    assert "compared with no known key" in _page(path, code=1)


def _page(path: Path, *, code: int) -> str:
    target = path.parent.parent / "page.html"
    assert belljar(["report", path.name, "-o", str(target)]) == code
    return target.read_text()


def test_a_running_run_has_a_page_that_says_so(home: Path) -> None:
    """While its writer lives, the page is of what is on record so far."""
    with create_run(home, "run", ["belljar", "run"]) as run:
        run.recorder.record(Event(kind=Kind.CONTROL_STARTED, data={"control": "x"}))
        assert "still running" in _page(run.path, code=0)
    assert "still running" not in _page(run.path, code=0)


def test_what_can_not_be_read_or_written_is_one_error(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No such run is wrong usage; no room, or no such directory, is this host's; an older page
    stays as it was."""
    assert belljar(["report"]) == 2
    path = evaluated(home)
    assert belljar(["report", "no-such-run"]) == 2
    assert belljar(["report", "last", "-o", "no/such/page.html"]) == 3
    assert belljar(["report"]) == 0
    page = home / "reports" / f"{path.name}.html"
    before = page.read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    capsys.readouterr()
    resource.setrlimit(resource.RLIMIT_FSIZE, (1024, hard))
    try:
        code = belljar(["report"])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert code == 3
    assert "--output" in capsys.readouterr().err
    assert page.read_bytes() == before
    assert [each.name for each in page.parent.iterdir()] == [page.name]


def test_a_run_whose_page_can_not_be_written_ends_as_it_would(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """At the end of a run a page that can't be written is told, and no page is named."""
    path = evaluated(home)
    (home / "reports").write_text("a file in its place")
    assert report_of_run(path) is None
    assert f"belljar report {path.name}" in capsys.readouterr().err
    (home / "reports").unlink()
    assert report_of_run(path) == home / "reports" / f"{path.name}.html"
