"""The scanner: what it finds, where, and where it stops; what counts as the same value."""

from __future__ import annotations

import base64
import codecs
import gzip
import hashlib
import io
import json
import time
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from pydoc_data.topics import topics
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from belljar import signals
from belljar.errors import PolicyError
from belljar.policy.guarding import GuardRules, Protected
from belljar.signals.decoders import compressed, escapes
from belljar.signals.detectors import seed_phrases
from belljar.signals.runs import decode_run, runs
from belljar.signals.scanner import KnownValues, Scanner
from belljar.signals.streams import StreamScanner
from belljar.signals.values import (
    MAX_VALUES_BYTES,
    Channel,
    Hit,
    KnownValue,
    ScanBounds,
    ScanSpec,
    ValueSource,
    protected_values,
    read_protected,
)

KEY = bytes(range(32))
TEXT = "AKq9-xR7m.Zp2LwT8"
PATIENT = ScanBounds(time_s=60)


def scanner(text: str = TEXT, *classes: str, bounds: ScanBounds = PATIENT) -> Scanner:
    value = KnownValue(id="v", text=text, source=ValueSource.PROTECTED)
    return Scanner(ScanSpec(values=(value,), classes=classes, key_hex=KEY.hex(), bounds=bounds))


def one(data: bytes) -> Hit:
    result = scanner().scan(data)
    assert result.complete
    (hit,) = result.hits
    return hit


def _marked(pattern: str) -> Callable[[bytes], bytes]:
    return lambda data: "".join(pattern % byte for byte in data).encode()


def _groups(size: int, separator: bytes) -> Callable[[bytes], bytes]:
    return lambda data: separator.join(data[at : at + size] for at in range(0, len(data), size))


def _zipped(data: bytes) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("a/b.txt", data)
    return out.getvalue()


ENCODINGS: dict[str, Callable[[bytes], bytes]] = {
    "base64": base64.b64encode,
    "base64, lines": lambda data: base64.encodebytes(b"words before, " * 4 + data),
    "base64, shifted": lambda data: base64.b64encode(b"x" + data).rstrip(b"="),
    "base64url": lambda data: base64.urlsafe_b64encode(data).rstrip(b"="),
    "base32": base64.b32encode,
    "base32, lower case": lambda data: base64.b32encode(data).lower().rstrip(b"="),
    "hex": lambda data: data.hex().encode(),
    "hex, colons": lambda data: data.hex(":").upper().encode(),
    "hex, 0x": lambda data: b", ".join(b"0x%02x" % byte for byte in data),
    "url": _marked("%%%02x"),
    "html": _marked("&#%d;"),
    "html, hex": _marked("&#x%x;"),
    "json": _marked("\\u%04x"),
    "escape": _marked("\\x%02x"),
    "octal": _marked("\\%03o"),
    "quoted-printable": _marked("=%02X"),
    "gzip": gzip.compress,
    "zlib": zlib.compress,
    "deflate": lambda data: zlib.compress(data)[2:-4],
    "zip": _zipped,
    "reversed": lambda data: data[::-1],
    "rot13": lambda data: codecs.encode(data.decode("latin-1"), "rot13").encode("latin-1"),
    "spaces": _groups(1, b" "),
    "dashes": _groups(1, b"-"),
    "groups": _groups(4, b"\n"),
}


@pytest.mark.promise("5.7")
def test_a_value_has_its_place_and_encodings() -> None:
    """Offsets of what is not encoded are exact, and its digest is the spec's of the value."""
    hit = one(b"before " + TEXT.encode() + b" after")
    assert (hit.start, hit.end, hit.decoding) == (7, 7 + len(TEXT), ())
    assert hit.digest == ScanSpec(key_hex=KEY.hex()).digest(TEXT.encode())
    encoded = base64.b64encode(b"{'key': '" + TEXT.encode() + b"'}")
    hit = one(b"some words before it; " + encoded + b" and after")
    assert hit.decoding == ("base64",)
    assert 22 <= hit.start < hit.end <= 22 + len(encoded)
    assert one(TEXT.upper().encode()).decoding == ("case",)
    wide = "".join(chr(ord(c) + 0xFEE0) for c in TEXT)
    tags = "".join(chr(0xE0000 + ord(c)) for c in TEXT)
    for looks_alike in (wide, TEXT.replace("A", "А"), "\u200b".join(TEXT), tags):
        assert one(looks_alike.encode()).decoding == ("unicode",)
    for data in (b"%5aq7xKp29Lw", rb"\x5aq7xKp29Lw", rb"\132q7xKp29Lw"):
        assert scanner("Zq7xKp29Lw").scan(data).hits


