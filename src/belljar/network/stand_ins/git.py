"""Git over HTTP (smart protocol, version 0) of bare repositories.

A push is recorded and lives in the range's memory, the directory never changes. A shallow clone
gets the whole history. Not: the dumb protocol, version 2 (clients fall back), partial clones.
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
from belljar.network.stand_ins import git_store, web
from belljar.network.stand_ins.files import Fault, Faults

MAX_REQUEST_BYTES: Final = 4 << 20  # Of a fetch: wants and haves, unpacked
# Held whole, so that it is on record before any of it is looked at.
MAX_PUSH_BYTES: Final = 32 << 20
# All repositories of a stand-in keep so much of pushes; beyond, a push is recorded and refused.
MAX_PUSHED_BYTES: Final = 64 << 20
_OBJECT_BYTES: Final = 200  # An empty one takes memory, too.
MAX_COMMANDS: Final = 1000
# Of a fetch: `git` sends some 16,000 haves at once, and a want for each reference.
MAX_LINES: Final = 50_000
_MAX_LISTED: Final = 50
MAX_KEPT_FILES: Final = 1000
# A side band's line has at most 65,520 bytes with its head.
_BAND_BYTES: Final = 65_000
_CAPABILITIES: Final = {
    "git-upload-pack": b"multi_ack_detailed side-band-64k ofs-delta shallow no-progress"
    b" allow-tip-sha1-in-want allow-reachable-sha1-in-want object-format=sha1",
    "git-receive-pack": b"report-status delete-refs ofs-delta object-format=sha1",
}
# As `git http-backend` sends it.
_NO_CACHE: Final = ("cache-control", "no-cache, max-age=0, must-revalidate")
# Old id, new id, reference (gitprotocol-pack(5)).
_COMMAND: Final = re.compile(rb"([0-9a-f]{40}) ([0-9a-f]{40}) (.+)", re.DOTALL)
_DEEPEN: Final = re.compile(rb"deepen [0-9]")


def check(_settings: Mapping[str, JsonValue], directory: Path | None) -> Faults:
    """Return what is wrong with a directory of bare repositories."""
    if directory is None:
        return (Fault("no directory of bare repositories is named: add `repositories: PATH`"),)
    found = git_store.find_repositories(directory)
    if not found:
        what = "there is no bare repository in it; make one by git clone --bare"
        return (Fault(what, file=str(directory)),)
    wrong = ((name, why) for name, why in found.items() if isinstance(why, str))
    return tuple(Fault(why, file=str(directory / name)) for name, why in wrong)


@dataclass(kw_only=True)
class _Push:
    """A push as far as it was readable; `refused` "": all of it."""

    commands: list[tuple[bytes, bytes, bytes]] = field(default_factory=list)
    pack: bytes = b""
    objects: dict[bytes, git_store.GitObject] = field(default_factory=dict)
    refused: str = ""


class _Git(web.Service):
    """A Git server. Memory: 64 MiB of pushed objects, one push at a time."""

    max_body_bytes, writes_wait, _kept_bytes = web.MAX_BODY_BYTES, True, 0

    @cached_property
    def _repositories(self) -> Mapping[str, git_store.Repository]:
        found, there = dict[str, git_store.Repository](), self.context.files
        for name, repository in git_store.find_repositories(there).items():
            if isinstance(repository, str):
                continue
            bare = name.removesuffix(".git")
            found[name] = repository
            found.setdefault(bare, repository)
            found.setdefault(f"{bare}.git", repository)
        return found

    async def handle(self, request: web.Request) -> web.Answer:
        name, _, service = request.path.strip("/").rpartition("/")
        if request.method in {"GET", "HEAD"} and request.path.endswith("/info/refs"):
            repository = self._repositories.get(name.removesuffix("/info"))
            return _advertisement(repository, dict(request.query).get("service", ""))
        is_known = service in _CAPABILITIES and name in self._repositories
        if request.method != "POST" or not is_known:
            return web.text_answer("Not Found", 404)
        headers = (("content-type", f"application/x-{service}-result"), _NO_CACHE)
        try:
            if service == "git-upload-pack":
                fetch = _Fetch(self._repositories[name], _unpacked(request, MAX_REQUEST_BYTES))
                return web.Answer(headers=headers, stream=fetch.answer)
            body = _unpacked(request, MAX_PUSH_BYTES)
            return web.Answer(headers=headers, body=await self._receive(request, name, body))
        except web.RefusedRequestError as error:
            if service == "git-receive-pack":
                await self._record(request, name, _Push(refused=str(error)))
            return web.text_answer("Bad Request", 400)

    async def _receive(self, request: web.Request, name: str, body: bytes) -> bytes:
        """Carry out a recorded push; return the client's report."""
        repository, push, stream = self._repositories[name], _Push(pack=body), io.BytesIO(body)
        try:
            for number, line in enumerate(Protocol(stream.read, len).read_pkt_seq()):
                match = _COMMAND.fullmatch(line.rstrip(b"\n").partition(b"\0")[0])
                if number >= MAX_COMMANDS or (match is None and not line.startswith(b"shallow ")):
                    raise GitProtocolError(f"a command that is none, or more than {MAX_COMMANDS}")
                push.commands += [(match[1], match[2], match[3])] if match else []
            push.pack = stream.read()
        except GitProtocolError as error:
            push = _Push(pack=body, refused=str(error) or "the commands have no end")
        if not push.commands and not push.refused:
            # git asks with nothing before it sends something large.
            return b""
        if push.pack and not push.refused:
            try:
                steps = git_store.read_pack(push.pack, repository.get, push.objects)
                for number, _ in enumerate(steps):
                    if number % 16 == 0:
                        await checkpoint()
            except ValueError as error:
                push.refused = str(error)
        await self._record(request, name, push)
        fresh = push.objects.keys() - repository.pushed
        size = sum(len(push.objects[each].content) + _OBJECT_BYTES for each in fresh)
        if not push.refused and self._kept_bytes + size > MAX_PUSHED_BYTES:
            push.refused = "the repository's quota is used up"
        if not push.refused:
            self._kept_bytes += size
            repository.pushed |= push.objects
        lines = [b"unpack " + (push.refused.encode() or b"ok") + b"\n"]
        for old, new, ref in push.commands:
            reason = "unpacker error" if push.refused else repository.update(ref, old, new)
            lines.append(b"ng %s %s\n" % (ref, reason.encode()) if reason else b"ok %s\n" % ref)
        return pkt_seq(*lines)

    async def _record(self, request: web.Request, name: str, push: _Push) -> None:
        """Record a push before its effect, even a refused one."""
        commits = [thing for thing in push.objects.values() if thing.kind == Commit.type_num]
        files = [thing.content for thing in push.objects.values() if thing.kind == Blob.type_num]
        commands = [[part.decode("utf-8", "replace") for part in each] for each in push.commands]
        updates: Iterator[JsonValue] = (
            {"ref": web.word(ref), "old": old, "new": new} for old, new, ref in commands
        )
        data: dict[str, JsonValue] = {
            "what": "push",
            "cell": request.cell,
            "repository": web.word(name),
            "updates": web.bounded(updates, 16 << 10),
            "update_count": len(push.commands),
            "commits": [commit.id.decode() for commit in commits[:_MAX_LISTED]],
            "object_count": len(push.objects),
            "refused": web.word(push.refused),
            **web.credentials(request.header("authorization")),
        }
        # The smallest files' contents are kept unpacked: keys and notes are small.
        smallest = sorted(files, key=len)[:MAX_KEPT_FILES]
        contents = {
            "pack": push.pack,
            "commits": b"\n\n".join(commit.content for commit in commits[:_MAX_LISTED]),
            "files": b"\n".join(smallest),
        }
        bodies = (body_of(name, data, web.MAX_KEPT_BODY_BYTES) for name, data in contents.items())
        await self.context.record("network.attempt", data, [x for x in bodies if x.total_bytes])


