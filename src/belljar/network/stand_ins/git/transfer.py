"""Fetching and pushing (gitprotocol-common, -http, -pack(5))."""

from __future__ import annotations

import hashlib
import re
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import Final

from anyio.lowlevel import checkpoint

from belljar.capture import body_of
from belljar.events import JsonValue
from belljar.network.gateway.context import MAX_KEPT_BODY_BYTES, StandInContext
from belljar.network.stand_ins.git.packs import (
    BLOB,
    COMMIT,
    TAG,
    GitObject,
    PackError,
    PackReader,
    pack_entry,
    pack_header,
)
from belljar.network.stand_ins.git.repository import (
    ID,
    ZERO,
    MissingObjectError,
    Repository,
    ancestors,
    depths,
    missing,
    parents,
    peel,
)
from belljar.network.stand_ins.web import Request, bounded, credentials, word

FLUSH: Final = b"0000"
MAX_CONTENT_BYTES: Final = 65_516
_LENGTH: Final = re.compile(rb"[0-9a-fA-F]{4}")


class PktError(ValueError):
    """No packet lines, or not a request's."""


def pkt(content: bytes) -> bytes:
    """One line. Its content has at most `MAX_CONTENT_BYTES`."""
    if len(content) > MAX_CONTENT_BYTES:
        raise PktError(f"a packet of {len(content)} bytes")
    return b"%04x" % (len(content) + 4) + content


def section(data: bytes, start: int = 0) -> tuple[list[bytes], int]:
    """Lines up to the next flush, and its end. Raises `PktError`."""
    lines: list[bytes] = []
    for content, after in packets(data, start):
        if content is None:
            return lines, after
        lines.append(content)
    raise PktError("a section without an end")


def packets(data: bytes, start: int = 0) -> Iterator[tuple[bytes | None, int]]:
    """Content (`None`: a flush) and its end. Raises `PktError`."""
    while start < len(data):
        head = data[start : start + 4]
        if _LENGTH.fullmatch(head) is None:
            raise PktError("a length that is no number")
        length = int(head, 16)
        if length == 0:
            start += 4
            yield None, start
            continue
        if length < 4 or start + length > len(data):
            raise PktError("a length beyond the end")
        content, start = data[start + 4 : start + length], start + length
        yield content.removesuffix(b"\n"), start


