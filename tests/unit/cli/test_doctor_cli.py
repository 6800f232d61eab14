"""`belljar doctor`."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from belljar.cli.doctor import host_checks
from belljar.cli.main import run
from belljar.host import CgroupFact, CgroupVersion, HostFacts, KvmFact, KvmState, UsernsFact, gather_facts


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty store; the tools' versions are asked for once."""
    return tmp_path_factory.mktemp("doctor") / "store"


@pytest.fixture
def facts(store: Path, monkeypatch: pytest.MonkeyPatch) -> HostFacts:
    """This host's, with a store that is empty."""
    monkeypatch.setenv("BELLJAR_HOME", str(store))
    return gather_facts(store)


def states(facts: HostFacts) -> dict[str, str]:
    """What is said of each thing."""
    return {check.what: check.state for check in host_checks(facts)}


def test_before_setup_cells_can_not_run_and_the_mend_says_so(
    facts: HostFacts, capsys: pytest.CaptureFixture[str]
) -> None:
    """No guest kernel: exit 3 and `belljar setup`, however good the host."""
    assert run(["doctor", "--no-prove"]) == 3
    text = capsys.readouterr().out
    assert "guest kernel" in text
    assert "→ run `belljar setup`" in text


def test_without_a_kernel_nothing_can_be_proven_and_that_is_no_crash(
    facts: HostFacts, capsys: pytest.CaptureFixture[str]
) -> None:
    """A proof that can't be tried leaves KVM unproven (or absent), with the reason."""
    assert run(["doctor", "--json", "--prove-again"]) == 3
    shown = json.loads(capsys.readouterr().out)
    assert shown["ready"] is False
    assert shown["facts"]["kvm"]["state"] in {"unproven", "absent"}
    assert HostFacts.from_json(shown["facts"]).kernel_release == facts.kernel_release
    assert {check["state"] for check in shown["checks"]} <= {"ok", "note", "no"}


def test_lacking_hardware_is_a_note_and_lacking_a_vmm_is_not(facts: HostFacts) -> None:
    """Emulated cells run; without QEMU none do. Each has its mend."""
    good = replace(
        facts,
        arch="x86_64",
        kvm=KvmFact(state=KvmState.PROVEN, proved_for="this"),
        userns=UsernsFact(available=True),
        cgroup=CgroupFact(version=CgroupVersion.V2, parents={"cpu": "/c", "memory": "/c", "pids": "/c"}),
        tools=tuple(replace(tool, ok=True, mend="") for tool in facts.tools),
        memory_available_mib=8000,
        disk_free_mib=8000,
    )
    assert set(states(good).values()) == {"ok"}
    refuted = replace(good, kvm=KvmFact(state=KvmState.REFUTED, reason="silent"))
    assert states(refuted)["KVM"] == "note"
    broken = replace(
        good, tools=(replace(good.tools[0], ok=False, path="", version="", mend="install it"), *good.tools[1:])
    )
    assert [states(broken)[what] for what in ("microVM tier", broken.tools[0].name)] == ["no", "no"]
    forbidden = replace(good, userns=UsernsFact(available=False, reason="a switch"))
    assert states(forbidden)["user namespaces"] == "no"
    for host in (refuted, broken, forbidden, replace(good, cgroup=CgroupFact(version=CgroupVersion.V2, reason="none"))):
        assert all(check.mend for check in host_checks(host) if check.state != "ok" and check.what != "user namespaces")


def test_scarce_memory_and_disk_are_noted(facts: HostFacts) -> None:
    """Before they end a run."""
    scarce = states(replace(facts, memory_available_mib=100, disk_free_mib=100))
    assert (scarce["memory"], scarce["disk"]) == ("note", "note")
