"""The reader of forms: it reads what clients send, and stays within its bounds for what attackers
send."""

from __future__ import annotations

import hashlib

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fakes.registries import form

from belljar.network.gateway.context import MAX_KEPT_BODY_BYTES
from belljar.network.stand_ins import pypi
from belljar.network.stand_ins.pypi import read_form

NAMES = st.from_regex(r"[a-z:_]{1,12}", fullmatch=True)
VALUES = st.text(st.characters(codec="utf-8"), max_size=80)


@given(st.dictionaries(NAMES, VALUES, max_size=5), st.binary(max_size=300))
@settings(deadline=None)
def test_a_form_is_read_back(fields: dict[str, str], content: bytes) -> None:
    """Fields, file name, size and digest are those that were put in."""
    content_type, body = form(fields, {"content": ("a-1.whl", content)}, boundary="b" * 30)
    found = read_form(content_type, body)
    assert (found.wrong, found.fields) == ("", fields)
    ((field, filename, capture),) = found.files
    assert (field, filename, capture.total_bytes) == ("content", "a-1.whl", len(content))
    assert capture.sha256 == hashlib.sha256(content).hexdigest()


@given(st.lists(st.binary(max_size=200) | st.sampled_from([b"\r\n--x", b"--", b"\r\n\r\n"])))
@settings(deadline=None)
def test_any_bytes_are_read_or_refused(pieces: list[bytes]) -> None:
    """Nothing is raised, and what is held is bounded."""
    body = b'--x\r\nContent-Disposition: form-data; name="a"; filename="b"\r\n\r\n'
    for sent in (b"".join(pieces), body + b"".join(pieces)):
        found = read_form("multipart/form-data; boundary=x", sent)
        assert all(len(each.kept) <= MAX_KEPT_BODY_BYTES for _, _, each in found.files)


def test_bounds() -> None:
    """Long headers, many parts, many files and long fields end, each in its own way."""
    x = "multipart/form-data; boundary=x"
    assert "headers" in read_form(x, b"--x\r\nA: " + b"b" * 20_000 + b"\r\n\r\n\r\n--x--").wrong
    content_type, body = form({f"f{n}": "" for n in range(pypi.MAX_PARTS + 1)}, {})
    assert "parts" in read_form(content_type, body).wrong
    content_type, body = form({}, {f"f{n}": ("n", b"") for n in range(pypi.MAX_FILES + 1)})
    assert "files" in read_form(content_type, body).wrong
    content_type, body = form({"a": "v" * (pypi.MAX_FIELD_BYTES + 5), "b": "w"}, {})
    found = read_form(content_type, body)
    assert (len(found.fields["a"]), found.fields["b"]) == (pypi.MAX_FIELD_BYTES, "w")


def test_what_begins_as_a_boundary_is_content() -> None:
    """A mark that goes on is none; a form whose last boundary never comes is not whole."""
    body = b'--xy\r\nContent-Disposition: form-data; name="a"\r\n\r\n1\r\n--xyz\r\n--xy--\r\n'
    found = read_form("multipart/form-data; boundary=xy", body[:-8])
    assert (found.wrong, found.fields) == ("the form ends too early", {"a": "1\r\n--xyz\r\n"})
    found = read_form("multipart/form-data; boundary=xy", body)
    assert (found.wrong, found.fields) == ("", {"a": "1\r\n--xyz"})
