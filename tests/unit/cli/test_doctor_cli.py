"""`belljar doctor`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from belljar.cli.doctor import host_checks
from belljar.host.model import (
    CgroupFact,
    CgroupVersion,
    HostFacts,
    IdsFact,
    KvmFact,
    KvmState,
    RuntimeState,
    UsernsFact,
)
from belljar.isolation.trials import find_facts


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty store; the tools' versions are asked for once."""
    return tmp_path_factory.mktemp("doctor") / "store"


@pytest.fixture
def facts(store: Path, monkeypatch: pytest.MonkeyPatch) -> HostFacts:
    """This host's, with a store that is empty."""
    monkeypatch.setenv("BELLJAR_HOME", str(store))
    return find_facts(store)


def states(facts: HostFacts) -> dict[str, str]:
    """What is said of each thing."""
    return {check.what: check.state for check in host_checks(facts)}


def test_lacking_hardware_is_a_note_and_lacking_a_vmm_is_not(facts: HostFacts) -> None:
    """Emulated cells run; without QEMU none do. Each has its hint."""
    good = replace(
        facts,
        arch="x86_64",
        kvm=KvmFact(state=KvmState.PROVEN, proved_for="this"),
        userns=UsernsFact(available=True),
        cgroup=CgroupFact(
            version=CgroupVersion.V2, parents={"cpu": "/c", "memory": "/c", "pids": "/c"}
        ),
        tools=tuple(replace(tool, ok=True, hint="") for tool in facts.tools),
        runtimes=tuple(
            replace(runtime, state=RuntimeState.PROVEN, reason="", hint="")
            for runtime in facts.runtimes
        ),
        ids=IdsFact(available=True),
        kernel_release="6.12.0",
        memory_available_mib=8000,
        disk_free_mib=8000,
    )
    assert set(states(good).values()) == {"ok"}
    refuted = replace(good, kvm=KvmFact(state=KvmState.REFUTED, reason="silent"))
    assert states(refuted)["KVM"] == "note"
    broken = replace(
        good,
        tools=(
            replace(good.tools[0], ok=False, path="", version="", hint="install it"),
            *good.tools[1:],
        ),
    )
    assert [states(broken)[what] for what in ("tier microvm", broken.tools[0].name)] == ["no", "no"]
    assert [states(broken)[f"tier {name}"] for name in ("container", "gvisor")] == ["ok", "ok"]
    assert all(
        check.hint
        for host in (refuted, broken)
        for check in host_checks(host)
        if check.state != "ok"
    )
