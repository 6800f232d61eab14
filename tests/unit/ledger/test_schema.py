"""The schema of lines and of each kind's data."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from belljar.events import Kind
from belljar.ledger.chain import canonical
from belljar.ledger.kinds import DATA, SCHEMA_VERSION, Optional
from belljar.ledger.schema import check_data
from belljar.ledger.verification import parse_line

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


def test_every_kind_has_a_schema() -> None:
    """No event kind is without a model of its data."""
    assert set(DATA) == set(Kind)


@pytest.mark.promise("5.2")
def test_every_kind_is_documented(pytestconfig: pytest.Config) -> None:
    """`docs/events.md` has a row for each kind, with each required field in bold."""
    text = (pytestconfig.rootpath / "docs" / "events.md").read_text()
    rows = {line.split("`")[1]: line for line in text.splitlines() if line.startswith("| `")}
    for kind, shape in DATA.items():
        required = [name for name, check in shape.items() if not isinstance(check, Optional)]
        assert all(f"**{name}**" in rows[kind.value] for name in required), kind


def test_a_line_is_read() -> None:
    """The example line parses."""
    assert parse_line(canonical(LINE)).kind is Kind.PROTOCOL_VIOLATION


@pytest.mark.promise("5.2")
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("v", SCHEMA_VERSION + 1),
        ("v", True),
        ("seq", -1),
        ("seq", "0"),
        ("prev", "0" * 63),
        ("prev", "A" * 64),
        ("prev", "0" * 64 + "\n"),
        ("time", "2026-11-20T21:53:46Z"),
        ("time", "٢٠٢٦-11-20T21:53:46.123456Z"),
        ("mono_ns", 1),
        ("mono_ns", "٣"),
        ("kind", "exec.imagined"),
        ("actor", "nobody"),
        ("trust", "sure"),
        ("data", []),
        ("data", {}),
        ("cell", "c" * 200),
        ("bodies", [{"name": "../x", "sha256": "0" * 64, "kept_bytes": 1, "total_bytes": 1}]),
        ("bodies", [{"name": "x", "sha256": "../" + "0" * 61, "kept_bytes": 1, "total_bytes": 1}]),
        ("bodies", [{"name": "x", "sha256": "0" * 64, "kept_bytes": -1, "total_bytes": 1}]),
        ("extra", 1),
    ],
)
def test_a_wrong_field_is_refused(field: str, value: object) -> None:
    """Each field has one type and shape; unknown kinds and unknown fields of the line are
    refused."""
    with pytest.raises(ValueError):  # noqa: PT011
        parse_line(canonical(LINE | {field: value}))


@pytest.mark.parametrize("field", sorted(LINE))
def test_a_missing_field_is_refused(field: str) -> None:
    """No field of a line is optional."""
    with pytest.raises(ValueError, match=field):
        parse_line(canonical({name: value for name, value in LINE.items() if name != field}))


def test_data_may_say_more_but_not_less() -> None:
    """Fields may be added; a required one that is missing or of another type is named."""
    check_data(Kind.PROTOCOL_VIOLATION, {"reason": "x", "more": [1]})
    with pytest.raises(ValueError, match="reason"):
        check_data(Kind.PROTOCOL_VIOLATION, {"reason": 1})
    with pytest.raises(ValueError, match=r"exec\.imagined"):
        check_data("exec.imagined", {})  # type: ignore[arg-type]


@given(
    st.binary(max_size=300)
    | st.fixed_dictionaries({k: st.just(v) | st.text() for k, v in LINE.items()}).map(
        lambda d: json.dumps(d).encode()
    )
)
def test_hostile_lines_end_in_value_error(raw: bytes) -> None:
    """Whatever the bytes: an event or `ValueError`."""
    try:
        parse_line(raw)
    except ValueError:
        return
