"""`belljar policy`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from belljar.cli.main import run


@pytest.mark.promise("1.1")
def test_wrong_fields_are_listed_at_once_and_then_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """All wrong fields at once; once they are right, missing files and what is in the others."""
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
