"""KVM is believed only when a guest booted."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import Mock

import pytest

from belljar.host.model import Trial, TrialState
from belljar.host.tools import kvm_fact

KEY = "kernel 6.1"


@pytest.fixture
def device(tmp_path: Path) -> Path:
    """A file that opens, as /dev/kvm does on hosts where no guest ever runs."""
    file = tmp_path / "kvm"
    file.write_text("")
    return file


def test_no_device_is_absent_and_nothing_is_tried(tmp_path: Path) -> None:
    """The reason says what is missing."""
    prove = Mock()
    fact = kvm_fact(tmp_path / "f.json", KEY, prove, device=tmp_path / "absent")
    prove.assert_not_called()
    assert fact.state is TrialState.ABSENT
    assert "does not exist" in fact.reason


@pytest.mark.parametrize(
    ("proof", "state"),
    [(Trial.of(""), TrialState.PROVEN), (Trial.of("silent"), TrialState.REFUTED)],
)
def test_a_proof_is_made_once_for_what_it_holds_for(
    device: Path, tmp_path: Path, proof: Trial, state: TrialState
) -> None:
    """Per kernel, VMM and processor; in doubt a failure is proven again."""
    cache, prove = tmp_path / "facts" / "kvm.json", Mock(return_value=proof)
    facts = [kvm_fact(cache, KEY, prove, device=device) for _ in range(3)]
    assert {(fact.state, fact.reason) for fact in facts} == {(state, proof.reason)}
    prove.assert_called_once()
    assert kvm_fact(cache, KEY, None, device=device).state is state
    other = "kernel 6.2"
    assert kvm_fact(cache, other, None, device=device).state is TrialState.UNPROVEN
    kvm_fact(cache, other, prove, device=device)
    kvm_fact(cache, KEY, prove, doubt=True, device=device)
    assert prove.call_count == (2 if state is TrialState.PROVEN else 3)


@pytest.mark.promise("1.2")
@pytest.mark.parametrize("text", ["", "[]", '{"x": 1}', "\0"])
def test_a_damaged_memory_is_no_proof(device: Path, tmp_path: Path, text: str) -> None:
    """Nor is a device that opens: without a guest that booted it stays unproven."""
    (tmp_path / "f.json").write_text(text)
    assert kvm_fact(tmp_path / "f.json", KEY, None, device=device).state is TrialState.UNPROVEN
