"""Git over HTTP (smart protocol 0)."""

from __future__ import annotations

import hashlib
import io
import re
import weakref
import zlib
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Final, NamedTuple

from anyio.lowlevel import checkpoint
from dulwich.errors import ApplyDeltaError, GitProtocolError, HangupException
from dulwich.object_format import DEFAULT_OBJECT_FORMAT
from dulwich.object_store import DiskObjectStore
from dulwich.objects import S_ISGITLINK, Blob, Commit, Tag, Tree, object_header, parse_tree
from dulwich.pack import (
    DELTA_TYPES,
    OFS_DELTA,
    apply_delta,
    pack_header_chunks,
    pack_object_chunks,
    unpack_object_at,
)
from dulwich.protocol import Protocol, pkt_line, pkt_seq
from dulwich.refs import DiskRefsContainer

from belljar.events import JsonValue
from belljar.network.stand_ins import web
from belljar.network.stand_ins.files import Fault, Faults

MAX_REQUEST_BYTES: Final = 4 << 20  # Of a fetch: wants and haves, unpacked
MAX_PUSH_BYTES: Final = 32 << 20  # Held whole, so that it is on record first.
MAX_COMMANDS: Final = 1000
MAX_LINES: Final = 50_000  # `git` sends some 16,000 haves at once, and its wants.
MAX_OBJECTS: Final = 50_000  # An empty one costs some hundred bytes, too.
MAX_UNPACKED_BYTES: Final = 64 << 20  # All objects of a pack together, deltas carried out
_MAX_LISTED: Final = 50
MAX_KEPT_FILES: Final = 1000
_BAND_BYTES: Final = 65_000  # A side band's line has at most 65,520 bytes with its head.
_ZERO: Final = b"0" * 40  # No object: its reference is made or removed
_CAPABILITIES: Final = {
    "git-upload-pack": b"side-band-64k ofs-delta shallow no-progress"
    b" allow-tip-sha1-in-want allow-reachable-sha1-in-want object-format=sha1",
    "git-receive-pack": b"report-status delete-refs ofs-delta object-format=sha1",
}
# As `git http-backend` sends it.
_NO_CACHE: Final = ("cache-control", "no-cache, max-age=0, must-revalidate")
_ID: Final = re.compile(rb"[0-9a-f]{40}")
# Old id, new id, reference (gitprotocol-pack(5)).
_COMMAND: Final = re.compile(rb"([0-9a-f]{40}) ([0-9a-f]{40}) (.+)", re.DOTALL)
# git writes the lines of a commit and of a tag in this order (git-fsck(1) has others as broken).
_COMMIT: Final = re.compile(rb"tree ([0-9a-f]{40})\n((?:parent [0-9a-f]{40}\n)*)")
_TAG: Final = re.compile(rb"object ([0-9a-f]{40})\n")
# Longer numbers have no meaning, and dulwich reads them without an end.
_NUMBER: Final = re.compile(rb"[\x80-\xff]{0,8}[\x00-\x7f]")


# How a guest's pack is refused.
BROKEN: Final = (AssertionError, ApplyDeltaError, ValueError, zlib.error)


class GitObject(NamedTuple):
    kind: int
    content: bytes

    @property
    def id(self) -> bytes:
        whole = object_header(self.kind, len(self.content)) + self.content
        return hashlib.sha1(whole, usedforsecurity=False).hexdigest().encode()


