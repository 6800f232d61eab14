"""The application: which question gets which answer."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs

from anyio import Lock

from belljar.events import JsonValue
from belljar.network.gateway.context import App, Receive, Scope, Send, StandInContext
from belljar.network.stand_ins.answers import (
    Interrupted,
    Request,
    TooLong,
    answer,
    presents,
    read_body,
    refuse_websocket,
)
from belljar.network.stand_ins.faults import Fault, Faults
from belljar.network.stand_ins.git import receive, upload
from belljar.network.stand_ins.git.made import MadeRepository
from belljar.network.stand_ins.git.pkt import FLUSH, PktError, pkt
from belljar.network.stand_ins.git.repository import Kept, Repository, find_repositories, why_not
from belljar.network.stand_ins.shelf import links_in

MAX_REQUEST_BYTES: Final = 4 << 20
"""Of a fetch: wants and haves, unpacked."""
MAX_PUSH_BYTES: Final = 32 << 20
_NO_CACHE: Final = {"cache-control": "no-cache, max-age=0, must-revalidate", "pragma": "no-cache"}
_SERVICES: Final = ("git-upload-pack", "git-receive-pack")


def make(context: StandInContext) -> App:
    """An ASGI 3 app that serves the bare repositories in `context.files`, each at its path, with or
    without `.git`, or the one that the settings say (`repository`: its path, `commits`: as
    `MadeRepository`'s; with `token`, who pushes needs it).

    Its memory: 64 MiB of pushed objects in all; of one push at a time the pack (32 MiB) and its
    objects (64 MiB); of a fetch, the ids of what is sent.
    """
    return _Git(context)


def check(settings: Mapping[str, JsonValue], directory: Path | None) -> Faults:
    """What is wrong with a directory of bare repositories, each fault with its file."""
    if "commits" in settings:  # an author has no such setting
        return ()
    if directory is None:
        return (Fault(message="no directory of bare repositories is named: add `directory: PATH`"),)
    if not directory.is_dir():
        return (Fault(file=str(directory), message="no such directory"),)
    repositories = dict(find_repositories(directory))
    links = [directory / link for link in links_in(directory)]
    found = [
        Fault(
            file=str(link),
            message="a symbolic link, which is not followed; put the file itself there",
        )
        for link in links
    ]
    # Of a repository with a link in it nothing is read, not even to say more.
    whole = [
        path for path in repositories.values() if not any(path in link.parents for link in links)
    ]
    found += [Fault(file=str(path), message=reason) for path in whole if (reason := why_not(path))]
    found += [
        Fault(file=str(path), message=reason) for path in whole if (reason := _unreadable(path))
    ]
    for path in sorted(directory.iterdir()):
        if not path.is_symlink() and not any(
            one == path or path in one.parents for one in repositories.values()
        ):
            found.append(
                Fault(
                    file=str(path),
                    message="not a bare repository (made by git clone --bare or git init --bare)",
                )
            )
    return tuple(found) or (
        ()
        if repositories
        else (Fault(file=str(directory), message="empty; put bare repositories into it"),)
    )


def _unreadable(path: Path) -> str:
    if why_not(path):
        return ""
    repository = Repository(path)
    try:
        broken = next(
            (
                name
                for name, identity in repository.refs.items()
                if repository.get(identity) is None
            ),
            None,
        )
    except Exception as error:  # noqa: BLE001 - whatever the library says of a broken repository
        return f"it can't be read: {error}"
    return f"its reference {broken.decode('utf-8', 'replace')} leads to no object" if broken else ""


class _Git:
    def __init__(self, context: StandInContext) -> None:
        self._context = context
        self._pushing = Lock()

    @cached_property
    def _repositories(self) -> Mapping[str, Repository]:
        settings, kept = self._context.settings, Kept()
        commits: Any = settings.get("commits")
        if commits:
            made = MadeRepository(commits, kept, now_s=self._context.clock())
            found: dict[str, Repository] = {str(settings["repository"]): made}
        else:
            there = find_repositories(self._context.files)
            found = {name: Repository(path, kept) for name, path in there if not why_not(path)}
        for name, repository in list(found.items()):
            found.setdefault(name.removesuffix(".git"), repository)
            found.setdefault(name.removesuffix(".git") + ".git", repository)
        return found

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if await refuse_websocket(scope, send):
            return
        request = Request.of(scope)
        name, _, service = request.path.strip("/").rpartition("/")
        token = str(self._context.settings.get("token", ""))
        writes = "git-receive-pack" in (
            service,
            parse_qs(request.query[:200]).get("service", [""])[0],
        )
        if token and writes and not presents(request.headers, token):
            asks = {"www-authenticate": 'Basic realm="Git"'}
            await answer(
                send, b"Unauthorized", status=401, headers=asks, head=request.method == "HEAD"
            )
            return
        if request.method in {"GET", "HEAD"} and request.path.endswith("/info/refs"):
            await self._references(request, name.removesuffix("/info"), send)
        elif request.method == "POST" and service in _SERVICES and name in self._repositories:
            await self._service(request, name, service, receive, send)
        else:
            await answer(send, b"Not Found", status=404, head=request.method == "HEAD")

    async def _references(self, request: Request, name: str, send: Send) -> None:
        service = parse_qs(request.query[:200]).get("service", [""])[0]
        repository = self._repositories.get(name)
        if repository is None or service not in _SERVICES:
            status, text = (
                (404, b"Repository not found")
                if repository is None
                else (403, b"Please use a smart Git client")
            )
            await answer(send, text, status=status, head=request.method == "HEAD")
            return
        fetches = service == "git-upload-pack"
        capabilities = upload.CAPABILITIES if fetches else receive.CAPABILITIES
        body = (
            pkt(f"# service={service}\n".encode())
            + FLUSH
            + upload.advertisement(repository, capabilities, peeled=fetches)
        )
        kind = f"application/x-{service}-advertisement"
        await answer(send, body, kind, headers=_NO_CACHE, head=request.method == "HEAD")

    async def _service(
        self, request: Request, name: str, service: str, receiving: Receive, send: Send
    ) -> None:
        kind = f"application/x-{service}-result"
        try:
            if service == "git-upload-pack":
                asked = upload.parse_request(
                    _unzipped(
                        request, await read_body(receiving, MAX_REQUEST_BYTES), MAX_REQUEST_BYTES
                    )
                )
                repository = self._repositories[name]
                headers = [
                    (b"content-type", kind.encode()),
                    *((k.encode(), v.encode()) for k, v in _NO_CACHE.items()),
                ]
                await send({"type": "http.response.start", "status": 200, "headers": headers})
                async for piece in upload.respond(repository, asked):
                    if piece:
                        await send({"type": "http.response.body", "body": piece, "more_body": True})
                await send({"type": "http.response.body", "body": b""})
                return
            async with self._pushing:
                body = _unzipped(
                    request, await read_body(receiving, MAX_PUSH_BYTES), MAX_PUSH_BYTES
                )
                report = await receive.receive(
                    self._context, request, name, self._repositories[name], body
                )
            await answer(send, report, kind, headers=_NO_CACHE)
        except PktError as error:
            await self._refused(request, name, service, str(error))
            await answer(send, b"Bad Request", status=400)
        except TooLong as error:
            await self._refused(request, name, service, str(error))
            await answer(send, b"Request Entity Too Large", status=413)
        except Interrupted:
            await self._refused(request, name, service, "it broke off")

    async def _refused(self, request: Request, name: str, service: str, reason: str) -> None:
        if service == "git-receive-pack":
            await receive.refuse(self._context, request, name, reason)


def _unzipped(request: Request, body: bytes, max_bytes: int) -> bytes:
    """A request's body without its `Content-Encoding: gzip`. Raises `TooLong`, `PktError`."""
    if request.headers.get("content-encoding", "").lower() not in {"gzip", "x-gzip"}:
        return body
    inflater = zlib.decompressobj(wbits=31)
    try:
        content = inflater.decompress(body, max_bytes + 1)
    except zlib.error:
        raise PktError("a body that is not packed as it says") from None
    if len(content) > max_bytes:
        raise TooLong(f"more than {max_bytes} bytes")
    if not inflater.eof:
        raise PktError("a body that ends too early")
    return content