ESCAPED = {"url", "html", "html, hex", "json", "escape", "octal", "quoted-printable"}
CUTS = {"spaces", "dashes", "groups", "base64, lines", "hex, 0x", "hex, colons"}


@st.composite
def stacks(draw: st.DrawFn) -> tuple[list[str], bytes]:
    data, names = TEXT.encode(), list[str]()
    for _ in range(draw(st.integers(1, 5))):
        unfit = {"deflate"} if data.isascii() else {"deflate", "reversed", "rot13", *CUTS}
        if (CUTS | ESCAPED) & set(names):
            unfit |= CUTS
        if names and names[-1] in ESCAPED | {"hex, 0x", "gzip", "zlib", "deflate", "zip"}:
            unfit |= {"reversed", "rot13"}  # Escapes and marks themselves are not looked for so.
        names.append(draw(st.sampled_from(sorted(set(ENCODINGS) - unfit))))
        data = ENCODINGS[names[-1]](data)
    return names, data


@pytest.mark.promise("5.7")
@settings(
    max_examples=120, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)
@given(stacks())
def test_a_stack_of_encodings_is_undone(stack: tuple[list[str], bytes]) -> None:
    """The same examples each time: of some hundred stacks one hides what follows."""
    names, data = stack
    assert scanner().scan(data).hits, names


@pytest.mark.promise("5.7")
def test_decoding_ends_at_its_bounds() -> None:
    """Of bytes and of time; the result says that it is not complete."""
    large = bytes(40 << 20)
    for bomb in (zlib.compress(gzip.compress(large)), _zipped(large)):
        result = scanner().scan(bomb)
        assert (result.complete, result.problem) == (False, "decoded_bytes")
    result = scanner(bounds=ScanBounds(time_s=0)).scan(base64.b64encode(TEXT.encode()) * 100)
    assert (result.complete, result.problem) == (False, "time")


@pytest.mark.promise("5.7")
def test_marks_of_compressed_data_take_no_more_time() -> None:
    """Data that is full of them is given up in time, alone and as a part of a flow."""
    data, hurried = b"\x28\xb5\x2f\xfd" * 400_000, scanner(bounds=ScanBounds(time_s=0.02))
    began = time.thread_time()
    assert hurried.scan(data).problem == "time"
    assert StreamScanner(hurried).feed("f", Channel.STREAM, "data", data).problem == "time"
    assert time.thread_time() - began < 2  # of some 5 s that each look at all marks would take


def test_a_known_value_in_its_context_is_one_hit() -> None:
    """`password=` before a decoy makes no second credential of it."""
    data = f"password={TEXT}\npassword=kX9vQ2mB7rT4wZ8p".encode()
    assert [hit.cls for hit in scanner().scan(base64.b64encode(data)).hits] == [
        "protected",
        "secret",
    ]


@pytest.mark.promise("5.7")
def test_nothing_that_stands_before_it_hides_a_find() -> None:
    """Turned, less is looked for in the same data, and fewer encodings are left."""
    credential = base64.b64encode(b"AKIAQ3EGR7ZLK2PV5M4X")
    stack = TEXT.encode()
    for _ in range(5):
        stack = base64.b64encode(stack)
    for data in (credential, stack):
        rotated = codecs.encode(data.decode(), "rot13").encode()
        for before in (b"", data[::-1], rotated, rotated[::-1]):
            assert scanner(TEXT).scan(b"a word, %s, and then %s." % (before, data)).hits


