"""`belljar policy`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from belljar.cli.main import run

GOOD = "belljar: 1\nrisk: medium\nresources: {memory: 1GiB}\n"


@pytest.mark.parametrize(
    ("text", "code", "places"),
    [
        (GOOD, 0, []),
        ("belljar: 1\nrisk: hihg\n", 4, [(2, 7, "risk")]),
        ("belljar: 1\nrisk: low\nname: &x a\n", 4, [(3, 7, "name")]),
    ],
)
def test_json_is_one_object(
    text: str,
    code: int,
    places: list[tuple[int, int, str]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """For editors and scripts: the same exit code, the places as numbers."""
    (tmp_path / "p.yaml").write_text(text)
    assert run(["policy", "check", "--json", str(tmp_path / "p.yaml")]) == code
    shown = json.loads(capsys.readouterr().out)
    assert [(p["line"], p["column"], p["field"]) for p in shown["problems"]] == places
    assert shown["ok"] is (code == 0)
    assert (shown["policy"] is None) is (code != 0)


@pytest.mark.promise("1.1")
def test_wrong_fields_are_listed_at_once_and_then_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """All wrong fields in one run of the check; once they are right, missing files and what is in
    those that are there."""
    (tmp_path / "rec").mkdir()
    (tmp_path / "rec/a.har").write_text("no json")
    file = tmp_path / "p.yaml"
    text = (
        "belljar: 1\nrisk: low\nresources: {memory: 512MiB}\n"
        "files: [{source: absent, target: /x}]\nnetwork:\n  stand_ins:\n"
        "    site: {kind: har, names: [a.example], recording: rec/a.har}\n"
    )
    wrong = text.replace("512MiB", "512M").replace("/x", "/proc/x").replace("har, names", "htpp, n")
    for written, places in (
        (
            wrong,
            [(3, "resources.memory"), (4, "files[0].target"), (7, "network.stand_ins.site.kind")],
        ),
        (text, [(4, "files[0].source"), (7, "network.stand_ins.site.recording")]),
    ):
        file.write_text(written)
        assert run(["policy", "check", "--json", str(file)]) == 4
        found = json.loads(capsys.readouterr().out)["problems"]
        assert [(each["line"], each["field"]) for each in found] == places
        assert run(["policy", "check", str(file)]) == 4
        told = capsys.readouterr().err
        assert all(
            f"{file}:{each['line']}:{each['column']}: {each['field']}: " in told for each in found
        )


@pytest.mark.promise("1.1")
def test_a_presets_name_is_no_missing_file(capsys: pytest.CaptureFixture[str]) -> None:
    """It names the command that shows it."""
    assert run(["policy", "check", "high"]) == 4
    assert "`belljar policy show high`" in capsys.readouterr().err
