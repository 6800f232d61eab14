"""Fetching (git-upload-pack): what a request asks for, read with bounds, and the answer, made piece
by piece (gitprotocol-http(5), gitprotocol-pack(5)).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Final

from belljar.network.stand_ins.git.packs import TAG, pack_entry, pack_header
from belljar.network.stand_ins.git.pkt import FLUSH, PktError, packets, pkt, section
from belljar.network.stand_ins.git.repository import (
    ZERO,
    MissingObjectError,
    Repository,
    ancestors,
    depths,
    missing,
    parents,
    peel,
)

CAPABILITIES: Final = (
    b"multi_ack_detailed side-band-64k ofs-delta shallow no-progress include-tag "
    b"allow-tip-sha1-in-want allow-reachable-sha1-in-want object-format=sha1"
)
_BAND_BYTES: Final = 65_000
_ID: Final = re.compile(rb"[0-9a-f]{40}")
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


@dataclass(kw_only=True)
class _Plan:
    border: set[bytes] = field(default_factory=set)
    unshallow: set[bytes] = field(default_factory=set)


def parse_request(data: bytes) -> Asked:
    """Read a request's body. Raises `PktError`. Unknown lines are ignored, as other servers do."""
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
    for said, _ in packets(data, after):
        if said == b"done":
            done = True
        elif said is not None and said.startswith(b"have "):
            haves.append(_identity(said[5:]))
    return Asked(
        wants=tuple(wants),
        haves=tuple(haves),
        capabilities=capabilities,
        shallow=frozenset(shallow),
        depth=depth,
        done=done,
    )


def _identity(text: bytes) -> bytes:
    if _ID.fullmatch(text) is None:
        raise PktError("an object's id that is none")
    return text


def advertisement(repository: Repository, capabilities: bytes, *, peeled: bool) -> bytes:
    """The references, HEAD first, with the capabilities behind the first."""
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
        final = (
            peel(repository, identity) if peeled and name.startswith(b"refs/tags/") else identity
        )
        if final != identity:
            lines.append(final + b" " + name + b"^{}")
    lines[0] += b"\0" + words
    return b"".join(pkt(line + b"\n") for line in lines) + FLUSH


async def respond(repository: Repository, asked: Asked) -> AsyncIterator[bytes]:
    """The answer to one request of a negotiation.

    An object that isn't there is told as an error line of the protocol.
    """
    unknown = next((want for want in asked.wants if repository.get(want) is None), None)
    if unknown is not None:
        yield pkt(b"ERR upload-pack: not our ref " + unknown + b"\n")
        return
    plan = await _plan(repository, asked)
    if asked.depth:
        yield b"".join(
            pkt(b"shallow " + identity) for identity in sorted(plan.border - asked.shallow)
        )
        yield b"".join(pkt(b"unshallow " + identity) for identity in sorted(plan.unshallow)) + FLUSH
    common = [have for have in asked.haves if repository.get(have) is not None]
    yield _acknowledged(asked, common)
    if not asked.done:
        return
    try:
        async for piece in _pack(repository, asked, common, plan):
            yield piece
    except MissingObjectError as error:
        yield (
            _band(3, b"the repository lacks an object: " + bytes(error.args[0]))
            if _banded(asked)
            else b""
        )


async def _plan(repository: Repository, asked: Asked) -> _Plan:
    """How deep to go: `shallow` and `unshallow` of the protocol.

    Without a depth the client's own border stays.
    """
    if not asked.depth:
        return _Plan(border=set(asked.shallow))
    starts = [peel(repository, want) for want in asked.wants]
    found, border = await depths(repository, starts, asked.depth)
    return _Plan(border=border, unshallow=(set(asked.shallow) & found) - border)


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
    repository: Repository, asked: Asked, common: list[bytes], plan: _Plan
) -> AsyncIterator[bytes]:
    known = await ancestors(repository, (peel(repository, have) for have in common), asked.shallow)
    deeper = [older for edge in plan.unshallow for older in parents(repository.must(edge))]
    identities = [
        one async for one in missing(repository, [*asked.wants, *deeper], known, plan.border)
    ]
    if b"include-tag" in asked.capabilities:
        identities += _tags_of(repository, set(identities))
    hasher = hashlib.sha1(usedforsecurity=False)
    band = _banded(asked)
    for number, identity in enumerate([b"", *identities]):
        piece = pack_entry(repository.must(identity)) if number else pack_header(len(identities))
        hasher.update(piece)
        for start in range(0, len(piece), _BAND_BYTES):
            part = piece[start : start + _BAND_BYTES]
            yield _band(1, part) if band else part
    yield _band(1, hasher.digest()) + FLUSH if band else hasher.digest()


def _tags_of(repository: Repository, sent: set[bytes]) -> list[bytes]:
    found = []
    for name, identity in repository.refs.items():
        if (
            name.startswith(b"refs/tags/")
            and identity not in sent
            and peel(repository, identity) in sent
        ):
            thing = repository.get(identity)
            if thing is not None and thing.kind == TAG:
                found.append(identity)
    return list(dict.fromkeys(found))


def _banded(asked: Asked) -> bool:
    return b"side-band-64k" in asked.capabilities


def _band(number: int, content: bytes) -> bytes:
    return pkt(bytes([number]) + content)
