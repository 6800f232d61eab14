"""Bodies: what their owner says of them is checked, and they are stored once."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from belljar.events import Body
from belljar.ledger.chain import sha256_hex
from belljar.ledger.files import body_path
from belljar.ledger.writer import BodyStore, prepare_body

from .conftest import body


@given(st.binary(max_size=50), st.integers(0, 50))
def test_the_ref_tells_what_was_kept_and_what_there_was(content: bytes, dropped: int) -> None:
    """Truncation is always declared; the stored digest is named exactly when it is not the
    whole's."""
    ref = prepare_body(body("stdout", content, dropped=dropped)).ref
    assert ref["total_bytes"] - ref["kept_bytes"] == dropped
    assert ("stored_sha256" in ref) == bool(dropped and content)


def test_a_digest_that_nobody_has() -> None:
    """When the host did not see all of it, the whole's digest is null; when it did, ours is filled
    in."""
    assert (
        prepare_body(Body(name="x", content=b"1", total_bytes=9, sha256="")).ref["sha256"] is None
    )
    assert prepare_body(Body(name="x", content=b"1", total_bytes=1, sha256="")).ref[
        "sha256"
    ] == sha256_hex(b"1")


@pytest.mark.parametrize("name", ["", "A", "../x", "a/b", "x" * 65, ".x", "x\n", "é"])
def test_names_are_plain(name: str) -> None:
    """A body's name can't be a path, or hide."""
    with pytest.raises(ValueError, match="not a body's name"):
        prepare_body(body(name, b""))


def test_stored_once(tmp_path: Path) -> None:
    """Equal bytes: one file, 0600, no remains; empty ones: none."""
    store = BodyStore(tmp_path)
    for content in (b"one", b"one", b"two", b""):
        store.keep(prepare_body(body("x", content)))
    files = sorted(path for path in tmp_path.rglob("*") if path.is_file())
    assert files == sorted(
        tmp_path / body_path(sha256_hex(content)) for content in (b"one", b"two")
    )
    assert {path.stat().st_mode & 0o777 for path in files} == {0o600}
    assert (len(store), store.bytes) == (2, 6)
    store.sync(store.take_unsynced())
    assert store.take_unsynced() == []
