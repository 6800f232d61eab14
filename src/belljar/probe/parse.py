"""What the program in the cell wrote, read as what it is: the words of a process in hostile
company. Pure, bounded.

Whatever is missing, doubled, unknown or cut off is a problem of the whole run, but what *can* be
read is kept all the same: a line that says `reached` must not vanish because the next one is
broken.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from belljar.probe.model import Outcome
from belljar.units import printable

MAX_OUTPUT_BYTES: Final = 256 << 10
MAX_DETAIL_CHARS: Final = 400
END: Final = b"end"
_BADNESS: Final = (Outcome.DENIED, Outcome.ABSENT, Outcome.ERROR, Outcome.REACHED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What one attempt said; `detail` is escaped and bounded."""

    outcome: Outcome
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """What the program said. `problem`: why this is no whole answer; "" when it is."""

    by_name: Mapping[str, Answer]
    problem: str = ""


def parse_answers(output: bytes, *, asked: Collection[str], nonce: str) -> Answers:
    """Read the program's standard output. Never raises: what is wrong is the answer's `problem`."""
    lines = output[:MAX_OUTPUT_BYTES].split(b"\n")
    problems = (
        [] if lines[-1] == b"" and len(output) <= MAX_OUTPUT_BYTES else ["its output was cut off"]
    )
    *said, last = lines[:-1] or [b""]
    ended = _end_problem(last, count=len(said), nonce=nonce)
    by_name: dict[str, Answer] = {}
    for line in said if not ended else [*said, last, lines[-1]]:
        problems += _take(line, asked, by_name)
    missing = [name for name in asked if name not in by_name]
    if missing:
        problems.append(
            f"{len(missing)} of {len(asked)} attempts did not answer, {missing[0]} among them"
        )
    return Answers(by_name=by_name, problem="; ".join(dict.fromkeys([*problems[:4], *ended])))


def _take(line: bytes, asked: Collection[str], into: dict[str, Answer]) -> list[str]:
    """Add a line's answer; of two for one name the worse stays. Says what is wrong with it."""
    name, answer = _line(line)
    if answer is None:
        return (
            [f"a line is malformed: {printable(line, max_chars=60)}"]
            if line and line.split(b"\t", 1)[0] != END
            else []
        )
    if name not in asked:
        return [f"nobody asked for {printable(name, max_chars=60)}"]
    known = into.get(name)
    into[name] = (
        answer
        if known is None
        else max(known, answer, key=lambda each: _BADNESS.index(each.outcome))
    )
    return [f"{name} answered twice"] if known is not None else []


def _line(line: bytes) -> tuple[str, Answer | None]:
    fields = line.split(b"\t", 2)
    if len(fields) != 3 or not fields[0].isascii():
        return "", None
    try:
        outcome = Outcome(fields[1].decode("ascii"))
    except ValueError:
        return "", None
    return fields[0].decode("ascii"), Answer(
        outcome=outcome, detail=printable(fields[2], max_chars=MAX_DETAIL_CHARS)
    )


def _end_problem(line: bytes, *, count: int, nonce: str) -> list[str]:
    """What is wrong with the last line; nothing when it ends this very run."""
    fields = line.split(b"\t")
    if len(fields) != 3 or fields[0] != END:
        return ["it did not say that it ended"]
    if not secrets.compare_digest(fields[2], nonce.encode()):
        return ["it ended with another nonce"]
    return (
        []
        if fields[1] == str(count).encode()
        else ["it counted its attempts otherwise than they came"]
    )
