"""`belljar policy`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from belljar.cli.main import run
from belljar.policy.load import load_policy
from belljar.policy.loaded import PRESETS
from belljar.policy.model import policy_schema

GOOD = "belljar: 1\nrisk: medium\nresources: {memory: 1GiB}\n"


def test_a_good_policy_is_ok(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit 0, and what it amounts to in a line."""
    (tmp_path / "good.yaml").write_text(GOOD)
    assert run(["policy", "check", str(tmp_path / "good.yaml")]) == 0
    assert "risk medium, tier gvisor or stronger" in capsys.readouterr().out


def test_a_bad_policy_exits_4_with_all_that_is_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """On standard error, each with its place, nothing of a traceback, every byte escaped."""
    file = tmp_path / "bad.yaml"
    file.write_text('belljar: 1\nrisk: hihg\n"\\e[2J": 1\n')
    assert run(["policy", "check", str(file)]) == 4
    told = capsys.readouterr()
    assert told.out == ""
    assert [
        f"{file}:2:7: risk:" in told.err,
        f"{file}:3:1:" in told.err,
        "did you mean `high`?" in told.err,
    ] == [True] * 3
    assert "\x1b" not in told.err


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


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_a_missing_file_is_one_clear_message(
    options: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit 4 either way."""
    assert run(["policy", "check", *options, str(tmp_path / "absent.yaml")]) == 4
    told = capsys.readouterr()
    assert "no such file" in told.out + told.err


def test_the_schema_is_json(capsys: pytest.CaptureFixture[str]) -> None:
    """And the one the library gives."""
    assert run(["policy", "schema"]) == 0
    assert json.loads(capsys.readouterr().out) == policy_schema()


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_shown_as_a_file_to_begin_from(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is printed checks."""
    assert run(["policy", "show", name]) == 0
    (tmp_path / "copy.yaml").write_text(capsys.readouterr().out)
    assert load_policy(tmp_path / "copy.yaml").policy.risk.value == name


def test_an_unknown_preset_is_refused_with_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    """Exit 4."""
    assert run(["policy", "show", "hihg"]) == 4
    assert "did you mean `high`?" in capsys.readouterr().err


def test_a_network_is_told_with_what_is_real(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """How many stand-ins, and every real host by name."""
    (tmp_path / "net.yaml").write_text(
        "belljar: 1\nrisk: low\nnetwork:\n  sink: true\n  stand_ins: {mail: {kind: smtp, names:"
        " [mail.example]}}\n  upstreams: [{host: real.example, ports: [443], methods: [GET],"
        " budget: 1MiB, reason: it is needed}]\n"
    )
    assert run(["policy", "check", str(tmp_path / "net.yaml")]) == 0
    told = capsys.readouterr().out
    assert "network: 1 stand-in(s), REAL hosts: real.example" in told


@pytest.mark.parametrize("command", [["policy", "check"], ["plan", "--no-prove"]])
def test_stand_ins_files_are_looked_at(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Here and in `plan`, before anything is made: the policy's place and the file's, exit 4."""
    (tmp_path / "rec").mkdir()
    (tmp_path / "rec/a.har").write_text('{"log":\n  ]')
    file = tmp_path / "p.yaml"
    file.write_text(
        "belljar: 1\nrisk: low\nnetwork:\n  stand_ins:\n"
        "    site: {kind: har, names: [a.example], recording: rec/a.har}\n"
    )
    assert run([*command, str(file)]) == 4
    assert (
        f"{file}:5:54: network.stand_ins.site.recording: rec/a.har:2:3: not JSON"
        in capsys.readouterr().err
    )
    if command[0] == "policy":
        assert run([*command, "--json", str(file)]) == 4
        (problem,) = json.loads(capsys.readouterr().out)["problems"]
        assert (problem["line"], problem["column"], problem["field"]) == (
            5,
            54,
            "network.stand_ins.site.recording",
        )
