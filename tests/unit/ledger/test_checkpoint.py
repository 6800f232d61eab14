"""Checkpoints: signed, canonical, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from belljar.ledger.chain import MerkleTree, canonical
from belljar.ledger.keys import load_or_make_key
from belljar.ledger.kinds import SCHEMA_VERSION
from belljar.ledger.schema import make_checkpoint, parse_checkpoint

TIME = "2026-11-20T21:53:46.123456Z"


def _line(home: Path, manifest_sha256: str | None = None) -> bytes:
    tree = MerkleTree().added(b"a").added(b"b")
    key = load_or_make_key(home)
    return make_checkpoint(
        key,
        tree,
        run_id="20261120-1",
        number=3,
        prev="1" * 64,
        time=TIME,
        manifest_sha256=manifest_sha256,
    )


def test_round_trip(home: Path) -> None:
    """What was signed is read back; the final one is marked."""
    plain, final = parse_checkpoint(_line(home)), parse_checkpoint(_line(home, "2" * 64))
    assert (plain.size, plain.number, plain.final, plain.manifest_sha256) == (2, 3, False, None)
    assert (final.final, final.manifest_sha256) == (True, "2" * 64)
    assert plain.key == load_or_make_key(home).fingerprint


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("run_id", "20261120-2"),
        ("number", 4),
        ("prev", "0" * 64),
        ("size", 3),
        ("root", "0" * 64),
        ("time", "2027-11-20T21:53:46.123456Z"),
        ("key", "0" * 64),
        ("public_key", "0" * 64),
        ("final", True),
        ("manifest_sha256", "0" * 64),
        ("signature", "0" * 128),
        ("v", SCHEMA_VERSION + 1),
    ],
)
def test_every_field_is_signed(home: Path, field: str, value: object) -> None:
    """No field can be another without the signature going bad."""
    statement = json.loads(_line(home))
    assert statement[field] != value
    with pytest.raises(ValueError):  # noqa: PT011
        parse_checkpoint(canonical(statement | {field: value}))


@given(st.binary(max_size=300))
def test_hostile_bytes_end_in_value_error(line: bytes) -> None:
    """Anything else is refused, with nothing worse than `ValueError`."""
    with pytest.raises(ValueError):  # noqa: PT011
        parse_checkpoint(line)
