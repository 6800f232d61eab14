"""Pushing (git-receive-pack): read with bounds, put on record, and carried out in the range's
memory alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from anyio.lowlevel import checkpoint

from belljar.events import JsonValue
from belljar.network.gateway.context import StandInContext, kept_body
from belljar.network.stand_ins.git.packs import BLOB, COMMIT, GitObject, PackError, PackReader
from belljar.network.stand_ins.git.pkt import FLUSH, PktError, pkt, section
from belljar.network.stand_ins.git.repository import ZERO, Repository
from belljar.network.stand_ins.records import bounded, credentials, word
from belljar.network.stand_ins.web import Request

CAPABILITIES: Final = b"report-status delete-refs ofs-delta object-format=sha1"
MAX_COMMANDS: Final = 1000
_LISTED: Final = 50
_COMMAND: Final = re.compile(rb"([0-9a-f]{40}) ([0-9a-f]{40}) (.+)", re.DOTALL)


@dataclass(kw_only=True)
class Push:
    """A push as far as it could be read. `refused` is "" when all of it could."""

    commands: list[tuple[bytes, bytes, bytes]] = field(default_factory=list)
    pack: bytes = b""
    objects: dict[bytes, GitObject] = field(default_factory=dict)
    wants_report: bool = False
    refused: str = ""


def parse_push(data: bytes) -> Push:
    """Commands and pack of a request's body. Raises `PktError`."""
    lines, after = section(data)
    if len(lines) > MAX_COMMANDS:
        raise PktError(f"more than {MAX_COMMANDS} references at once")
    push = Push(pack=data[after:])
    for number, line in enumerate(lines):
        command, _, words = line.partition(b"\0")
        if line.startswith(b"shallow "):
            continue
        match = _COMMAND.fullmatch(command)
        if match is None:
            raise PktError("a command that is none")
        push.wants_report |= number == 0 and b"report-status" in words.split()
        push.commands.append((match[1], match[2], match[3]))
    return push


async def receive(
    context: StandInContext, request: Request, name: str, repository: Repository, data: bytes
) -> bytes:
    """Carry out a push, after it is on record; the report for the client."""
    try:
        push = parse_push(data)
    except PktError as error:
        push = Push(pack=data, refused=str(error))
    if not push.commands and not push.refused:
        # git asks with nothing before it sends something large.
        return b""
    await _unpack(repository, push)
    await _record(context, request, name, push)
    if not push.refused and not repository.add(push.objects):
        push.refused = "the repository's quota is used up"
    return _report(repository, push) if push.wants_report else b""


async def _unpack(repository: Repository, push: Push) -> None:
    if push.refused or not push.pack:
        return
    reader = PackReader(data=push.pack, lookup=repository.get)
    try:
        for number, _ in enumerate(reader.steps()):
            if number % 16 == 0:
                await checkpoint()
    except PackError as error:
        push.refused = str(error)
    push.objects = reader.objects


def _report(repository: Repository, push: Push) -> bytes:
    lines = [b"unpack " + (push.refused.encode() or b"ok") + b"\n"]
    for old, new, ref in push.commands:
        reason = "unpacker error" if push.refused else repository.update(ref, old, new)
        lines.append(
            b"ng " + ref + b" " + reason.encode() + b"\n" if reason else b"ok " + ref + b"\n"
        )
    return b"".join(map(pkt, lines)) + FLUSH


async def refuse(context: StandInContext, request: Request, name: str, reason: str) -> None:
    """Put a push on record that was not read to its end."""
    await _record(context, request, name, Push(refused=reason))


async def _record(context: StandInContext, request: Request, name: str, push: Push) -> None:
    commits = [thing for thing in push.objects.values() if thing.kind == COMMIT]
    updates: Iterator[JsonValue] = (
        {"ref": word(_text(ref)), "old": _text(old), "new": _text(new), "deletes": new == ZERO}
        for old, new, ref in push.commands
    )
    data: dict[str, JsonValue] = {
        "what": "push",
        "cell": request.cell,
        "repository": word(name),
        "updates": bounded(updates, 16 << 10),
        "update_count": len(push.commands),
        "commits": [_text(commit.id) for commit in commits[:_LISTED]],
        "commit_count": len(commits),
        "file_count": sum(thing.kind == BLOB for thing in push.objects.values()),
        "object_count": len(push.objects),
        "refused": word(push.refused),
        **credentials(request.header("authorization")),
    }
    said = b"\n\n".join(commit.content for commit in commits[:_LISTED])
    files = b"\n".join(thing.content for thing in _smallest_files(push))
    bodies = [kept_body("pack", push.pack), kept_body("commits", said), kept_body("files", files)]
    await context.record("network.attempt", data, [body for body in bodies if body.total_bytes])


def _smallest_files(push: Push) -> list[GitObject]:
    """Files whose contents are kept unpacked, the smallest first, so that many are there: keys and
    notes are small.
    """
    files = sorted(
        (thing for thing in push.objects.values() if thing.kind == BLOB),
        key=lambda thing: len(thing.content),
    )
    kept, size = list[GitObject](), 0
    for thing in files:
        size += len(thing.content)
        kept.append(thing)
        if size > 64 << 10:
            break
    return kept


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")