# Of BIP-39's test vectors, and what its reference implementation's `english.txt` has.
PHRASE = "ozone drill grab fiber curtain grace pudding thank cruise elder eight picnic"
LONG_PHRASE = (
    "hamster diagram private dutch cause delay private meat slide toddler razor book happy fancy "
    "gospel tennis maple dilemma loan word shrug inflict delay length"
)
LIST_SHA256 = "2f5eed53a4727b4bf8880d8f3f199efc90e58503646d9ff8eff3a2ed3b24dbda"


@pytest.mark.promise("5.7")
@pytest.mark.parametrize("phrase", [PHRASE, LONG_PHRASE])
def test_a_wallets_phrase_is_found(phrase: str) -> None:
    """As written on paper, in JSON, encoded, and in a sentence."""
    words, encoded = phrase.split(), base64.b64encode(phrase.encode()).decode()
    listed = "\n".join(f"{number}) {word.title()}" for number, word in enumerate(words, 1))
    for text in (listed, json.dumps(words), encoded, f"My wallet: {phrase}. Keep this safe!"):
        (hit,) = scanner().scan(text.encode()).hits
        assert (hit.cls, hit.source) == ("seed_phrase", "pattern")
    assert (hit.start, hit.end) == (11, 11 + len(phrase))


@pytest.mark.promise("5.7")
def test_prose_and_lists_of_words_are_no_phrases() -> None:
    """Neither Python's manual, nor the list itself, nor words without a right checksum."""
    words = Path(signals.__file__).with_name("bip39.txt").read_bytes().split()
    assert hashlib.sha256(b"\n".join([*words, b""])).hexdigest() == LIST_SHA256
    sentences = "can use this option. You can enable Auto Minor Version Upgrade when it is"
    exchanged = f"drill ozone {PHRASE[12:]}"
    for text in (*topics.values(), sentences, exchanged, "abandon " * 11 + "about"):
        assert not list(seed_phrases(text.encode(), lambda: None))
    assert not list(seed_phrases(b" ".join(words), lambda: None))


def test_replacing_takes_every_hit_out() -> None:
    """What was found, plain or encoded, is replaced, and the rest stays."""
    watcher = scanner()
    data = b"a " + TEXT.encode() + b" b " + base64.b64encode(TEXT.encode()) + b" c"
    cleaned = watcher.replace(data, watcher.scan(data).hits, b"[redacted]")
    assert cleaned == b"a [redacted] b [redacted] c"
    assert not watcher.scan(cleaned).hits


KNOWN = "orchid-7731-base"


def find(
    data: bytes, text: str = KNOWN, *, case_sensitive: bool = True
) -> list[tuple[int, int, tuple[str, ...]]]:
    value = KnownValue(
        id="v", text=text, source=ValueSource.PROTECTED, case_sensitive=case_sensitive
    )
    known = KnownValues(ScanSpec(values=(value,), key_hex="00" * 16))
    return [(*place, names) for _, place, names in known.find(data, 0, len(data))]


def test_what_counts_as_the_same_value() -> None:
    """`case` is an encoding only of a value whose case matters."""
    assert find(b"Orchid-7731-BASE") == [(0, 16, ("case",))]
    assert find(b"Orchid-7731-BASE", case_sensitive=False) == [(0, 16, ())]
    assert find(b"or, chi! d? 7 (7) 3:1 ba-se") == []
    assert find(b"o.r.c.h.i.d.7.7.3.1.b.a.s.e") == [(0, 27, ("split",))]
    assert find(b"x ##!!--++..a ", "##!!--++..a") == [(2, 13, ())]
    assert find("vor Geheimnis-Größe nach".encode(), "Geheimnis-Größe") == [(4, 21, ())]


MARKS = st.sampled_from(
    [b"\x1f\x8b\x08", b"x\x9c", b"(\xb5/\xfd", b"PK\x03\x04", b"%4", b"&#x", b"\\u", b"=\n", b"0x4"]
)


