"""OCI runtimes: which there are, and whether they work."""

from __future__ import annotations

import os
import time
from pathlib import Path
from unittest.mock import Mock, patch

import pytest

from belljar.errors import HostError
from belljar.host import tools
from belljar.host.model import RuntimeFact, Trial, TrialState
from belljar.host.tools import ProveRuntime, own_programs, parse_version, runtime_facts

REFUTED = TrialState.REFUTED


def program(directory: Path, name: str, says: str) -> Path:
    """A program that says its version, and leaves a line for each time."""
    file = directory / name
    file.write_text(f"#!/bin/sh\necho asked >> {directory}/asked\necho '{says}'\n")
    file.chmod(0o755)
    return file


def facts(
    home: Path, runtime: Path, *, prove: ProveRuntime | None = None, doubt: bool = False
) -> RuntimeFact:
    def of_the_container_tier(runtime: RuntimeFact) -> Trial:
        return prove(runtime) if prove and runtime.tier == "container" else Trial.of("")

    with patch.dict(os.environ, PATH=str(runtime.parent)):
        found = runtime_facts(
            home / "facts" / "runtimes.json",
            kernel_release="6.12",
            prove=of_the_container_tier if prove else None,
            doubt=doubt,
        )
    assert [fact.tier for fact in found] == ["container", "gvisor"]
    return found[0]


@pytest.mark.parametrize(
    ("kind", "text", "version"),
    [
        ("runc", "runc version 1.1.5+ds1\ncommit: 1.1.5+ds1-1\nspec: 1.0.2-dev", "1.1.5"),
        ("runsc", "runsc version release-20250101.0\nspec: 1.1.0", "20250101"),
        ("runsc", "runsc version VERSION_MISSING", ""),
        ("runc", "ls (GNU coreutils) 9.1", ""),
    ],
)
def test_versions_as_the_runtimes_say_them(kind: str, text: str, version: str) -> None:
    """gVisor's is a day."""
    assert parse_version(kind, text) == version


@pytest.mark.promise("1.3")
def test_a_proof_is_remembered_until_the_program_changes(tmp_path: Path) -> None:
    """It and the version are asked for once; another file of that name is another runtime."""
    file, prove = program(tmp_path, "runc", "runc version 1.1.5"), Mock(return_value=Trial.of(""))
    assert facts(tmp_path, file).state is TrialState.UNPROVEN
    assert facts(tmp_path, file, prove=prove).state is TrialState.PROVEN
    assert facts(tmp_path, file).state is TrialState.PROVEN
    assert facts(tmp_path, file, prove=prove).state is TrialState.PROVEN
    prove.assert_called_once()
    assert prove.call_args.args[0].version == "1.1.5"
    assert (tmp_path / "asked").read_text() == "asked\n"
    program(tmp_path, "runc", "runc version 1.2.0, another")
    fact = facts(tmp_path, file)
    assert (fact.state, fact.version) == (TrialState.UNPROVEN, "1.2.0")


def test_a_failure_is_believed_for_a_short_while_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fixed without a trace in any file, it is tried again."""
    file, now_s = program(tmp_path, "runc", "runc version 1.1.5"), 1000.0
    monkeypatch.setattr(time, "time", lambda: now_s)
    prove = Mock(side_effect=[*[Trial.of("silent", "use another")] * 2, Trial.of("")])
    first = facts(tmp_path, file, prove=prove)
    assert (first.state, first.reason, first.hint) == (REFUTED, "silent", "use another")
    now_s += tools.REFUTED_FOR_S - 1
    assert (facts(tmp_path, file, prove=prove).state, prove.call_count) == (REFUTED, 1)
    now_s += 1
    assert (facts(tmp_path, file).state, prove.call_count) == (REFUTED, 1)
    assert (facts(tmp_path, file, prove=prove).state, prove.call_count) == (REFUTED, 2)
    now_s -= 500
    for _ in range(2):
        fact = facts(tmp_path, file, prove=prove, doubt=True)
        assert (fact.state, prove.call_count) == (TrialState.PROVEN, 3)


@pytest.mark.promise("1.3")
def test_another_build_of_ours_is_another_proof(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The launcher and the guest agent are half of what is tried."""
    file, build = program(tmp_path, "runc", "runc version 1.1.5"), "one"
    monkeypatch.setattr(tools, "own_programs", lambda *names: f"{names} {build}")
    assert facts(tmp_path, file, prove=lambda _: Trial.of("")).state is TrialState.PROVEN
    build = "two"
    assert facts(tmp_path, file).state is TrialState.UNPROVEN
    fewer = {own_programs("agent"), own_programs("jail"), own_programs()}
    assert own_programs("agent", "jail") not in fewer


def test_what_could_not_be_tried_is_not_refuted(tmp_path: Path) -> None:
    """Nor remembered: the next time it may."""
    prove = Mock(side_effect=HostError("no room", hint="free some"))
    fact = facts(tmp_path, program(tmp_path, "runc", "runc version 1.1.5"), prove=prove)
    assert (fact.state, fact.hint) == (TrialState.UNPROVEN, "free some")
    assert "no room" in fact.reason
