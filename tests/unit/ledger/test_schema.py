"""The schema of lines, of each kind's data, and of checkpoints."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from belljar.events import Kind
from belljar.ledger.chain import MerkleTree, canonical
from belljar.ledger.keys import load_or_make_key
from belljar.ledger.kinds import DATA, SCHEMA_VERSION
from belljar.ledger.schema import make_checkpoint, parse_checkpoint
from belljar.ledger.verification import parse_line, row

LINE = {
    "v": SCHEMA_VERSION,
    "seq": 0,
    "prev": "0" * 64,
    "time": "2026-11-20T21:53:46.123456Z",
    "mono_ns": "1",
    "kind": "protocol.violation",
    "cell": None,
    "actor": "belljar",
    "trust": "host-observed",
    "data": {"reason": "x"},
    "bodies": [],
}


@pytest.mark.promise("5.2")
def test_every_kind_is_documented(pytestconfig: pytest.Config) -> None:
    """Each has a shape, and a row in `docs/events.md` with each required field in bold."""
    assert set(DATA) == set(Kind)
    text = (pytestconfig.rootpath / "docs" / "events.md").read_text()
    rows = {line.split("`")[1]: line for line in text.splitlines() if line.startswith("| `")}
    for kind, shape in DATA.items():
        required = [name for name in shape if not name.endswith("?")]
        assert all(f"**{name}**" in rows[kind.value] for name in required), kind


def test_what_is_read_can_be_copied_and_shown() -> None:
    """The deepest line that is read is no deeper than its readers go, wherever they are called."""
    deep = b"[" * 98 + b"]" * 98
    text = canonical(LINE | {"data": {"reason": "x", "more": "?"}}).replace(b'"?"', deep)
    event = parse_line(text)
    assert canonical(event.to_json()) == text
    assert "[[[" in row(event)


BODY = {"name": "x", "sha256": "0" * 64, "kept_bytes": 1, "total_bytes": 1}
WRONG: dict[str, list[object]] = {
    "v": [SCHEMA_VERSION + 1, True],
    "seq": [-1, "0", True],
    "prev": ["0" * 63, "A" * 64, "0" * 64 + "\n"],
    "time": [
        *("2026-11-20T21:53:46Z", "٢٠٢٦-11-20T21:53:46.123456Z", "2026-02-30T21:53:46.123456Z"),
        "2026-11-20T21:61:46.123456Z",
    ],
    "mono_ns": [1, "٣"],
    "kind": ["exec.imagined"],
    "actor": ["nobody"],
    "trust": ["sure"],
    "data": [[], {}],
    "cell": ["c" * 200],
    "bodies": [
        [BODY | wrong]
        for wrong in (
            *({"name": "../x"}, {"sha256": "../" + "0" * 61}, {"kept_bytes": -1}),
            {"stored_sha256?": "0" * 64},  # as the schema writes an optional field
        )
    ],
    "extra": [1],
}


@pytest.mark.promise("5.2")
@pytest.mark.parametrize("field", WRONG)
def test_a_wrong_or_missing_field_is_refused(field: str) -> None:
    """Each field of a line has one type and shape, and none is optional."""
    parse_line(canonical(LINE))
    for value in WRONG[field]:
        with pytest.raises(ValueError):  # noqa: PT011
            parse_line(canonical(LINE | {field: value}))
    if field in LINE:
        with pytest.raises(ValueError, match=field):
            parse_line(canonical({name: value for name, value in LINE.items() if name != field}))


SIGNED: dict[str, object] = {
    "run_id": "20261120-2",
    "number": 4,
    "size": 3,
    "time": "2027-11-20T21:53:46.123456Z",
    "final": True,
    "signature": "0" * 128,
    "v": SCHEMA_VERSION + 1,
} | dict.fromkeys(("prev", "root", "key", "public_key", "manifest_sha256"), "0" * 64)


@pytest.mark.promise("5.2")
def test_every_field_of_a_checkpoint_is_signed(home: Path) -> None:
    """What was signed is read back; no field can be another without the signature going bad."""
    about = {"run_id": "20261120-1", "number": 3, "prev": "1" * 64, "time": str(LINE["time"])}
    key, tree = load_or_make_key(home), MerkleTree().added(b"a").added(b"b")
    raw = make_checkpoint(key, tree, **about)  # type: ignore[arg-type]
    assert (parse_checkpoint(raw).size, parse_checkpoint(raw).final) == (2, False)
    assert parse_checkpoint(make_checkpoint(key, tree, **about, manifest_sha256="2" * 64)).final  # type: ignore[arg-type]
    statement = json.loads(raw)
    for field, value in SIGNED.items():
        assert statement[field] != value
        with pytest.raises(ValueError):  # noqa: PT011
            parse_checkpoint(canonical(statement | {field: value}))


@given(
    st.binary(max_size=300)
    | st.fixed_dictionaries({k: st.just(v) | st.text() for k, v in LINE.items()}).map(
        lambda d: json.dumps(d).encode()
    )
)
def test_hostile_lines_end_in_value_error(raw: bytes) -> None:
    """Whatever the bytes: an event or `ValueError`, and never a checkpoint."""
    with suppress(ValueError):
        parse_line(raw)
    with pytest.raises(ValueError):  # noqa: PT011
        parse_checkpoint(raw)
