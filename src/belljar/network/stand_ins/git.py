"""Git over HTTP (smart protocol, version 0) of bare repositories.

A push is put on record and lives in the range's memory: later fetches in the range see it; the
directory never changes. A pack comes by `side-band-64k` alone, which every client takes. Not: the
dumb protocol, version 2 (clients fall back), partial clones, SHA-256 repositories.
"""

from __future__ import annotations

import hashlib
import io
import re
import zlib
from collections.abc import AsyncGenerator, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Final

from anyio.lowlevel import checkpoint
from dulwich.errors import GitProtocolError, HangupException
from dulwich.object_format import DEFAULT_OBJECT_FORMAT
from dulwich.objects import Blob, Commit
from dulwich.pack import pack_header_chunks, pack_object_chunks
from dulwich.protocol import Protocol, pkt_line, pkt_seq

from belljar.capture import body_of
from belljar.events import JsonValue
from belljar.network.gateway.context import MAX_BODY_BYTES, MAX_KEPT_BODY_BYTES, StandInContext
from belljar.network.stand_ins.faults import Fault, Faults
from belljar.network.stand_ins.git_store import (
    ID,
    ZERO,
    GitObject,
    MissingObjectError,
    PackError,
    Quota,
    Repository,
    find_repositories,
    read_pack,
    why_not,
)
from belljar.network.stand_ins.web import (
    Answer,
    App,
    Request,
    bounded,
    credentials,
    http_app,
    text_answer,
    word,
)

MAX_REQUEST_BYTES: Final = 4 << 20  # Of a fetch: wants and haves, unpacked
# Held whole, so that it is on record before any of it is looked at.
MAX_PUSH_BYTES: Final = 32 << 20
MAX_COMMANDS: Final = 1000
# Of a fetch: `git` sends some 16,000 haves at once, and a want for each reference.
MAX_LINES: Final = 50_000
_MAX_LISTED: Final = 50
# A side band's line has at most 65,520 bytes with its head.
_BAND_BYTES: Final = 65_000
# What git asks for by `--unshallow`.
_INFINITE_DEPTH: Final = 0x7FFF_FFFF
_CAPABILITIES: Final = {
    "git-upload-pack": b"multi_ack_detailed side-band-64k ofs-delta shallow no-progress"
    b" allow-tip-sha1-in-want allow-reachable-sha1-in-want object-format=sha1",
    "git-receive-pack": b"report-status delete-refs ofs-delta object-format=sha1",
}
# As `git http-backend` sends them.
_NO_CACHE: Final = (
    ("cache-control", "no-cache, max-age=0, must-revalidate"),
    ("pragma", "no-cache"),
)
# Old id, new id, reference (gitprotocol-pack(5)).
_COMMAND: Final = re.compile(rb"([0-9a-f]{40}) ([0-9a-f]{40}) (.+)", re.DOTALL)


class BadRequestError(ValueError):
    """A body that is not what its service takes, or longer."""

    def __init__(self, reason: str, status: int = 400) -> None:
        super().__init__(reason)
        self.status = status


def make(context: StandInContext) -> App:
    """Return the application, of the bare repositories in `context.files`.

    Memory: 64 MiB of pushed objects, one push at a time (32 MiB, unpacked 64), ids of a fetch.
    """
    git = _Git(context)
    return http_app(
        git.handle,
        max_body_bytes=MAX_BODY_BYTES,
        waits=lambda request: request.path.endswith("/git-receive-pack"),
    )


def check(_settings: Mapping[str, JsonValue], directory: Path | None) -> Faults:
    """Return what is wrong with a directory of bare repositories."""
    if directory is None:
        return (Fault("no directory of bare repositories is named: add `repositories: PATH`"),)
    if not directory.is_dir():
        return (Fault("no such directory", file=str(directory)),)
    repositories = [path for _, path in find_repositories(directory)]
    if not repositories:
        what = "there is no bare repository in it; make one by git clone --bare"
        return (Fault(what, file=str(directory)),)
    reasons = ((path, why_not(path)) for path in repositories)
    return tuple(Fault(reason, file=str(path)) for path, reason in reasons if reason)


