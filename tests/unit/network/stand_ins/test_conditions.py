"""Which bytes of a file a request is answered with."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from belljar.network.stand_ins.files import Share, is_fresh, share_of
from belljar.network.stand_ins.web import Request

MODIFIED, BEFORE = "Wed, 08 Oct 2025 08:53:20 GMT", "Wed, 08 Oct 2025 08:53:19 GMT"
MODIFIED_S = 1_759_913_600
CONDITIONS = ("if-match", "if-unmodified-since", "if-none-match", "if-modified-since")
FIELDS = (*CONDITIONS, "if-range", "range")


def request(fields: dict[str, str], method: str = "GET") -> Request:
    """One with these header fields."""
    return Request(method=method, path="/", raw_path="/", headers=tuple(fields.items()))


@pytest.mark.parametrize(
    ("fields", "share"),
    [
        ({}, Share(200, 0, 10)),
        ({"range": "bytes=2-3"}, Share(206, 2, 4)),
        ({"range": "bytes=0-"}, Share(206, 0, 10)),
        ({"range": "bytes=2-3", "if-range": '"tag"'}, Share(206, 2, 4)),
        ({"range": "bytes=2-3", "if-range": MODIFIED}, Share(206, 2, 4)),
        ({"range": "bytes=2-3", "if-range": BEFORE}, Share(200, 0, 10)),
        ({"range": "bytes=2-3", "if-range": 'W/"tag"'}, Share(200, 0, 10)),
        ({"range": "bytes=10-"}, Share(416)),
        ({"range": "bytes=10-", "if-none-match": '"tag"'}, Share(304)),
        ({"if-none-match": 'W/"tag"'}, Share(304)),
        ({"if-none-match": '"other"', "if-modified-since": MODIFIED}, Share(200, 0, 10)),
        ({"if-modified-since": MODIFIED}, Share(304)),
        ({"if-modified-since": BEFORE}, Share(200, 0, 10)),
        ({"if-match": "*"}, Share(200, 0, 10)),
        ({"if-match": 'W/"tag"'}, Share(412)),
        ({"if-unmodified-since": MODIFIED}, Share(200, 0, 10)),
        ({"if-unmodified-since": BEFORE}, Share(412)),
    ],
)
def test_conditions_in_their_order(fields: dict[str, str], share: Share) -> None:
    """RFC 9110, section 13.2.2. A range counts for GET alone (14.2)."""
    assert share_of(request(fields), "tag", MODIFIED_S, 10) == share
    asked = request({"range": "bytes=2-3"}, "HEAD")
    assert share_of(asked, "tag", MODIFIED_S, 10) == Share(200, 0, 10)


@given(
    st.fixed_dictionaries(
        {}, optional=dict.fromkeys(FIELDS, st.text(max_size=60) | st.just(MODIFIED))
    ),
    st.text(max_size=20),
    st.integers(0, 5000),
)
@settings(deadline=None)
def test_whatever_is_asked_for(fields: dict[str, str], asked: str, size: int) -> None:
    """Bytes outside the file are never meant, and a partial answer has some."""
    for given_range in (
        asked,
        f"bytes={asked}",
        f"bytes=-{size}",
        f"bytes={size}-",
        f"bytes=0-{size}",
    ):
        share = share_of(request({"range": given_range, **fields}), "tag", MODIFIED_S, size)
        assert share.status in {200, 206, 304, 412, 416}
        assert 0 <= share.start <= share.end <= size
        assert share.start < share.end or share.status != 206


@given(st.text(max_size=70))
@settings(deadline=None)
def test_any_date_is_read_or_ignored(text: str) -> None:
    """No date of a guest's is an error of ours."""
    assert is_fresh(request({"if-modified-since": text}), "tag", 1 << 60) is False
