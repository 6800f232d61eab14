"""The program's words are hostile."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fakes.probing import PROBES, answer

from belljar.probe.judge import MAX_OUTPUT_BYTES, parse_answers
from belljar.probe.model import AttemptOutcome

NONCE = "0123456789abcdef0123456789abcdef"
NAMES = [probe.name for probe in PROBES]
WHOLE = answer(PROBES, NONCE)


@pytest.mark.promise("4.6")
@pytest.mark.parametrize(
    "output",
    [
        b"",
        WHOLE[:-1],
        WHOLE + b"files.canary\tdenied\tagain\n",
        WHOLE.replace(b"files.canary", b"files.unasked"),
        WHOLE.replace(b"files.canary\tdenied\tEPERM\n", b""),
        WHOLE.replace(b"\tdenied", b"\tfine", 1),
        WHOLE.replace(NONCE.encode(), b"0" * 32),
        WHOLE.replace(b"end\t4", b"end\t3"),
        WHOLE.replace(b"EPERM", b"E" * MAX_OUTPUT_BYTES, 1),
    ],
)
def test_what_is_not_whole_is_a_problem(output: bytes) -> None:
    """Missing, doubled, unknown, malformed, cut, miscounted or of another run: a problem."""
    assert parse_answers(output, asked=NAMES, nonce=NONCE).problem


@pytest.mark.promise("4.6")
def test_a_breach_is_not_lost_in_a_broken_answer() -> None:
    """`reached` counts although the output is cut behind it, or another line denies it."""
    broken = b"files.canary\treached\tit\nfiles.canary\tdenied\tEPERM\ncalls.mo"
    read = parse_answers(broken, asked=NAMES, nonce=NONCE)
    assert read.by_name["files.canary"].outcome is AttemptOutcome.REACHED
    assert read.problem


def test_details_are_escaped_and_bounded() -> None:
    """What the cell writes can't act on a terminal, nor flood a record."""
    read = parse_answers(
        b"files.canary\treached\t\x1b[2J" + b"x" * 9000 + b"\n", asked=NAMES, nonce=NONCE
    )
    detail = read.by_name["files.canary"].detail
    assert "\x1b" not in detail
    assert len(detail) < 500


@given(st.lists(st.sampled_from(WHOLE.split(b"\n")) | st.binary(max_size=400), max_size=9))
def test_lines_in_any_order_and_number(lines: list[bytes]) -> None:
    """Any bytes are read; only the program's whole set of lines in front of its end is an answer."""
    output = b"\n".join(lines)
    whole = sorted(lines[:4]) == sorted(WHOLE.split(b"\n")[:4]) and lines[4:] == [
        WHOLE.split(b"\n")[4],
        b"",
    ]
    assert (parse_answers(output, asked=NAMES, nonce=NONCE).problem == "") == whole
