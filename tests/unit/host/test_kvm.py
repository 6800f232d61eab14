"""KVM is believed only when a guest booted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from belljar.errors import HostError
from belljar.host.model import Trial, TrialState
from belljar.host.runtimes import kvm_fact

KEY = "kernel 6.1"


@pytest.fixture
def device(tmp_path: Path) -> Path:
    """A file that opens, as /dev/kvm does on hosts where no guest ever runs."""
    file = tmp_path / "kvm"
    file.write_text("")
    return file


def prover(answers: list[Trial | HostError]) -> Callable[[], Trial]:
    """Says what it is told to, and uses it up."""

    def prove() -> Trial:
        answer = answers.pop(0)
        if isinstance(answer, HostError):
            raise answer
        return answer

    return prove


def test_no_device_is_absent_and_nothing_is_tried(tmp_path: Path) -> None:
    """The reason says what is missing."""
    fact = kvm_fact(tmp_path / "f.json", KEY, prover([]), device=tmp_path / "absent")
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
    cache, left = tmp_path / "facts" / "kvm.json", list[Trial | HostError]([proof] * 3)
    prove = prover(left)
    facts = [kvm_fact(cache, KEY, prove, device=device) for _ in range(3)]
    assert {(fact.state, fact.reason) for fact in facts} == {(state, proof.reason)}
    assert len(left) == 2
    assert kvm_fact(cache, KEY, None, device=device).state is state
    other = "kernel 6.2"
    assert kvm_fact(cache, other, None, device=device).state is TrialState.UNPROVEN
    kvm_fact(cache, other, prove, device=device)
    kvm_fact(cache, KEY, prove, doubt=True, device=device)
    assert len(left) == (state is TrialState.PROVEN)


@pytest.mark.promise("1.2")
@pytest.mark.parametrize("text", ["", "[]", '{"x": 1}', "\0"])
def test_a_damaged_memory_is_no_proof(device: Path, tmp_path: Path, text: str) -> None:
    """Nor is a device that opens: without a guest that booted it stays unproven."""
    (tmp_path / "f.json").write_text(text)
    assert kvm_fact(tmp_path / "f.json", KEY, None, device=device).state is TrialState.UNPROVEN
