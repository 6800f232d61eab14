"""Git over HTTP (smart protocol, version 0) of bare repositories.

A push is put on record and lives in the range's memory: later fetches in the range see it; the
directory never changes. Not: the dumb protocol, version 2 (clients fall back), partial clones,
SHA-256 repositories.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from anyio import Lock

from belljar.events import JsonValue
from belljar.network.gateway.context import App, StandInContext
from belljar.network.stand_ins.documents import Fault, Faults
from belljar.network.stand_ins.files import links_in
from belljar.network.stand_ins.git.repository import (
    Kept,
    MadeRepository,
    Repository,
    find_repositories,
    why_not,
)
from belljar.network.stand_ins.git.transfer import (
    FLUSH,
    RECEIVE_CAPABILITIES,
    UPLOAD_CAPABILITIES,
    PktError,
    Push,
    advertisement,
    parse_request,
    pkt,
    receive,
    record_push,
    send_pack,
)
from belljar.network.stand_ins.web import (
    Answer,
    CutOffError,
    Incoming,
    Request,
    presents,
    streaming_app,
    text_answer,
)

MAX_REQUEST_BYTES: Final = 4 << 20  # Of a fetch: wants and haves, unpacked
MAX_PUSH_BYTES: Final = 32 << 20
_NO_CACHE: Final = (
    ("cache-control", "no-cache, max-age=0, must-revalidate"),
    ("pragma", "no-cache"),
)
_SERVICES: Final = ("git-upload-pack", "git-receive-pack")


def make(context: StandInContext) -> App:
    """Of the bare repositories in `context.files`, or the settings' one.

    Memory: 64 MiB of pushed objects, one push at a time (32 MiB, unpacked 64), ids of a fetch.
    """
    return streaming_app(_Git(context).handle)


def check(_settings: Mapping[str, JsonValue], directory: Path | None) -> Faults:
    """Faults of a directory of bare repositories."""
    if directory is None:
        return (Fault("no directory of bare repositories is named: add `repositories: PATH`"),)
    if not directory.is_dir():
        return (Fault("no such directory", file=str(directory)),)
    repositories = dict(find_repositories(directory)).values()
    links = [directory / link for link in links_in(directory)]
    message = "a symbolic link, which is not followed; put the file itself there"
    found = [(link, message) for link in links]
    # Of a repository with a link in it nothing is read, not even to say more.
    whole = [path for path in repositories if not any(path in link.parents for link in links)]
    found += [(path, reason) for path in whole if (reason := why_not(path) or _unreadable(path))]
    message = "not a bare repository (made by git clone --bare or git init --bare)"
    for path in sorted(directory.iterdir()):
        is_known = any(one == path or path in one.parents for one in repositories)
        if not path.is_symlink() and not is_known:
            found.append((path, message))
    if not found and not repositories:
        found = [(directory, "empty; put bare repositories into it")]
    return tuple(Fault(message, file=str(path)) for path, message in found)


def _unreadable(path: Path) -> str:
    repository = Repository(path)
    try:
        refs = repository.refs.items()
        broken = next((name for name, each in refs if repository.get(each) is None), None)
    except ImportError:  # the library is missing: this host's fault, and said elsewhere
        raise
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
            bare = name.removesuffix(".git")
            found.setdefault(bare, repository)
            found.setdefault(f"{bare}.git", repository)
        return found

    async def handle(self, request: Request, incoming: Incoming) -> Answer | None:
        name, _, service = request.path.strip("/").rpartition("/")
        token = str(self._context.settings.get("token", ""))
        writes = "git-receive-pack" in (service, request.parameter("service"))
        if token and writes and not presents(request, token):
            return text_answer("Unauthorized", 401, (("www-authenticate", 'Basic realm="Git"'),))
        if request.method in {"GET", "HEAD"} and request.path.endswith("/info/refs"):
            return self._references(request, name.removesuffix("/info"))
        if request.method == "POST" and service in _SERVICES and name in self._repositories:
            return await self._service(request, name, service, incoming)
        return text_answer("Not Found", 404)

    def _references(self, request: Request, name: str) -> Answer:
        service = request.parameter("service")
        repository = self._repositories.get(name)
        if repository is None:
            return text_answer("Repository not found", 404)
        if service not in _SERVICES:
            return text_answer("Please use a smart Git client", 403)
        fetches = service == "git-upload-pack"
        capabilities = UPLOAD_CAPABILITIES if fetches else RECEIVE_CAPABILITIES
        head = pkt(f"# service={service}\n".encode()) + FLUSH
        body = head + advertisement(repository, capabilities, peeled=fetches)
        kind = ("content-type", f"application/x-{service}-advertisement")
        return Answer(headers=(kind, *_NO_CACHE), body=body)

    async def _service(
        self, request: Request, name: str, service: str, incoming: Incoming
    ) -> Answer | None:
        headers = (("content-type", f"application/x-{service}-result"), *_NO_CACHE)
        repository = self._repositories[name]
        answer: Answer | None
        try:
            if service == "git-upload-pack":
                body = await incoming.read(MAX_REQUEST_BYTES)
                asked = parse_request(_unzipped(request, body, MAX_REQUEST_BYTES))
                return Answer(headers=headers, stream=lambda: send_pack(repository, asked))
            async with self._pushing:
                body = _unzipped(request, await incoming.read(MAX_PUSH_BYTES), MAX_PUSH_BYTES)
                report = await receive(self._context, request, name, repository, body)
            return Answer(headers=headers, body=report)
        except PktError as error:
            reason, answer = str(error), text_answer("Bad Request", 400)
        except CutOffError as error:
            reason = error.refused or "it broke off"
            answer = text_answer("Request Entity Too Large", 413) if error.refused else None
        if service == "git-receive-pack":
            await record_push(self._context, request, name, Push(refused=reason))
        return answer


def _unzipped(request: Request, body: bytes, max_bytes: int) -> bytes:
    """Without `Content-Encoding: gzip`. Raises `CutOffError`, `PktError`."""
    if request.header("content-encoding").lower() not in {"gzip", "x-gzip"}:
        return body
    inflater = zlib.decompressobj(wbits=31)
    try:
        content = inflater.decompress(body, max_bytes + 1)
    except zlib.error:
        raise PktError("a body that is not packed as it says") from None
    if len(content) > max_bytes:
        raise CutOffError(content, f"more than {max_bytes} bytes")
    if not inflater.eof:
        raise PktError("a body that ends too early")
    return content