UPLOAD_CAPABILITIES: Final = (
    b"multi_ack_detailed side-band-64k ofs-delta shallow no-progress include-tag "
    b"allow-tip-sha1-in-want allow-reachable-sha1-in-want object-format=sha1"
)
_BAND_BYTES: Final = 65_000
_INFINITE_DEPTH: Final = 0x7FFF_FFFF


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A request for a pack."""

    wants: tuple[bytes, ...]
    haves: tuple[bytes, ...]
    capabilities: frozenset[bytes]
    shallow: frozenset[bytes] = frozenset()
    depth: int = 0
    done: bool = False


def parse_request(data: bytes) -> Asked:
    """Unknown lines are ignored, as by other servers. Raises `PktError`."""
    first, after = section(data)
    wants, shallow, depth = list[bytes](), set[bytes](), 0
    capabilities: frozenset[bytes] = frozenset()
    for line in first:
        key, _, rest = line.partition(b" ")
        if key == b"want":
            identity, _, words = rest.partition(b" ")
            capabilities = capabilities or frozenset(words.split())
            wants.append(_identity(identity))
        elif key == b"shallow":
            shallow.add(_identity(rest))
        elif key == b"deepen":
            if not rest.isdigit() or len(rest) > 10:
                raise PktError("a depth that is no number")
            depth = min(int(rest), _INFINITE_DEPTH)
    haves, done = list[bytes](), False
    for content, _ in packets(data, after):
        if content == b"done":
            done = True
        elif content is not None and content.startswith(b"have "):
            haves.append(_identity(content[5:]))
    return Asked(
        wants=tuple(wants),
        haves=tuple(haves),
        capabilities=capabilities,
        shallow=frozenset(shallow),
        depth=depth,
        done=done,
    )


def _identity(text: bytes) -> bytes:
    if ID.fullmatch(text) is None:
        raise PktError("an object's id that is none")
    return text


def advertisement(repository: Repository, capabilities: bytes, *, peeled: bool) -> bytes:
    """References, HEAD first; capabilities after the first."""
    refs = list(repository.refs.items())
    words = capabilities
    if peeled and repository.head in repository.refs:
        refs.insert(0, (b"HEAD", repository.refs[repository.head]))
        words += b" symref=HEAD:" + repository.head
    if not refs:
        return pkt(ZERO + b" capabilities^{}\0" + words + b"\n") + FLUSH
    lines = []
    for name, identity in refs:
        lines.append(identity + b" " + name)
        if peeled and name.startswith(b"refs/tags/"):
            final = peel(repository, identity)
            lines += [final + b" " + name + b"^{}"] if final != identity else []
    lines[0] += b"\0" + words
    return b"".join(pkt(line + b"\n") for line in lines) + FLUSH


async def send_pack(repository: Repository, asked: Asked) -> AsyncIterator[bytes]:
    """The answer to one request of a negotiation."""
    unknown = next((want for want in asked.wants if repository.get(want) is None), None)
    if unknown is not None:
        yield pkt(b"ERR upload-pack: not our ref " + unknown + b"\n")
        return
    # Without a depth the client's own border stays.
    border, unshallow = set(asked.shallow), set[bytes]()
    if asked.depth:
        starts = [peel(repository, want) for want in asked.wants]
        found, border = await depths(repository, starts, asked.depth)
        unshallow = (set(asked.shallow) & found) - border
        shallow = sorted(border - asked.shallow)
        lines = [b"shallow " + each for each in shallow]
        lines += [b"unshallow " + each for each in sorted(unshallow)]
        yield b"".join(map(pkt, lines)) + FLUSH
    common = [have for have in asked.haves if repository.get(have) is not None]
    yield _acknowledged(asked, common)
    if not asked.done:
        return
    try:
        deeper = [older for edge in unshallow for older in parents(repository.must(edge))]
        wants = [*asked.wants, *deeper]
        async for piece in _pack(repository, asked, common, wants, border):
            yield piece
    except MissingObjectError as error:
        if _banded(asked):
            yield _band(3, b"the repository lacks an object: " + bytes(error.args[0]))


def _acknowledged(asked: Asked, common: list[bytes]) -> bytes:
    detailed = b"multi_ack_detailed" in asked.capabilities
    lines = [b"ACK " + have + b" common\n" for have in common] if detailed else []
    if asked.done:
        lines.append(b"ACK " + common[-1] + b"\n" if common else b"NAK\n")
    elif asked.haves and detailed:
        # One common commit is enough to make a right pack, if not the smallest.
        lines += [b"ACK " + common[-1] + b" ready\n"] if common else []
        lines.append(b"NAK\n")
    elif asked.haves:
        lines.append(b"ACK " + common[0] + b"\n" if common else b"NAK\n")
    return b"".join(map(pkt, lines))


async def _pack(
    repository: Repository,
    asked: Asked,
    common: list[bytes],
    wants: list[bytes],
    border: set[bytes],
) -> AsyncIterator[bytes]:
    known = await ancestors(repository, (peel(repository, have) for have in common), asked.shallow)
    identities = [each async for each in missing(repository, wants, known, border)]
    if b"include-tag" in asked.capabilities:
        sent = set(identities)
        tags = dict.fromkeys(
            each for name, each in repository.refs.items() if name.startswith(b"refs/tags/")
        )
        for each in tags:
            tag = repository.get(each)
            if each not in sent and tag and tag.kind == TAG and peel(repository, each) in sent:
                identities.append(each)
    hasher = hashlib.sha1(usedforsecurity=False)
    band = _banded(asked)
    for number, identity in enumerate([b"", *identities]):
        piece = pack_entry(repository.must(identity)) if number else pack_header(len(identities))
        hasher.update(piece)
        for start in range(0, len(piece), _BAND_BYTES):
            part = piece[start : start + _BAND_BYTES]
            yield _band(1, part) if band else part
    yield _band(1, hasher.digest()) + FLUSH if band else hasher.digest()


def _banded(asked: Asked) -> bool:
    return b"side-band-64k" in asked.capabilities


def _band(number: int, content: bytes) -> bytes:
    return pkt(bytes([number]) + content)


RECEIVE_CAPABILITIES: Final = b"report-status delete-refs ofs-delta object-format=sha1"
MAX_COMMANDS: Final = 1000
_LISTED: Final = 50
_COMMAND: Final = re.compile(rb"([0-9a-f]{40}) ([0-9a-f]{40}) (.+)", re.DOTALL)


@dataclass(kw_only=True)
class Push:
    """As far as it could be read; `refused` "": all of it."""

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
    """Carry out a push, after it is on record. Returns the report for the client."""
    try:
        push = parse_push(data)
    except PktError as error:
        push = Push(pack=data, refused=str(error))
    if not push.commands and not push.refused:
        # git asks with nothing before it sends something large.
        return b""
    if push.pack and not push.refused:
        reader = PackReader(data=push.pack, lookup=repository.get)
        try:
            for number, _ in enumerate(reader.steps()):
                if number % 16 == 0:
                    await checkpoint()
        except PackError as error:
            push.refused = str(error)
        push.objects = reader.objects
    await record_push(context, request, name, push)
    if not push.refused and not repository.add(push.objects):
        push.refused = "the repository's quota is used up"
    if not push.wants_report:
        return b""
    lines = [b"unpack " + (push.refused.encode() or b"ok") + b"\n"]
    for old, new, ref in push.commands:
        reason = "unpacker error" if push.refused else repository.update(ref, old, new)
        lines.append(b"ng %s %s\n" % (ref, reason.encode()) if reason else b"ok %s\n" % ref)
    return b"".join(map(pkt, lines)) + FLUSH


async def record_push(context: StandInContext, request: Request, name: str, push: Push) -> None:
    """Before it has an effect; also one that is refused."""
    commits = [thing for thing in push.objects.values() if thing.kind == COMMIT]
    files = [thing.content for thing in push.objects.values() if thing.kind == BLOB]
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
        "file_count": len(files),
        "object_count": len(push.objects),
        "refused": word(push.refused),
        **credentials(request.header("authorization")),
    }
    # The smallest files' contents are kept unpacked: keys and notes are small.
    smallest, size = list[bytes](), 0
    for content in sorted(files, key=len):
        smallest.append(content)
        size += len(content)
        if size > 64 << 10:
            break
    bodies = [
        body_of("pack", push.pack, MAX_KEPT_BODY_BYTES),
        body_of("commits", b"\n\n".join(c.content for c in commits[:_LISTED]), MAX_KEPT_BODY_BYTES),
        body_of("files", b"\n".join(smallest), MAX_KEPT_BODY_BYTES),
    ]
    await context.record("network.attempt", data, [body for body in bodies if body.total_bytes])


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")
