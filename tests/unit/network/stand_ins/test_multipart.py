"""The reader of forms: it takes what clients send in any pieces, and stays within its bounds for
what attackers send."""

from __future__ import annotations

import hashlib
import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from python_multipart.exceptions import FormParserError
from tests.fakes.registries import form

from belljar.network.stand_ins.pypi import upload
from belljar.network.stand_ins.pypi.upload import Form, FormReader

NAMES = st.from_regex(r"[a-z:_]{1,12}", fullmatch=True)
VALUES = st.text(st.characters(codec="utf-8"), max_size=80)


def read(content_type: str, pieces: list[bytes]) -> Form:
    """All of a body."""
    reader = FormReader(content_type, kept_bytes=16)
    for piece in pieces:
        reader.feed(piece)
    return reader.form


def cut_up(body: bytes, cuts: list[int]) -> list[bytes]:
    """A body in pieces."""
    places = sorted({min(cut, len(body)) for cut in cuts} | {0, len(body)})
    return [body[start:end] for start, end in itertools.pairwise(places)]


@given(
    st.dictionaries(NAMES, VALUES, max_size=5),
    st.binary(max_size=300),
    st.lists(st.integers(0, 2000), max_size=20),
)
@settings(deadline=None)
def test_a_form_is_read_back_whatever_its_pieces(
    fields: dict[str, str], content: bytes, cuts: list[int]
) -> None:
    """Fields, file name, size and digest are those that were put in, wherever the network cut the
    body."""
    content_type, body = form(fields, {"content": ("a-1.whl", content)}, boundary="b" * 30)
    found = read(content_type, cut_up(body, cuts))
    assert found.complete
    assert found.fields == fields
    (file,) = found.files
    assert (file.filename, file.content.total_bytes, file.content.kept) == (
        "a-1.whl",
        len(content),
        content[:16],
    )
    assert file.content.sha256 == hashlib.sha256(content).hexdigest()
    assert file.content.body("file-0").total_bytes == len(content)


@given(st.lists(st.binary(max_size=200), max_size=20), st.booleans())
@settings(deadline=None)
def test_any_bytes_are_read_or_refused(pieces: list[bytes], begun: bool) -> None:
    """Nothing but `FormParserError` is raised, and what is held is bounded."""
    reader = FormReader("multipart/form-data; boundary=x", kept_bytes=16)
    try:
        reader.feed(
            b'--x\r\nContent-Disposition: form-data; name="a"; filename="b"\r\n\r\n'
            if begun
            else b""
        )
        for piece in pieces:
            reader.feed(piece)
    except FormParserError:
        pass
    assert all(len(file.content.kept) <= 16 for file in reader.form.files)


@pytest.mark.parametrize(
    "content_type",
    [
        "",
        "text/plain",
        "multipart/form-data",
        "multipart/form-data; boundary=" + "x" * 71,
        'multipart/form-data; boundary=""',
        "multipart/mixed; boundary=x",
    ],
)
def test_a_type_without_a_boundary_is_refused(content_type: str) -> None:
    """What is no form isn't searched for parts."""
    with pytest.raises(FormParserError):
        FormReader(content_type, kept_bytes=1)


def test_bounds() -> None:
    """Endless headers, endless parts, endless files and endless fields end, each in its own way."""
    reader = FormReader("multipart/form-data; boundary=x", kept_bytes=1)
    with pytest.raises(FormParserError, match="header count"):
        reader.feed(b"--x\r\n" + b"A: b\r\n" * 1000)
    reader = FormReader("multipart/form-data; boundary=x", kept_bytes=1)
    with pytest.raises(FormParserError, match="header size"):
        reader.feed(b"--x\r\nA: " + b"b" * 20_000)
    content_type, body = form({f"f{n}": "" for n in range(upload.MAX_PARTS + 1)}, {})
    with pytest.raises(FormParserError, match="parts"):
        read(content_type, [body])
    content_type, body = form({}, {f"f{n}": ("n", b"") for n in range(9)})
    with pytest.raises(FormParserError, match="8 files"):
        read(content_type, [body])
    content_type, body = form({"a": "v" * (upload.MAX_FIELD_BYTES + 5), "b": "w"}, {})
    found = read(content_type, [body])
    assert (found.cut, len(found.fields["a"]), found.fields["b"]) == (
        True,
        upload.MAX_FIELD_BYTES,
        "",
    )


@pytest.mark.parametrize("cut", range(1, 60))
def test_what_begins_as_a_boundary_is_content(cut: int) -> None:
    """A mark that goes on is none; a form whose last boundary never comes is not whole."""
    body = b'--xy\r\nContent-Disposition: form-data; name="a"\r\n\r\n1\r\n--xz\r\n--xy--\r\n'
    found = read("multipart/form-data; boundary=xy", [body[:cut], body[cut:-8]])
    assert (found.complete, found.fields) == (False, {})
    found = read("multipart/form-data; boundary=xy", [body[:cut], body[cut:]])
    assert (found.complete, found.fields) == (True, {"a": "1\r\n--xz"})
