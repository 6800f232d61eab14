"""`belljar report`: real Inspect and ledger, fake cells."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from belljar.cli.main import run as belljar
from belljar.ledger.chain import canonical
from belljar.ledger.verification import Status, verify


@pytest.mark.promise("7.7")
def test_a_page_is_beside_the_sealed_run_and_the_same_each_time(
    home: Path, ran: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Outside of the run directory, which verifies; again or from a copy: the same bytes."""
    assert belljar(["report"]) == 0
    page = home / "reports" / f"{ran.name}.html"
    assert str(page) in capsys.readouterr().out
    first = page.read_bytes()
    assert page.stat().st_mode & 0o777 == 0o600
    assert belljar(["report", ran.name[:12]]) == 0
    assert page.read_bytes() == first
    copy = home.parent / "copy" / ran.name
    shutil.copytree(ran, copy)
    assert belljar(["report", str(copy)]) == 0
    assert copy.with_name(f"{ran.name}.html").read_bytes() == first
    assert belljar(["report", "last", "-o", "here.html"]) == 0
    assert Path("here.html").read_bytes() == first
    assert verify(ran).status is Status.VERIFIED
    assert list(home.parent.rglob(".*.html.*")) == []


@pytest.mark.promise("7.7")
def test_a_record_that_was_changed_says_so_in_the_page(home: Path, ran: Path) -> None:
    """A changed, truncated or unknown record is alarm and exit code 1; the page is still made."""
    ledger = ran / "ledger.jsonl"
    whole = ledger.read_bytes()
    assert "does not verify" not in _page(ran, code=0)
    for changed in (whole.replace(b"mockllm", b"mockLLM"), whole[: len(whole) // 2], b"{}\n", b""):
        if changed != whole:
            ledger.write_bytes(changed)
            assert "does not verify" in _page(ran, code=1)
    ledger.write_bytes(whole)
    (home / "keys").rename(home / "other-keys")
    assert "compared with no known key" in _page(ran, code=1)


def _page(ran: Path, *, code: int) -> str:
    target = ran.parent.parent / "page.html"
    assert belljar(["report", ran.name, "-o", str(target)]) == code
    return target.read_text()


def test_a_page_replaces_nothing_but_a_page(
    ran: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Pipes, loops and files of a run are refused and stay; a link's file is written."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "to-pipe").symlink_to("pipe")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "inside").symlink_to(ran / "ledger.jsonl")
    for name in ("pipe", "to-pipe", "loop", "inside", str(ran / "x")):
        capsys.readouterr()
        assert belljar(["report", "last", "-o", str(tmp_path / name)]) == 3, name
        assert "--output" in capsys.readouterr().err
    assert (tmp_path / "pipe").is_fifo()
    assert verify(ran).status is Status.VERIFIED
    (tmp_path / "link").symlink_to("page.html")
    (tmp_path / "page.html").write_text("an older page")
    assert belljar(["report", "last", "-o", str(tmp_path / "link")]) == 0
    assert (tmp_path / "link").is_symlink()
    assert "<!doctype html>" in (tmp_path / "page.html").read_text()


def test_a_tampered_run_directory_gives_a_bounded_page_or_one_error(ran: Path) -> None:
    """Huge files, links, pipes, odd JSON, another ledger: a small page that relies on nothing."""
    plan = json.dumps(
        {
            "policy": {"name": "x"},
            "image": {"name": "x"},
            **dict.fromkeys(("risk", "tier", "emulated")),
            "layers": [dict.fromkeys(("name", "state", "what", "enforced_by"), "x" * 3000)] * 200,
            "warnings": ["w" * 2000] * 1000,
            "network": {"stand_ins": [{"id": "<&>" * 700}] * 1000, "upstreams": [7, {"host": []}]},
            "blast_radius": {
                **dict.fromkeys(("write", "reach", "consume"), "no list"),
                "read": [["<"] * 5000] * 50,
            },
        }
    )
    for number in range(300):
        name = f"{number:012x}"
        (ran / f"policy-{name}.yaml").write_text(name)
        (ran / f"plan-{name}.json").write_text(plan if number < 3 else "[" * 50_000)
    with (ran / "plan-000000000003.json").open("wb") as file:
        file.truncate(20 << 30)
    os.mkfifo(ran / "policy-pipe.yaml")
    (ran / "host.json").unlink(missing_ok=True)
    (ran / "host.json").symlink_to("/dev/zero")
    (ran / "versions.json").write_text(json.dumps({f"v{n}": ["1" * 5000] for n in range(300)}))
    page = _page(ran, code=1)
    assert "does not verify" in page
    assert len(page) < 8 << 20
    assert "… and 9" in page
    assert "w" * 2000 in page
    ledger = [json.loads(each) for each in (ran / "ledger.jsonl").read_bytes().splitlines()]
    names, odd = ("refusal_code", "causes", "counters", "found"), ("x", 7, [7], None)
    for values in (odd, (*odd[2:], *odd[:2])):
        for line in ledger:
            line["data"] |= dict(zip(names, values, strict=True))
        (ran / "ledger.jsonl").write_bytes(b"".join(canonical(each) + b"\n" for each in ledger))
        assert "does not verify" in _page(ran, code=1)
        assert belljar(["verdict", ran.name]) == 2
    (ran / "ledger.jsonl").unlink()
    (ran / "ledger.jsonl").mkdir()
    assert belljar(["report", ran.name]) in (1, 2)