@dataclass(kw_only=True)
class _Push:
    """A push as far as it could be read; `refused` "": all of it."""

    commands: list[tuple[bytes, bytes, bytes]] = field(default_factory=list)
    pack: bytes = b""
    objects: dict[bytes, GitObject] = field(default_factory=dict)
    refused: str = ""


class _Git:
    def __init__(self, context: StandInContext) -> None:
        self._context = context

    @cached_property
    def _repositories(self) -> Mapping[str, Repository]:
        quota, there = Quota(), find_repositories(self._context.files)
        found = {n: Repository.opened(path, quota) for n, path in there if not why_not(path)}
        for name, repository in list(found.items()):
            bare = name.removesuffix(".git")
            found.setdefault(bare, repository)
            found.setdefault(f"{bare}.git", repository)
        return found

    async def handle(self, request: Request) -> Answer:
        name, _, service = request.path.strip("/").rpartition("/")
        if request.method in {"GET", "HEAD"} and request.path.endswith("/info/refs"):
            repository = self._repositories.get(name.removesuffix("/info"))
            return _advertisement(repository, request.parameter("service"))
        is_known = service in _CAPABILITIES and name in self._repositories
        if request.method != "POST" or not is_known:
            return text_answer("Not Found", 404)
        headers = (("content-type", f"application/x-{service}-result"), *_NO_CACHE)
        try:
            if service == "git-upload-pack":
                fetch = _Fetch(self._repositories[name], _unpacked(request, MAX_REQUEST_BYTES))
                return Answer(headers=headers, stream=fetch.answer)
            body = _unpacked(request, MAX_PUSH_BYTES)
            return Answer(headers=headers, body=await self._receive(request, name, body))
        except BadRequestError as error:
            if service == "git-receive-pack":
                await self._record(request, name, _Push(refused=str(error)))
            return text_answer("Bad Request", error.status)

    async def _receive(self, request: Request, name: str, body: bytes) -> bytes:
        """Carry out a push, after it is on record. Returns the report for the client."""
        repository, push = self._repositories[name], _parse_push(body)
        if not push.commands and not push.refused:
            # git asks with nothing before it sends something large.
            return b""
        if push.pack and not push.refused:
            try:
                steps = read_pack(push.pack, repository.get, push.objects)
                for number, _ in enumerate(steps):
                    if number % 16 == 0:
                        await checkpoint()
            except PackError as error:
                push.refused = str(error)
        await self._record(request, name, push)
        if not push.refused and not repository.add(push.objects):
            push.refused = "the repository's quota is used up"
        lines = [b"unpack " + (push.refused.encode() or b"ok") + b"\n"]
        for old, new, ref in push.commands:
            reason = "unpacker error" if push.refused else repository.update(ref, old, new)
            lines.append(b"ng %s %s\n" % (ref, reason.encode()) if reason else b"ok %s\n" % ref)
        return pkt_seq(*lines)

    async def _record(self, request: Request, name: str, push: _Push) -> None:
        """Put a push on record before it has an effect; also one that is refused."""
        commits = [thing for thing in push.objects.values() if thing.kind == Commit.type_num]
        files = [thing.content for thing in push.objects.values() if thing.kind == Blob.type_num]
        commands = [[part.decode("utf-8", "replace") for part in each] for each in push.commands]
        updates: Iterator[JsonValue] = (
            {"ref": word(ref), "old": old, "new": new, "deletes": new == ZERO.decode()}
            for old, new, ref in commands
        )
        data: dict[str, JsonValue] = {
            "what": "push",
            "cell": request.cell,
            "repository": word(name),
            "updates": bounded(updates, 16 << 10),
            "update_count": len(push.commands),
            "commits": [commit.id.decode() for commit in commits[:_MAX_LISTED]],
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
            if size > MAX_KEPT_BODY_BYTES:
                break
        texts = [commit.content for commit in commits[:_MAX_LISTED]]
        bodies = [
            body_of("pack", push.pack, MAX_KEPT_BODY_BYTES),
            body_of("commits", b"\n\n".join(texts), MAX_KEPT_BODY_BYTES),
            body_of("files", b"\n".join(smallest), MAX_KEPT_BODY_BYTES),
        ]
        kept = [body for body in bodies if body.total_bytes]
        await self._context.record("network.attempt", data, kept)


def _unpacked(request: Request, max_bytes: int) -> bytes:
    """Return a request's body, unpacked. Raises `BadRequestError`."""
    body = request.body
    if request.header("content-encoding").lower() in {"gzip", "x-gzip"}:
        inflater = zlib.decompressobj(wbits=31)
        try:
            body = inflater.decompress(body, max_bytes + 1)
        except zlib.error:
            raise BadRequestError("a body that is not packed as it says") from None
        if not inflater.eof and len(body) <= max_bytes:
            raise BadRequestError("a body that ends too early")
    if len(body) > max_bytes:
        raise BadRequestError(f"more than {max_bytes} bytes", 413)
    return body


def _advertisement(repository: Repository | None, service: str) -> Answer:
    """References, HEAD first; capabilities after the first."""
    if repository is None:
        return text_answer("Repository not found", 404)
    if service not in _CAPABILITIES:
        return text_answer("Please use a smart Git client", 403)
    words, lines = _CAPABILITIES[service], list[bytes]()
    fetches = service == "git-upload-pack"
    if fetches and repository.head in repository.refs:
        lines.append(repository.refs[repository.head] + b" HEAD")
        words += b" symref=HEAD:" + repository.head
    for name, identity in repository.refs.items():
        lines.append(identity + b" " + name)
        if fetches and name.startswith(b"refs/tags/"):
            final = repository.peel(identity)
            lines += [final + b" " + name + b"^{}"] if final != identity else []
    lines = lines or [ZERO + b" capabilities^{}"]
    lines[0] += b"\0" + words
    body = pkt_seq(f"# service={service}\n".encode()) + pkt_seq(*(line + b"\n" for line in lines))
    kind = ("content-type", f"application/x-{service}-advertisement")
    return Answer(headers=(kind, *_NO_CACHE), body=body)


class _Fetch:
    """One request of a negotiation. Unknown lines are ignored, as by other servers."""

    def __init__(self, repository: Repository, body: bytes) -> None:
        """Raises `BadRequestError`."""
        self._repository = repository
        self._wants, self._haves = dict[bytes, None](), dict[bytes, None]()
        self._shallow = set[bytes]()
        self._depth, self._is_done = 0, False
        protocol = Protocol(io.BytesIO(body).read, len)
        has_wants = False
        try:
            for _ in range(MAX_LINES):
                line = protocol.read_pkt_line()
                has_wants |= line is None
                text = (line or b"").rstrip(b"\n")
                if not has_wants:
                    self._read_want(text)
                elif text.startswith(b"have "):
                    self._haves[_identity(text[5:])] = None
                self._is_done |= has_wants and text == b"done"
            raise BadRequestError(f"more than {MAX_LINES:,} lines")
        except HangupException:
            return
        except GitProtocolError as error:
            raise BadRequestError(str(error)) from None

    def _read_want(self, line: bytes) -> None:
        key, _, rest = line.partition(b" ")
        if key == b"want":
            self._wants[_identity(rest.partition(b" ")[0])] = None
        elif key == b"shallow":
            self._shallow.add(_identity(rest))
        elif key == b"deepen":
            if not rest.isdigit() or len(rest) > 10:
                raise BadRequestError("a depth that is no number")
            self._depth = min(int(rest), _INFINITE_DEPTH)

    async def answer(self) -> AsyncGenerator[bytes]:
        """The lines of the negotiation, and at its end the pack."""
        repository = self._repository
        for number, want in enumerate(self._wants):
            if want not in repository:
                yield pkt_line(b"ERR upload-pack: not our ref " + want + b"\n")
                return
            if number % 64 == 0:
                await checkpoint()
        try:
            # Without a depth the client's own border stays.
            border, unshallow = self._shallow, set[bytes]()
            if self._depth:
                starts = [repository.peel(want) for want in self._wants]
                found, border = await repository.depths(starts, self._depth)
                unshallow = (self._shallow & found) - border
                lines = [b"shallow " + each for each in sorted(border - self._shallow)]
                yield pkt_seq(*lines, *(b"unshallow " + each for each in sorted(unshallow)))
            common = []
            for number, have in enumerate(self._haves):
                if have in repository:
                    common.append(have)
                if number % 64 == 0:
                    await checkpoint()
            yield self._acknowledged(common)
            if self._is_done:
                deeper = [older for edge in unshallow for older in repository.parents(edge)]
                async for piece in self._pack(common, [*self._wants, *deeper], border):
                    yield piece
        except MissingObjectError as error:
            # Band 3: an error that ends the fetch.
            yield pkt_line(b"\x03the repository lacks an object: " + bytes(error.args[0]))

    def _acknowledged(self, common: list[bytes]) -> bytes:
        # By `multi_ack_detailed`, which every git of the last fifteen years asks for.
        lines = [b"ACK " + have + b" common\n" for have in common]
        if self._is_done:
            lines.append(b"ACK " + common[-1] + b"\n" if common else b"NAK\n")
        elif self._haves:
            # One common commit is enough to make a right pack, if not the smallest.
            lines += [b"ACK " + common[-1] + b" ready\n"] if common else []
            lines.append(b"NAK\n")
        return b"".join(map(pkt_line, lines))

    async def _pack(
        self, common: list[bytes], wants: list[bytes], border: set[bytes]
    ) -> AsyncGenerator[bytes]:
        repository, seen = self._repository, set[bytes]()
        async for _ in repository.walk(common, seen, self._shallow):
            pass  # What the client has, and all below it, is not sent again.
        identities = [each async for each in repository.walk(wants, seen, border)]
        hasher = hashlib.sha1(usedforsecurity=False)
        for number, identity in enumerate([b"", *identities]):
            chunks = pack_header_chunks(len(identities))
            if number:
                kind, content = repository.must(identity)
                chunks = pack_object_chunks(
                    kind, [content], DEFAULT_OBJECT_FORMAT, compression_level=1
                )
            piece = b"".join(chunks)
            hasher.update(piece)
            for start in range(0, len(piece), _BAND_BYTES):
                yield pkt_line(b"\x01" + piece[start : start + _BAND_BYTES])  # Band 1: the pack
        yield pkt_seq(b"\x01" + hasher.digest())


def _identity(text: bytes) -> bytes:
    if ID.fullmatch(text) is None:
        raise BadRequestError("an object's id that is none")
    return text


def _parse_push(body: bytes) -> _Push:
    """Commands and pack of a request's body."""
    stream = io.BytesIO(body)
    push = _Push()
    try:
        for number, line in enumerate(Protocol(stream.read, len).read_pkt_seq()):
            command = line.rstrip(b"\n").partition(b"\0")[0]
            if line.startswith(b"shallow ") and number < MAX_COMMANDS:
                continue
            match = _COMMAND.fullmatch(command)
            if match is None or number >= MAX_COMMANDS:
                refused = f"a command that is none, or more than {MAX_COMMANDS} at once"
                return _Push(pack=body, refused=refused)
            push.commands.append((match[1], match[2], match[3]))
    except GitProtocolError as error:
        return _Push(pack=body, refused=str(error) or "the commands have no end")
    push.pack = stream.read()
    return push
