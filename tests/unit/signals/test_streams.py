"""Reassembly: a value in pieces, across every border, within bounds."""

from __future__ import annotations

import base64
import gzip
import itertools
import random
import re
import tracemalloc
from collections.abc import Callable
from itertools import pairwise
from urllib.parse import quote

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from belljar.signals import streams
from belljar.signals.scanner import Scanner
from belljar.signals.streams import StreamScanner
from belljar.signals.values import Channel, KnownValue, ScanBounds, Scanned, ScanSpec, ValueSource

TEXT = "AKq9-xR7m.Zp2LwT8"
VALUE = TEXT.encode()


def stream() -> StreamScanner:
    value = KnownValue(id="v", text=TEXT, source=ValueSource.DECOY)
    patient = ScanBounds(time_s=60)
    return StreamScanner(Scanner(ScanSpec(values=(value,), key_hex="00" * 32, bounds=patient)))


def found(feeds: list[tuple[Channel, str, bytes]]) -> int:
    watcher = stream()
    return sum(len(watcher.feed("f", channel, part, data).hits) for channel, part, data in feeds)


@pytest.mark.promise("5.7")
@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 400), max_size=6))
@example([194])  # before the padding of base64
def test_a_value_cut_between_chunks_is_found_once(cuts: list[int]) -> None:
    """Wherever chunks end, plain and in base64."""
    for value in (VALUE, base64.b64encode(VALUE)):
        data = b"x" * 170 + b" " + value + b" " + b"y" * 170
        places = sorted({0, *(cut for cut in cuts if cut < len(data)), len(data)})
        chunks = [data[a:b] for a, b in pairwise(places)]
        assert found([(Channel.HTTP, "body", chunk) for chunk in chunks]) == 1


def test_pieces_are_joined_within_one_flow() -> None:
    """Each sending is a hit; what stood in the tail already is none."""
    watcher, parts = stream(), (VALUE, b" and ", VALUE + b"!")
    assert [len(watcher.feed("f", Channel.HTTP, "body", each).hits) for each in parts] == [1, 0, 1]
    assert not watcher.feed("a", Channel.HTTP, "body", VALUE[:8]).hits
    assert not watcher.feed("b", Channel.HTTP, "body", VALUE[8:]).hits
    data = b"x=1 password=kX9vQ2mB7rT4wZ8pLn3c;"
    for cut in (6, 14, 20):
        assert found([(Channel.HTTP, "body", data[:cut]), (Channel.HTTP, "body", data[cut:])]) == 1


AGAIN: dict[str, Callable[[bytes], bytes]] = {
    "plain": bytes,
    "base64": base64.b64encode,
    "base64 without padding": lambda value: base64.b64encode(value + b"!"),
    "hex": lambda value: value.hex().encode(),
    "gzip": lambda value: gzip.compress(value, mtime=0),
}


@pytest.mark.promise("5.7")
@pytest.mark.parametrize(
    "form", [b"%s", b"a text with %s. Its end", b'{"d": "%s", "n": 1}', b"d=%s&n=1"]
)
@pytest.mark.parametrize("way", AGAIN)
def test_a_value_is_found_whenever_it_is_sent(way: str, form: bytes) -> None:
    """Again in the same words, which the tail has; what the next request begins with is none."""
    for channel, part in ((Channel.HTTP, "body"), (Channel.STREAM, "data"), (Channel.DNS, "label")):
        sent = form % AGAIN[way](VALUE)
        watcher = stream()
        for _ in range(3):
            assert len(watcher.feed("f", channel, part, sent).hits) == 1
            if channel is Channel.HTTP:
                assert not watcher.feed("f", channel, "url", b"/next").hits
                assert not watcher.feed("f", channel, "header", b"host: shop").hits


@pytest.mark.promise("5.7")
@pytest.mark.parametrize("form", [b"%s", b'{"d": "%s"}', b"d=%s"])
@pytest.mark.parametrize("encode", [bytes, lambda value: base64.b64encode(value + b"!")])
@pytest.mark.parametrize("copies", [1, 3])
def test_a_value_is_found_in_pieces_after_it_was_found_whole(
    form: bytes, encode: Callable[[bytes], bytes], copies: int
) -> None:
    """In a body that follows one with the whole value, once or several times."""
    watcher, value = stream(), encode(VALUE)
    whole = b", and then ".join([value] * copies)
    for piece in (b"text " + whole, b"some words, " + value[:10], value[10:] + b" more"):
        watcher.feed("f", Channel.HTTP, "url", b"/next")
        scanned = watcher.feed("f", Channel.HTTP, "body", form % piece)
    assert len(scanned.hits) == 1