def _unpacked(request: web.Request, max_bytes: int) -> bytes:
    """Return a request's body, unpacked. Raises `RefusedRequestError`."""
    body = request.body
    if request.header("content-encoding").lower() in {"gzip", "x-gzip"}:
        inflater = zlib.decompressobj(wbits=31)
        try:
            body = inflater.decompress(body, max_bytes + 1)
        except zlib.error:
            raise web.RefusedRequestError("a body that is not packed as it says", 400) from None
        if not inflater.eof and len(body) <= max_bytes:
            raise web.RefusedRequestError("a body that ends too early", 400)
    if len(body) > max_bytes:
        raise web.RefusedRequestError(f"more than {max_bytes} bytes", 400)
    return body


def _advertisement(repository: git_store.Repository | None, service: str) -> web.Answer:
    """References, HEAD first; capabilities after the first."""
    if repository is None:
        return web.text_answer("Repository not found", 404)
    if service not in _CAPABILITIES:
        return web.text_answer("Please use a smart Git client", 403)
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
    lines = lines or [git_store.ZERO + b" capabilities^{}"]
    lines[0] += b"\0" + words
    body = pkt_seq(f"# service={service}\n".encode()) + pkt_seq(*(line + b"\n" for line in lines))
    kind = ("content-type", f"application/x-{service}-advertisement")
    return web.Answer(headers=(kind, _NO_CACHE), body=body)


