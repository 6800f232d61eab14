"""`belljar doctor`."""

from __future__ import annotations

from dataclasses import replace

from tests.fakes.hosts import capable_host

from belljar.cli.doctor import host_checks
from belljar.host.model import HostFacts, KvmFact, KvmState


def states(facts: HostFacts) -> dict[str, str]:
    """What is said of each thing; whatever isn't good has its hint."""
    checks = list(host_checks(facts))
    assert all(check.hint for check in checks if check.state != "ok")
    return {check.what: check.state for check in checks}


def test_lacking_hardware_is_a_note_and_lacking_a_vmm_is_not() -> None:
    """Emulated cells run; without QEMU none do."""
    good = capable_host()
    vmm, *others = (replace(tool, ok=True, hint="") for tool in good.tools)
    good = replace(good, tools=(vmm, *others))
    assert set(states(good).values()) == {"ok"}
    refuted = replace(good, kvm=KvmFact(state=KvmState.REFUTED, reason="silent"))
    assert states(refuted)["KVM"] == "note"
    gone = replace(vmm, ok=False, path="", version="", hint="install it")
    said = states(replace(good, tools=(gone, *others)))
    assert [said[what] for what in ("tier microvm", vmm.name)] == ["no", "no"]
    assert [said[f"tier {name}"] for name in ("container", "gvisor")] == ["ok", "ok"]