@pytest.mark.promise("5.7")
@pytest.mark.parametrize("way", [*AGAIN][:4])
def test_what_a_field_has_after_a_value_is_none(way: str) -> None:
    """Other encoded words, and a counter, in the requests that follow."""
    watcher = stream()
    for number in range(4):
        pieces = (AGAIN[way](VALUE), b"Zm9vYmFy", b"%d" % number, b"YmF6cXV4")
        sent = (b"/x?a=1&d=%s" % quote(piece).encode() for piece in pieces)
        hits = [len(watcher.feed("f", Channel.HTTP, "url", each).hits) for each in sent]
        assert hits == [1, 0, 0, 0]


@pytest.mark.promise("5.7")
@pytest.mark.parametrize("value", [b"piece", b""])
def test_other_fields_take_no_place_of_a_value(value: bytes) -> None:
    """A request has 64 parameters and headers that the one before has not, or empty ones."""
    for part, cut in (("body", b"%s"), ("header", b"x-d: %s")):
        watcher = stream()
        for turn, piece in enumerate((b"\0 " + VALUE[:8], VALUE[8:])):
            names = [b"n%d%d" % (turn, number) for number in range(64)]
            watcher.feed("f", Channel.HTTP, "url", b"/x?" + b"=1&".join(names))
            lines = [name + b": " + value for name in names[part == "header" and bool(value) :]]
            if part == "header":
                lines = [*lines[: 63 if value else 64], cut % piece.strip(b"\0 ")]
            scanned = watcher.feed("f", Channel.HTTP, "header", b"\n".join(lines))
            if part == "body":
                scanned = watcher.feed("f", Channel.HTTP, "body", cut % piece)
        assert len(scanned.hits) == 1


@pytest.mark.parametrize("credential", [TEXT, "kX9vQ2mB7rT4wZ8pLn3c"])
def test_what_follows_a_credential_makes_no_other_one(credential: str) -> None:
    """Whatever the next part and the next request begin with."""
    header = f"host: a\nx-api-key: {credential}".encode()
    feeds = [
        (Channel.HTTP, "header", header),
        (Channel.HTTP, "url", b"https://shop.example/next"),
        (Channel.HTTP, "header", b"host: a\naccept: */*"),
        (Channel.HTTP, "body", b"abc"),
    ]
    assert found(feeds) == 1


@pytest.mark.promise("5.7")
def test_compressed_data_is_read_across_chunks() -> None:
    """A package within a form, much larger than a tail, in small chunks."""
    noise = random.Random(1).randbytes(100_000)  # noqa: S311 - noise
    body = b"--b\r\n\r\n" + gzip.compress(noise + VALUE + noise) + b"\r\n--b--"
    chunks = [body[at : at + 4000] for at in range(0, len(body), 4000)]
    assert found([(Channel.HTTP, "body", chunk) for chunk in chunks]) == 1


@pytest.mark.promise("5.7")
def test_memory_is_bounded_and_what_was_dropped_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The flow that was quiet for longest goes first."""
    monkeypatch.setattr(streams, "MAX_BYTES", 20_000)
    watcher = stream()
    fed = [watcher.feed(f"{number}", Channel.STREAM, "data", b" " * 2000) for number in range(40)]
    assert sum(each.problem == "flows" for each in fed) >= 15
    watcher.feed("39", Channel.STREAM, "data", VALUE[:8])
    assert watcher.feed("39", Channel.STREAM, "data", VALUE[8:]).hits


@pytest.mark.promise("5.7")
def test_all_scans_of_one_piece_have_a_bound_of_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many fields it has; what is left out of it is told."""
    seconds, scans = itertools.count(), []

    class Counted(Scanner):
        def scan(self, data: bytes) -> Scanned:
            scans.append(data)
            return Scanned()

    monkeypatch.setattr("belljar.signals.streams.time.thread_time", lambda: float(next(seconds)))
    watcher = StreamScanner(Counted(ScanSpec(key_hex="00" * 32, bounds=ScanBounds(time_s=1))))
    for turn in range(2):
        scans.clear()
        fields = "&".join(f"f{number}=piece{number}{turn}" for number in range(60))
        scanned = watcher.feed("f", Channel.HTTP, "url", f"/x?{fields}".encode())
    assert len(scans) <= 5
    assert (scanned.complete, scanned.problem) == (False, "time")