class Repository:
    """An author's bare repository. Raises `ValueError`."""

    def __init__(self, path: Path) -> None:
        if any(below.is_symlink() for below in path.rglob("*")):
            raise ValueError("it has a symbolic link, which is not followed; put the file there")
        if (path / "objects/info/alternates").exists():
            borrowing = "it borrows objects (objects/info/alternates)"
            raise ValueError(f"{borrowing}: git repack -a, and remove the file")
        container = DiskRefsContainer(str(path))
        names = sorted(name for name in container.allkeys() if name.startswith(b"refs/"))
        found = ((bytes(name), container.follow(name)[1]) for name in names)
        # Reference → id, without HEAD. `head`: the reference HEAD points to.
        self.refs = {name: bytes(at) for name, at in found if at}
        self.head = (path / "HEAD").read_bytes()[:300].strip().removeprefix(b"ref: ")
        self._store: Any = DiskObjectStore(str(path / "objects"))
        # An application is not notified of its end; its files are closed with it.
        weakref.finalize(self, self._store.close)
        for name, at in self.refs.items():
            if not self.get(at):
                named = name.decode("utf-8", "replace")
                raise ValueError(f"its reference {named} leads to no object")

    def __contains__(self, identity: bytes) -> bool:
        return _ID.fullmatch(identity) is not None and identity in self._store

    def get(self, identity: bytes) -> GitObject | None:
        if identity not in self:
            return None
        kind, content = self._store.get_raw(identity)
        return GitObject(kind, bytes(content))

    def links(self, identity: bytes) -> list[bytes]:
        """Return the ids that an object names. Raises `KeyError`."""
        kind, content = self._store.get_raw(identity)
        if kind == Tree.type_num:
            # A submodule's commit is another repository's.
            listed = parse_tree(content, 20)
            return [bytes(sha) for _, mode, sha in listed if not S_ISGITLINK(mode)]
        # By their first lines alone: dulwich reads a commit of 64 MiB for a quarter of a minute.
        if kind == Commit.type_num and (found := _COMMIT.match(content)):
            return [found[1], *_ID.findall(found[2])]
        return [found[1]] if kind == Tag.type_num and (found := _TAG.match(content)) else []

    async def walk(self, starts: Iterable[bytes]) -> list[bytes]:
        seen, todo = dict[bytes, None](), [*starts]
        while todo:
            if (identity := todo.pop()) not in seen:
                seen[identity] = None
                todo += self.links(identity)
                await checkpoint()
        return list(seen)


def find_repositories(directory: Path) -> dict[str, Path]:
    found = dict[str, Path]()
    for path in sorted([*directory.glob("*"), *directory.glob("*/*")]):
        is_bare = all((path / name).is_dir() for name in ("objects", "refs"))
        is_link = path.is_symlink() or path.parent.is_symlink()
        if is_bare and not is_link and (path / "HEAD").is_file():
            found[str(path.relative_to(directory))] = path
    return found


def check(_settings: Mapping[str, JsonValue], directory: Path | None) -> Faults:
    if directory is None:
        return (Fault("no directory of bare repositories is named: add `repositories: PATH`"),)
    faults, found = list[Fault](), find_repositories(directory)
    for path in found.values():
        try:
            Repository(path)
        except Exception as error:  # noqa: BLE001 - whatever the library says of a broken one
            faults.append(Fault(str(error) or "it can't be read", file=str(path)))
    if not found:
        what = "there is no bare repository in it; make one by git clone --bare"
        faults.append(Fault(what, file=str(directory)))
    return tuple(faults)


@dataclass(kw_only=True)
class _Push:
    commands: list[tuple[bytes, bytes, bytes]] = field(default_factory=list)
    pack: bytes = b""
    objects: dict[bytes, GitObject] = field(default_factory=dict)
    refused: str = ""


