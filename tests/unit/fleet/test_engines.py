"""Where a fleet may be, and what is taken from the other end of a pipe."""

from __future__ import annotations

import struct
import sys
from io import BytesIO
from pathlib import Path

import pytest

from belljar.cli.main import run as belljar
from belljar.errors import HostError, PolicyError
from belljar.fleet.engine import CELLS, joined
from belljar.fleet.ray_engine import offers_of
from belljar.fleet.slurm_engine import MAX_ANSWER_BYTES, MAX_FRAME_BYTES, answer_of, receive, send


@pytest.mark.parametrize(
    "address",
    [
        *("8.8.8.8", "0.0.0.0", "[::]", "2606:4700::1", "[::ffff:0.0.0.0]"),  # noqa: S104
        *("203.0.113.4", "198.18.0.1", "240.0.0.1", "255.255.255.255", "100.128.0.1"),
    ],
)
def test_a_public_address_is_refused(address: str) -> None:
    """Whoever reaches Ray's port may run code on each node: nothing is joined or started there."""
    with pytest.raises(PolicyError):
        joined(f"ray://{address}:6379")
    assert belljar(["fleet", "node", "--head", "--ip", address.strip("[]")]) == 4


def test_a_node_with_a_public_address_is_refused_by_name() -> None:
    """Whichever was given: each live node counts, without cells too; a kill reaches all."""
    nodes = [
        {
            "NodeID": name,
            "NodeManagerHostname": name,
            "NodeManagerAddress": address,
            "Alive": address != "9.9.9.9",
            "Resources": {CELLS: 2.0} if name == "cells" else {},
        }
        for name, address in (("cells", "10.0.0.1"), ("dead", "9.9.9.9"), ("open", "8.8.8.8"))
    ]
    with pytest.raises(PolicyError, match=r"open, 8\.8\.8\.8"):
        offers_of(nodes, may_be_public=False)
    assert [*offers_of(nodes[:2], may_be_public=False)] == ["cells"]
    assert [*offers_of(nodes, may_be_public=True)] == ["cells"]


def test_a_frame_arrives_as_it_was_sent_and_nothing_else_is_taken() -> None:
    """Bytes and JSON; not what is cut, too large, or of another kind."""
    stream = BytesIO()
    for item in (b"\0\xff", {"node": "n1"}, None):
        send(stream, item)
    content = stream.getvalue()
    stream.seek(0)
    assert [receive(stream) for _ in range(3)] == [b"\0\xff", {"node": "n1"}, None]
    with pytest.raises(EOFError):
        receive(stream)
    large = struct.pack(">cI", b"b", MAX_FRAME_BYTES + 1)
    for bad in (content[:3], content[:6], b"x" + content[1:], large):
        with pytest.raises(ValueError, match="node"):
            receive(BytesIO(bad))


ANSWER = r"cat >&2; printf 'j\0\0\0\2[]'"


@pytest.mark.parametrize(
    ("program", "said"),
    [
        (f"{ANSWER}; yes", []),
        (r"printf 'j\77\0\0\0'; yes", ValueError),
        (r"printf 'j\0\0\377\0'; head -c 65280 /dev/zero | tr '\0' '['", RecursionError),
        ("yes why | head -c 9999999 >&2; exit 3", HostError),
        ("exec sleep 60", HostError),
    ],
)
def test_what_a_node_answers_is_bounded(program: str, said: object) -> None:
    """One that sends without end, an answer that would fill the head's memory, or nothing is an
    error of this node: it neither holds up the head nor ends what the others do."""
    within_s = 1.0 if "sleep" in program else 60.0
    words = ["sh", "-c", program]
    if isinstance(said, list):
        assert answer_of(words, b"x" * (1 << 20), within_s) == said
    else:
        with pytest.raises(said):  # type: ignore[call-overload]
            answer_of(words, b"", within_s)


def test_a_node_takes_what_is_larger_than_an_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node's job has the limits of its `srun` (Slurm's default): an image's piece fits."""
    monkeypatch.setenv("BELLJAR_HOME", str(tmp_path))
    (tmp_path / "fleet" / "f1").mkdir(parents=True)
    request = BytesIO()
    piece = bytes(2 * MAX_ANSWER_BYTES)
    for item in ("take_piece", 5, "f1", "a" * 64, 0, len(piece), piece):
        send(request, item)
    words = [sys.executable, "-m", "belljar.fleet.slurm_engine"]
    assert answer_of(words, request.getvalue(), 60.0) == ""