@pytest.mark.promise("5.7")
def test_what_was_reported_is_remembered_within_a_bound() -> None:
    """Only what a tail can still touch, of ever new credentials in one flow or in many."""
    watcher, noise = stream(), random.Random(7)  # noqa: S311 - noise
    letters = "ABCDEFGHJKLMNPQRSTUVWXYZ234567"

    for number in range(33):
        if number < 3:  # the first warms caches
            keys = ["AKIA" + "".join(noise.choices(letters, k=16)) for _ in range(400)]
        flow, output = str(max(3, number)), "\n".join(keys).encode()
        assert len(watcher.feed(flow, Channel.OUTPUT, "stdout", output).hits) > 300
        if not number:
            tracemalloc.start()
    held_bytes = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert held_bytes < 800_000  # of some 3 MB that all of them would take


WAYS: dict[str, tuple[Channel, str, Callable[[str, int], str]]] = {
    "parameter": (Channel.HTTP, "url", lambda piece, n: f"/x?sort=name&page={n}&d={piece}"),
    "path": (Channel.HTTP, "url", lambda piece, _n: f"/a/{piece}"),
    "header": (Channel.HTTP, "header", lambda piece, _n: f"host: x\nx-d: {piece}"),
    "cookie": (Channel.HTTP, "header", lambda piece, _n: f"host: x\ncookie: a=1; d={piece}"),
    "JSON": (Channel.HTTP, "request", lambda piece, n: f'{{"n": {n}, "d": "{piece}"}}'),
    "form": (Channel.HTTP, "request", lambda piece, _n: f"d={piece}"),
    "message": (Channel.WEBSOCKET, "message", lambda piece, _n: piece),
    "name": (Channel.DNS, "label", lambda piece, n: f"{piece}.{n}.evil.example.com"),
}


@pytest.mark.promise("5.7")
@pytest.mark.parametrize("way", WAYS)
@given(
    st.text("ABCDEF0123456789-", min_size=12, max_size=24).filter(lambda text: text[0] not in "-"),
    st.data(),
)
@settings(max_examples=15, deadline=None)
def test_small_pieces_are_joined_whatever_repeats_or_counts(
    way: str, text: str, data: st.DataObject
) -> None:
    """In pieces of one to five characters, some digits alone, some the same as before."""
    assume(len(re.sub(r"[^A-Z0-9]", "", text)) >= 10)
    channel, part, write = WAYS[way]
    value = KnownValue(id="v", text=text, source=ValueSource.PROTECTED)
    scanner = StreamScanner(Scanner(ScanSpec(values=(value,), key_hex="00" * 32)))
    hits, at, number = 0, 0, 0
    while at < len(text):
        size = data.draw(st.integers(1, 5))
        piece, at, number = text[at : at + size], at + size, number + 1
        hits += len(scanner.feed("f", channel, part, write(piece, number).encode()).hits)
    assert hits


@pytest.mark.promise("5.7")
@pytest.mark.parametrize(
    "form", ["{n}-{piece}", "part{n:02}_{piece}", "{piece}-{n}", "{n}-{piece}.sub"]
)
def test_labels_of_queries_are_joined_without_their_indexes(form: str) -> None:
    """A value that is cut over numbered labels is found."""
    text = base64.b32encode(VALUE).decode().strip("=").lower()
    pieces = [text[at : at + 9] for at in range(0, len(text), 9)]
    names = [form.format(n=n, piece=piece) + ".evil.example" for n, piece in enumerate(pieces)]
    assert found([(Channel.DNS, "label", name.encode()) for name in names]) >= 1


@pytest.mark.promise("8.3")
def test_flows_are_bounded_in_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each connection may be one: the one that was quiet for longest goes, and that is told."""
    monkeypatch.setattr(streams, "MAX_FLOWS", 2)
    watcher = stream()
    half = len(VALUE) // 2
    seen = [watcher.feed(flow, Channel.STREAM, "data", VALUE[:half]) for flow in "abc"]
    assert [each.complete for each in seen] == [True, True, False]
    again = [watcher.feed(flow, Channel.STREAM, "data", VALUE[half:]).hits for flow in "bca"]
    assert [len(hits) for hits in again] == [1, 1, 0]
    watcher.end("c")
    assert watcher.feed("d", Channel.STREAM, "data", VALUE[:half]).complete
