"""Proofs of single events, checked by another implementation and against forgery."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from pymerkle.proof import InclusionProof  # type: ignore[import-untyped]

from belljar.cell.parts import start_run
from belljar.cli.ledger import ledger
from belljar.errors import LedgerError
from belljar.events import Event, Kind
from belljar.ledger.chain import MerkleTree, leaf_hash
from belljar.ledger.proof import _path, check_proof, prove
from belljar.ledger.schema import parse_checkpoint


@pytest.mark.promise("7.7")
@given(st.integers(1, 200), st.data())
def test_a_path_leads_to_the_root(size: int, data: st.DataObject) -> None:
    """pymerkle computes the same root from the path of any leaf of a tree of any size."""
    index = data.draw(st.integers(0, size - 1))
    entries = [str(number).encode() for number in range(size)]
    tree = MerkleTree()
    for entry in entries:
        tree = tree.added(entry)
    steps = _path([leaf_hash(entry) for entry in entries], index)
    rule = [0 if side == "right" else 1 for side, _ in steps]
    path = [leaf_hash(entries[index]), *(digest for _, digest in steps)]
    proof = InclusionProof("sha256", True, size, index, [*rule, 0], path)
    if steps:
        assert proof.compute_root() == tree.root()
    else:
        assert path == [tree.root()]


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """A sealed run with seven numbered events."""
    with start_run("exec", "test", ["test"], home=tmp_path) as run:
        for number in range(7):
            data = {"reason": f"number {number}"}
            run.recorder.record(Event(kind=Kind.PROTOCOL_VIOLATION, data=data))
    return tmp_path / "runs" / run.run_id


@pytest.mark.promise("7.7")
def test_a_proof_holds_and_a_changed_one_is_refused(run_dir: Path) -> None:
    """The event, its run and the key come out of it. Another event, place, path, root or shape is
    refused, each with a LedgerError."""
    proof: dict[str, Any] = prove(run_dir, 4)
    event, run_id, key = check_proof(proof)
    checkpoint = parse_checkpoint(proof["checkpoint"].encode())
    assert event.data == {"reason": "number 3"}
    assert (run_id, key) == (checkpoint.run_id, checkpoint.key)
    first, *others = proof["path"]
    changes: list[dict[str, Any]] = [
        {"event": proof["event"].replace("number 3", "number 9")},
        {"seq": proof["seq"] + 1},
        {"seq": 10**9},
        {"path": others},
        {"path": [first, *others, first]},
        {"path": [{**first, "hash": "0" * 64}, *others]},
        {"checkpoint": proof["checkpoint"].replace('"size":', '"size":1')},
        {"checkpoint": "{}"},
        {"path": "x"},
    ]
    for changed in (*({**proof, **change} for change in changes), []):
        with pytest.raises(LedgerError):
            check_proof(changed)


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("checkpoints.jsonl", b'"number"', b'"numbxr"'),
        ("checkpoints.jsonl", b'{"final', b"{final"),
        ("ledger.jsonl", b"number 3", b"number \xff"),
    ],
)
def test_a_hostile_record_gives_no_proof(run_dir: Path, name: str, old: bytes, new: bytes) -> None:
    """Neither a proof that fails elsewhere nor another error than the ledger's."""
    (run_dir / name).write_bytes((run_dir / name).read_bytes().replace(old, new))
    with pytest.raises(LedgerError):
        prove(run_dir, 4)


@pytest.mark.promise("7.7")
def test_the_commands_prove_and_check(
    run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A proof passes with the known key alone: not with another, not changed, not beyond the end."""
    monkeypatch.setenv("BELLJAR_HOME", str(tmp_path))
    runner = CliRunner()
    proved = runner.invoke(ledger, ["prove", str(run_dir), "4"])

    def check(text: str, *words: str) -> object:
        done = runner.invoke(ledger, ["check", *words, "-"], input=text, standalone_mode=False)
        assert (done.return_value == 0) is ("number 3" in done.stdout)
        return done.return_value

    assert check(proved.stdout) == 0
    assert check(proved.stdout, "--key", "1" * 64) == 1
    assert check(proved.stdout.replace("number 3", "number 9")) == 1
    assert isinstance(runner.invoke(ledger, ["prove", str(run_dir), "999"]).exception, LedgerError)