class _Git(web.HttpService):
    max_body_bytes, writes_wait = web.MAX_BODY_BYTES, True

    @cached_property
    def _repositories(self) -> Mapping[str, Repository]:
        found = dict[str, Repository]()
        for name, path in find_repositories(self.context.files).items():
            bare, repository = name.removesuffix(".git"), Repository(path)
            found[name] = repository
            found.setdefault(bare, repository)
            found.setdefault(f"{bare}.git", repository)
        return found

    async def handle(self, request: web.Request) -> web.HttpAnswer:
        name, _, service = request.path.strip("/").rpartition("/")
        if request.method in {"GET", "HEAD"} and request.path.endswith("/info/refs"):
            repository = self._repositories.get(name.removesuffix("/info"))
            return _advertisement(repository, dict(request.query).get("service", ""))
        is_known = service in _CAPABILITIES and name in self._repositories
        if request.method != "POST" or not is_known:
            return web.text_answer("Not Found", 404)
        headers = (("content-type", f"application/x-{service}-result"), _NO_CACHE)
        repository = self._repositories[name]
        try:
            if service == "git-upload-pack":
                lines = _lines_of(_unpacked(request, MAX_REQUEST_BYTES))
                return web.HttpAnswer(headers=headers, stream=lambda: _fetched(repository, lines))
            push = await _read_push(repository, _unpacked(request, MAX_PUSH_BYTES))
        except (ValueError, GitProtocolError, zlib.error) as error:
            if service == "git-receive-pack":
                await self._record(request, name, _Push(refused=str(error)))
            return web.text_answer("Bad Request", 400)
        if not push.commands and not push.refused:
            # git asks with nothing before it sends something large.
            return web.HttpAnswer(headers=headers)
        await self._record(request, name, push)
        taken = b"ng %s unpacker error\n" if push.refused else b"ok %s\n"
        report = (taken % ref for _, _, ref in push.commands)
        unpacked = b"unpack " + (push.refused.encode() or b"ok") + b"\n"
        return web.HttpAnswer(headers=headers, body=pkt_seq(unpacked, *report))

    async def _record(self, request: web.Request, name: str, push: _Push) -> None:
        commits = [thing for thing in push.objects.values() if thing.kind == Commit.type_num]
        files = [thing.content for thing in push.objects.values() if thing.kind == Blob.type_num]
        commands = [[part.decode("utf-8", "replace") for part in each] for each in push.commands]
        updates = ({"ref": web.word(ref), "old": old, "new": new} for old, new, ref in commands)
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
        texts = b"\n\n".join(commit.content for commit in commits[:_MAX_LISTED])
        contents = {"pack": push.pack, "commits": texts, "files": b"\n".join(smallest)}
        bodies = (web.kept_body(*each) for each in contents.items() if each[1])
        await self.context.record(data, *bodies)


def _unpacked(request: web.Request, max_bytes: int) -> bytes:
    body = request.body
    if request.header("content-encoding").lower() in {"gzip", "x-gzip"}:
        inflater = zlib.decompressobj(wbits=31)
        body = inflater.decompress(body, max_bytes + 1)
        if not inflater.eof and len(body) <= max_bytes:
            raise ValueError("a body that ends too early")
    if len(body) > max_bytes:
        raise ValueError(f"more than {max_bytes} bytes")
    return body


def _advertisement(repository: Repository | None, service: str) -> web.HttpAnswer:
    if repository is None:
        return web.text_answer("Repository not found", 404)
    if service not in _CAPABILITIES:
        return web.text_answer("Please use a smart Git client", 403)
    words, lines = _CAPABILITIES[service], list[bytes]()
    if service == "git-upload-pack" and repository.head in repository.refs:
        lines.append(repository.refs[repository.head] + b" HEAD")
        words += b" symref=HEAD:" + repository.head
    lines += (identity + b" " + name for name, identity in repository.refs.items())
    lines = lines or [_ZERO + b" capabilities^{}"]
    lines[0] += b"\0" + words
    body = pkt_seq(f"# service={service}\n".encode()) + pkt_seq(*(line + b"\n" for line in lines))
    kind = ("content-type", f"application/x-{service}-advertisement")
    return web.HttpAnswer(headers=(kind, _NO_CACHE), body=body)


def _lines_of(body: bytes) -> list[bytes]:
    lines, protocol = list[bytes](), Protocol(io.BytesIO(body).read, len)
    try:
        while len(lines) <= MAX_LINES:
            lines.append((protocol.read_pkt_line() or b"").rstrip(b"\n"))
    except HangupException:
        return lines
    raise ValueError(f"more than {MAX_LINES:,} lines")


async def _fetched(repository: Repository, lines: list[bytes]) -> AsyncGenerator[bytes]:
    # What the client has is not looked for: one pack of all that it wants is right for everyone.
    found = (line.removeprefix(b"want ")[:40] for line in lines if line.startswith(b"want "))
    wants = list(dict.fromkeys(found))
    if unknown := next((want for want in wants if want not in repository), b""):
        yield pkt_line(b"ERR upload-pack: not our ref " + unknown + b"\n")
        return
    if any(line.startswith(b"deepen ") for line in lines):
        yield pkt_line(None)  # No border: the history is whole.
    is_done = b"done" in lines
    if is_done or any(line.startswith(b"have ") for line in lines):
        yield pkt_line(b"NAK\n")
    if not is_done:
        return
    identities, hasher = await repository.walk(wants), hashlib.sha1(usedforsecurity=False)
    for identity in (b"", *identities):
        chunks = pack_header_chunks(len(identities))
        if identity and (thing := repository.get(identity)):
            form = DEFAULT_OBJECT_FORMAT
            chunks = pack_object_chunks(thing.kind, [thing.content], form, compression_level=1)
        piece = b"".join(chunks)
        hasher.update(piece)
        for start in range(0, len(piece), _BAND_BYTES):
            yield pkt_line(b"\x01" + piece[start : start + _BAND_BYTES])  # Band 1: the pack
    yield pkt_seq(b"\x01" + hasher.digest())