class _Fetch:
    """One request of a negotiation. Unknown lines are ignored."""

    def __init__(self, repository: git_store.Repository, body: bytes) -> None:
        """Raises `RefusedRequestError`."""
        lines, protocol = list[bytes](), Protocol(io.BytesIO(body).read, len)
        try:
            while len(lines) <= MAX_LINES:
                lines.append((protocol.read_pkt_line() or b"").rstrip(b"\n"))
            raise web.RefusedRequestError(f"more than {MAX_LINES:,} lines", 400)
        except HangupException:
            pass
        except GitProtocolError as error:
            raise web.RefusedRequestError(str(error), 400) from None

        def named(word: bytes) -> list[bytes]:
            found = (line.removeprefix(word)[:40] for line in lines if line.startswith(word))
            return list(dict.fromkeys(found))

        self._repository, self._is_done = repository, b"done" in lines
        self._wants, self._haves = named(b"want "), named(b"have ")
        self._shallow, self._deepens = named(b"shallow "), any(map(_DEEPEN.match, lines))

    async def answer(self) -> AsyncGenerator[bytes]:
        """The negotiation's lines, and finally the pack."""
        repository = self._repository
        if unknown := next((want for want in self._wants if want not in repository), b""):
            yield pkt_line(b"ERR upload-pack: not our ref " + unknown + b"\n")
            return
        try:
            # The client's own border, made elsewhere: it ends where a depth is asked for.
            border = [each for each in self._shallow if self._deepens and each in repository]
            if self._deepens:
                yield pkt_seq(*(b"unshallow " + each for each in border))
            common = list[bytes]()
            for number, have in enumerate(self._haves):
                common += [have] if have in repository else []
                if number % 64 == 0:  # Each may be looked for on disk.
                    await checkpoint()
            # By `multi_ack_detailed`, which every git asks for. One common commit is enough to make
            # a right pack, if not the smallest.
            lines = [b"ACK " + have + b" common\n" for have in common]
            if common:
                lines.append(b"ACK " + common[-1] + (b"\n" if self._is_done else b" ready\n"))
            if (self._haves and not self._is_done) or (self._is_done and not common):
                lines.append(b"NAK\n")
            yield b"".join(map(pkt_line, lines))
            if self._is_done:
                # Below a border the client may lack anything, so it gets all.
                known = [] if self._shallow else common
                async for piece in self._pack(known, [*self._wants, *border]):
                    yield piece
        except git_store.MissingObjectError as error:
            # Band 3: an error that ends the fetch.
            yield pkt_line(b"\x03the repository lacks an object: " + bytes(error.args[0]))

    async def _pack(self, common: list[bytes], wants: list[bytes]) -> AsyncGenerator[bytes]:
        repository, seen = self._repository, set[bytes]()
        async for _ in repository.walk(common, seen):
            pass  # What the client has, and all below it, is not sent again.
        identities = [each async for each in repository.walk(wants, seen)]
        hasher = hashlib.sha1(usedforsecurity=False)
        for number, identity in enumerate([b"", *identities]):
            chunks = pack_header_chunks(len(identities))
            if number:
                kind, content = repository.must(identity)
                form = DEFAULT_OBJECT_FORMAT
                chunks = pack_object_chunks(kind, [content], form, compression_level=1)
            piece = b"".join(chunks)
            hasher.update(piece)
            for start in range(0, len(piece), _BAND_BYTES):
                yield pkt_line(b"\x01" + piece[start : start + _BAND_BYTES])  # Band 1: the pack
        yield pkt_seq(b"\x01" + hasher.digest())


make = _Git
