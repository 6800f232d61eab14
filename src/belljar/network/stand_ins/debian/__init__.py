"""A Debian package repository.

Of a directory of `.deb` files, or of an existing repository tree (`dists/`, `pool/`) as it is.

Whatever suite and component apt asks for, the packages are in its `main`, signed by a key of the
range's own (`/key.asc`). Uploads by PUT or POST are put on record and never served. Not: source
packages, Contents and Translation indexes, diffs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from belljar.capture import Capture
from belljar.events import JsonValue
from belljar.network.gateway.context import MAX_KEPT_BODY_BYTES, App, StandInContext
from belljar.network.stand_ins.debian.repository import DebError, Repository, read_control
from belljar.network.stand_ins.documents import Fault, Faults
from belljar.network.stand_ins.files import StoredFile, file_answer
from belljar.network.stand_ins.registry import (
    PackageFiles,
    check_directory,
    check_packages,
    page_answer,
    record_change,
)
from belljar.network.stand_ins.web import (
    Answer,
    CutOffError,
    Incoming,
    Request,
    streaming_app,
    text_answer,
    word,
)

_PACKAGES: Final = "Debian packages (.deb)"
_BELOW: Final = re.compile(r"(?:.*/)?((?:dists|pool)/.+)", re.DOTALL)
_TYPES: Final = {
    ".deb": "application/vnd.debian.binary-package",
    ".gz": "application/gzip",
    ".xz": "application/x-xz",
}


def make(context: StandInContext) -> App:
    """Of the tree in `context.files`, or of its `.deb` files."""
    return streaming_app(_Debian(context).handle)


def check(_settings: Mapping[str, JsonValue], directory: Path) -> Faults:
    """Faults of a directory of packages or a tree."""
    if not (directory / "dists").is_dir():

        def identify(file: StoredFile) -> tuple[str, str, str]:
            if not file.name.endswith(".deb"):
                raise DebError("not a Debian package (.deb)")
            control = read_control(file.path)
            return control.package, control.version, control.architecture

        unique = "package, version and architecture"
        return check_packages(directory, _PACKAGES, identify, unique)
    wrong, files = check_directory(directory, _PACKAGES)
    suites = (file for file in files if file.name.startswith("dists/"))
    if any(file.base in {"Release", "InRelease"} for file in suites):
        return wrong
    missing = "no suite in it has a Release or InRelease file"
    return (*wrong, Fault(missing, file=str(directory / "dists")))


class _Debian:
    def __init__(self, context: StandInContext) -> None:
        self._context = context
        self._tree = PackageFiles(context.files) if (context.files / "dists").is_dir() else None
        self._repository = Repository(context.files, int(context.clock()))

    async def handle(self, request: Request, incoming: Incoming) -> Answer | None:
        if request.method in {"PUT", "POST"}:
            return await self._upload(request, incoming)
        if request.method not in {"GET", "HEAD"}:
            return text_answer("Method Not Allowed", 405, (("allow", "GET, HEAD, PUT"),))
        match = _BELOW.fullmatch(request.path)
        below = match[1] if match else ""
        if self._tree is not None:
            file = self._tree.by_name.get(request.path.lstrip("/")) or self._tree.by_name.get(below)
            if file is None:
                return text_answer("404 Not Found", 404)
            etag = f"{file.size_bytes:x}-{file.mtime_s:x}"
            return file_answer(file, request, media=_type_of(file.base), etag=etag)
        if below.startswith("pool/"):
            found = await self._repository.pool_file(below)
            if found is None:
                return text_answer("404 Not Found", 404)
            return file_answer(found[0], request, media=_TYPES[".deb"], etag=found[1])
        content = await self._page(below.split("/")[1:], request.path.rpartition("/")[2])
        if content is None:
            return text_answer("404 Not Found", 404)
        headers = (("content-type", _type_of(request.path)),)
        return page_answer(request, content, headers, self._repository.made_s)

    async def _page(self, below_dists: list[str], base: str) -> bytes | None:
        """A file below `dists/`, or of a flat repository."""
        repository = self._repository
        if base == "key.asc" and not below_dists:
            return repository.key.certificate().encode()
        # Old security suites have two parts (`buster/updates`).
        size = 2 if below_dists[1:2] == ["updates"] else 1
        suite, rest = "/".join(below_dists[:size]), below_dists[size:]
        if base in {"Release", "InRelease", "Release.gpg"} and rest in ([], [base]):
            text = await repository.release(suite)
            if text is None:
                return None
            if base == "InRelease":
                return repository.key.clear_signed(text).encode()
            return (text if base == "Release" else repository.key.detached(text.encode())).encode()
        if not below_dists:
            return await repository.index(f"flat/{base}")
        return await repository.index("/".join(rest))

    async def _upload(self, request: Request, incoming: Incoming) -> Answer | None:
        content = Capture(max_kept_bytes=MAX_KEPT_BODY_BYTES)
        refused = ""
        try:
            async for piece in incoming.pieces():
                content.feed(piece)
        except CutOffError:
            refused = "it broke off"
        data: dict[str, JsonValue] = {
            "what": "publish",
            "method": request.method,
            "path": word(request.path),
            "name": word(request.path.rpartition("/")[2]),
            "size_bytes": content.total_bytes,
            "sha256": content.sha256,
            "refused": refused,
        }
        await record_change(self._context, request, "debian", data, [content.body("file-0")])
        return None if refused else text_answer("", 201)


def _type_of(name: str) -> str:
    known = (kind for ending, kind in _TYPES.items() if name.endswith(ending))
    return next(known, "text/plain; charset=utf-8")