async def _read_push(repository: Repository, body: bytes) -> _Push:
    push, stream = _Push(pack=body), io.BytesIO(body)
    try:
        for number, line in enumerate(Protocol(stream.read, len).read_pkt_seq()):
            match = _COMMAND.fullmatch(line.rstrip(b"\n").partition(b"\0")[0])
            if number >= MAX_COMMANDS or (match is None and not line.startswith(b"shallow ")):
                raise GitProtocolError(f"a command that is none, or more than {MAX_COMMANDS}")
            push.commands += [(match[1], match[2], match[3])] if match else []
        push.pack = stream.read()
    except GitProtocolError as error:
        return _Push(pack=body, refused=str(error) or "the commands have no end")
    try:
        steps = read_pack(push.pack, repository.get, push.objects) if push.pack else ()
        for number, _ in enumerate(steps):
            if number % 16 == 0:
                await checkpoint()
    except BROKEN as error:
        push.refused = str(error) or "an object can't be unpacked"
    return push


def read_pack(
    data: bytes, lookup: Callable[[bytes], GitObject | None], objects: dict[bytes, GitObject]
) -> Iterator[None]:
    """Read a pack into `objects`, one a step. Raises `BROKEN`."""
    end = len(data) - 20  # The SHA-1 of all before it
    if end < 12 or data[:8] != b"PACK\0\0\0\x02":
        raise ValueError("not a pack of version 2")
    if hashlib.sha1(memoryview(data)[:end], usedforsecurity=False).digest() != data[end:]:
        raise ValueError("the pack's checksum is wrong")
    count = int.from_bytes(data[8:12], "big")
    if count > MAX_OBJECTS:
        raise ValueError(f"the pack has {count} objects; {MAX_OBJECTS} are allowed")
    offsets: dict[int, GitObject] = {}
    place, room = 12, MAX_UNPACKED_BYTES
    for _ in range(count):
        head = _number(data, place)
        room = _left(room, head[0] & 15 | _value(head[1:]) << 4)
        if head[0] >> 4 & 7 == OFS_DELTA:
            _number(data, place + len(head))
        unpacked, after = unpack_object_at(data, place, hashlib.sha1)
        kind, content = unpacked.pack_type_num, b"".join(unpacked.decomp_chunks)
        if kind in DELTA_TYPES:
            at: Any = unpacked.delta_base
            key = b"" if kind == OFS_DELTA else at.hex().encode()
            base = objects.get(key) or lookup(key) if key else offsets.get(place - at)
            if base is None:
                raise ValueError("a delta builds on an object that isn't there")
            # dulwich takes the memory that a delta says it needs.
            room = _left(room, _value(_number(content, len(_number(content, 0)))))
            kind, content = base.kind, b"".join(apply_delta(base.content, content))
        elif kind not in {Commit.type_num, Tree.type_num, Blob.type_num, Tag.type_num}:
            raise ValueError(f"an object of the unknown type {kind}")
        offsets[place] = thing = GitObject(kind, content)
        objects[thing.id] = thing
        place = after
        if place > end:
            raise ValueError("the pack ends inside an object")
        yield
    if place != end:
        raise ValueError("the pack goes on behind its last object")


def _left(room: int, size: int) -> int:
    if size > room:
        raise ValueError(f"the pack unpacks to more than {MAX_UNPACKED_BYTES} bytes")
    return room - size


def _number(data: bytes, place: int) -> bytes:
    match = _NUMBER.match(data, place)
    if match is None:
        raise ValueError("a number that has no end")
    return match[0]


def _value(raw: bytes) -> int:
    return sum((byte & 0x7F) << 7 * place for place, byte in enumerate(raw))


make = _Git
