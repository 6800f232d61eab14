"""`belljar doctor`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from belljar.cli.doctor import Check, host_checks
from belljar.cli.main import run
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


def test_before_setup_cells_can_not_run_and_the_mend_says_so(
    facts: HostFacts, capsys: pytest.CaptureFixture[str]
) -> None:
    """No guest kernel: exit 3 and `belljar setup`, however good the host."""
    assert run(["doctor", "--no-prove"]) == 3
    text = capsys.readouterr().out
    assert "guest kernel" in text
    assert "hint: run `belljar setup`" in text


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
    silent = replace(
        good.runtimes[0], state=RuntimeState.REFUTED, reason="it said nothing", hint="use another"
    )
    mute = replace(good, runtimes=(silent, *good.runtimes[1:]))
    assert [states(mute)[f"tier {name}"] for name in ("container", "gvisor", "microvm")] == [
        "note",
        "ok",
        "ok",
    ]
    ungiven = replace(good, ids=IdsFact(available=False, reason="no ids", hint="get some"))
    assert (states(ungiven)["ids"], states(ungiven)["tier gvisor"]) == ("note", "note")
    forbidden = replace(good, userns=UsernsFact(available=False, reason="a switch"))
    assert states(forbidden)["user namespaces"] == "no"
    for host in (
        refuted,
        broken,
        forbidden,
        mute,
        ungiven,
        replace(good, cgroup=CgroupFact(version=CgroupVersion.V2, reason="none")),
    ):
        assert all(
            check.hint
            for check in host_checks(host)
            if check.state != "ok" and check.what != "user namespaces"
        )


def test_what_a_range_needs_has_a_line(facts: HostFacts) -> None:
    """Ok where all is there; else a note for each thing that is missing, with its hint: no cell
    without a network lacks it."""

    def ranges(host: HostFacts) -> list[Check]:
        return [check for check in host_checks(host) if check.what == "ranges"]

    assert [check.state for check in ranges(facts)] == ["ok"]
    bare = ranges(replace(facts, tools=(), modules_missing=("dns",), network_namespaces_max=0))
    assert [check.state for check in bare] == ["note"] * 3
    for check, (what, hint) in zip(
        bare,
        [
            ("nft", "install nftables"),
            ("dns", "belljar-sandbox[network,stand-ins]"),
            ("user.max_net_namespaces", "sysctl"),
        ],
        strict=True,
    ):
        assert what in check.detail
        assert hint in check.hint