@pytest.mark.promise("5.7")
@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.one_of(st.binary(max_size=40), MARKS, st.from_regex(rb"[A-Za-z0-9+/=_-]{14,40}")),
        max_size=8,
    )
)
def test_no_bytes_break_a_decoder(parts: list[bytes]) -> None:
    """Whatever comes, regions and hits lie within the data, and offsets within the regions."""
    data = b"".join(parts)
    for hit in scanner(TEXT, "card", "iban", "email").scan(data).hits:
        assert 0 <= hit.start <= hit.end <= len(data)
    found = [*escapes(data), *compressed(data, lambda: 1 << 20)]
    for run in runs(data):
        found += decode_run(run)
    for decoded in found:
        assert 0 <= decoded.start <= decoded.end <= len(data)
        if decoded.locate and decoded.data:
            start, end = decoded.locate(0, len(decoded.data))
            assert decoded.start <= start <= end <= decoded.end


def test_a_decoder_stops_where_it_is_told() -> None:
    """No more comes out than allowed, and it is marked."""
    (decoded,) = compressed(gzip.compress(bytes(1 << 20)), lambda: 1000)
    assert len(decoded.data) == 1000
    assert not decoded.whole


VALUE = KnownValue(
    id="aws/key", text="AKq9-xR7m.Zp2LwT8", source=ValueSource.DECOY, kind="aws_credentials"
)


@pytest.mark.promise("5.7")
def test_no_representation_shows_a_value_or_the_key() -> None:
    """Neither a value's nor a spec's repr holds the value or the key."""
    spec = ScanSpec(values=(VALUE,), key_hex=KEY.hex())
    for shown in (repr(VALUE), repr(spec)):
        assert VALUE.text not in shown
        assert spec.key_hex not in shown


def test_a_value_out_of_bounds_is_refused_without_being_shown() -> None:
    """Too short or too long a value is a ValueError that names its id alone."""
    for text in ("short", "x" * 4097, ""):
        with pytest.raises(ValueError, match="bytes") as refused:
            ScanSpec(values=(replace(VALUE, id="v", text=text),), key_hex=KEY.hex())
        assert not text or text not in str(refused.value)


CSV = b"name,email,note\nAda Lovelace,ada@customer.io,x\nBob,bob.miller@customer.io,y\n"


def texts(item: Protected, content: bytes = b"") -> list[str]:
    return [value.text for value in protected_values(item, content)]


def test_what_a_file_or_an_entry_protects() -> None:
    """Only the named columns' values, or each line; none that is too short."""
    item = Protected(id="c", file="c.csv", columns=("name", "email"))
    assert texts(item, CSV) == ["Ada Lovelace", "ada@customer.io", "bob.miller@customer.io"]
    lines = b"first-value-1\nshort\n\nsecond-value-2\n"
    assert texts(Protected(id="c", file="c.txt"), lines) == ["first-value-1", "second-value-2"]
    (value,) = protected_values(Protected(id="codename", value="ORCHID-7731"))
    assert (value.id, value.text) == ("codename", "ORCHID-7731")


def test_a_file_that_can_not_be_used_is_refused(tmp_path: Path) -> None:
    """A missing column, no text, nothing to look for, or too much: by the file's name."""
    lines = (b"short\n", b"x" * 5000, b"\n" * (MAX_VALUES_BYTES + 1))
    for name, columns, content in (
        ("c.csv", ("iban",), CSV),
        ("c.csv", ("email",), b"\xff\xfe\x00broken"),
        ("c.jsonl", (), b'{"name": "Ada Lovelace"}\n'),
        *(("c.txt", (), each) for each in lines),
    ):
        (tmp_path / name).write_bytes(content)
        rules = GuardRules(protect=(Protected(id="c", file=name, columns=columns),))
        policy: Any = SimpleNamespace(policy=SimpleNamespace(guard_rules=rules), base=tmp_path)
        with pytest.raises(PolicyError) as refused:
            read_protected(policy)
        assert refused.value.where == name
