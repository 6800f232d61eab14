"""A Python package index of wheels and source archives.

Uploads are accepted, put on record, and never served.

Speaks: the simple index as HTML (PEP 503), metadata files (PEP 658, 714), `/pypi/NAME/json`,
uploads (`POST /legacy/` and `/`). Not: the simple index as JSON, XML-RPC, PEP 694 uploads.
"""

from __future__ import annotations

import html
import re
import tarfile
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.parser import BytesParser
from functools import cached_property
from hashlib import sha256
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, Final

from anyio import Lock
from packaging.utils import (
    InvalidName,
    InvalidSdistFilename,
    InvalidWheelFilename,
    canonicalize_name,
    parse_sdist_filename,
    parse_wheel_filename,
)
from packaging.version import InvalidVersion, Version

from belljar.capture import Capture
from belljar.events import JsonValue
from belljar.network.gateway.context import MAX_BODY_BYTES, MAX_KEPT_BODY_BYTES, App, StandInContext
from belljar.network.stand_ins.documents import Faults
from belljar.network.stand_ins.files import StoredFile, file_answer
from belljar.network.stand_ins.registry import (
    PackageFiles,
    check_packages,
    made_files,
    page_answer,
    record_change,
    wheel,
)
from belljar.network.stand_ins.web import (
    Answer,
    CutOffError,
    Incoming,
    Request,
    json_answer,
    presents,
    streaming_app,
    text_answer,
    word,
)

MAX_FILE_NAME_CHARS: Final = 255
MAX_METADATA_BYTES: Final = 1 << 20
_MAX_MEMBERS: Final = 20_000
_HTML: Final = "text/html; charset=utf-8"
_NOT_FOUND: Final = text_answer("404 Not Found", 404)
_FILE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+!-]*", re.ASCII)
# `TypeError`: how `tarfile` ends where a gzip header is cut.
_BROKEN: Final = (zipfile.BadZipFile, tarfile.TarError, zlib.error, EOFError, TypeError)


@dataclass(frozen=True, slots=True)
class PackageFile:
    """A parsed file name; `tags`: a wheel's compatibility."""

    project: str
    version: Version
    tags: str = ""


def parse_file_name(name: str) -> PackageFile | None:
    """Return what a package file's name says; None for anything else, and what could be a path."""
    if len(name) > MAX_FILE_NAME_CHARS or not _FILE.fullmatch(name):
        return None
    try:
        if name.endswith(".whl"):
            project, version, _, _ = parse_wheel_filename(name)
            tags = "-".join(name.removesuffix(".whl").split("-")[-3:])
            return PackageFile(project, version, tags)
        project, version = parse_sdist_filename(name)
        return PackageFile(canonicalize_name(project, validate=True), version)
    except (InvalidWheelFilename, InvalidSdistFilename, InvalidVersion, InvalidName):
        return None


def metadata_of(file: StoredFile) -> bytes:
    """Return `METADATA` of a wheel or `PKG-INFO` of a source archive, or b"" beyond the bounds."""
    is_wheel = file.base.endswith(".whl")
    wanted = r"[^/]+\.dist-info/METADATA" if is_wheel else r"[^/]+/PKG-INFO"
    content = b""
    try:
        with file.open() as source:
            if file.base.endswith((".whl", ".zip")):
                with zipfile.ZipFile(source) as archive:
                    names = (info.filename for info in archive.infolist()[:_MAX_MEMBERS])
                    name = next((name for name in names if re.fullmatch(wanted, name)), None)
                    if name is not None:
                        with archive.open(name) as member:
                            content = member.read(MAX_METADATA_BYTES + 1)
            else:
                with tarfile.open(fileobj=source, mode="r|gz") as stream:
                    for entry in islice(stream, _MAX_MEMBERS):
                        if entry.isfile() and re.fullmatch(wanted, entry.name):
                            opened = stream.extractfile(entry)
                            content = opened.read(MAX_METADATA_BYTES + 1) if opened else b""
                            break
    except (OSError, ValueError, RuntimeError, *_BROKEN):
        return b""
    return content if len(content) <= MAX_METADATA_BYTES else b""


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """One file; `metadata`: empty if unknown."""

    file: StoredFile
    named: PackageFile
    sha256: str
    md5: str
    metadata: bytes
    requires_python: str

    @property
    def served_metadata(self) -> bytes:
        """What a file of its own holds (PEP 658: wheels only)."""
        return self.metadata if self.named.tags else b""

    def link(self) -> str:
        """Return its line in the project's page."""
        attributes = f'href="../../packages/{html.escape(self.file.base)}#sha256={self.sha256}"'
        if self.requires_python:
            attributes += f' data-requires-python="{html.escape(self.requires_python)}"'
        if self.served_metadata:
            digest = f"sha256={sha256(self.metadata).hexdigest()}"
            attributes += f' data-dist-info-metadata="{digest}" data-core-metadata="{digest}"'
        return f"<a {attributes}>{html.escape(self.file.base)}</a>"

    def entry(self, base_url: str) -> dict[str, object]:
        """Return what `/pypi/NAME/json` says of it."""
        time = datetime.fromtimestamp(self.file.mtime_s, UTC)
        return {
            "filename": self.file.base,
            "url": f"{base_url}/packages/{self.file.base}",
            "size": self.file.size_bytes,
            "digests": {"sha256": self.sha256, "md5": self.md5},
            "packagetype": "bdist_wheel" if self.named.tags else "sdist",
            "python_version": self.named.tags.partition("-")[0] or "source",
            "requires_python": self.requires_python or None,
            "upload_time_iso_8601": time.strftime("%Y-%m-%dT%H:%M:%S.000000Z"),
            "yanked": False,
        }


class Index:
    """A directory's projects; other files are left out."""

    def __init__(self, directory: Path, made: Iterable[StoredFile] = ()) -> None:
        self._files = PackageFiles(directory, "sha256", "md5", made=made)
        self._known: dict[str, Distribution] = {}

    @cached_property
    def projects(self) -> Mapping[str, Mapping[str, StoredFile]]:
        """Normal name → file name → file."""
        found: dict[str, dict[str, StoredFile]] = {}
        for file in self._files.by_name.values():
            if named := parse_file_name(file.base):
                found.setdefault(named.project, {})[file.base] = file
        return found

    async def find(self, name: str) -> Distribution | None:
        """Return the file of this name. Raises `OSError`."""
        named = parse_file_name(name)
        file = self.projects.get(named.project, {}).get(name) if named else None
        if named is None or file is None:
            return None
        if name not in self._known:
            digests, metadata = await self._files.digests(file), metadata_of(file)
            fields = BytesParser().parsebytes(metadata, headersonly=True)
            self._known[name] = Distribution(
                file=file,
                named=named,
                metadata=metadata,
                requires_python=str(fields.get("Requires-Python", "")),
                **digests,
            )
        return self._known[name]

    async def of_project(self, name: str) -> list[Distribution]:
        """Return a project's files, the oldest version first."""
        names = self.projects.get(canonicalize_name(name), {})
        found = [one for each in names if (one := await self.find(each)) is not None]
        return sorted(found, key=lambda one: (one.named.version, one.file.base))


def page(title: str, lines: Iterator[str]) -> bytes:
    """Return a page of links (PEP 503)."""
    head = '<meta name="pypi:repository-version" content="1.0">'
    head += f"<title>{html.escape(title)}</title>"
    body = "".join(f"{line}<br>\n" for line in lines)
    return f"<!DOCTYPE html>\n<html><head>{head}</head><body>\n{body}</body></html>\n".encode()


def release(
    name: str, version: str, files: list[Distribution], base_url: str
) -> dict[str, object] | None:
    """Return the document of `/pypi/NAME/json`; None: there is no such version."""
    finals = [one for one in files if not one.named.version.is_prerelease] or files
    try:
        wanted = Version(version) if version else finals[-1].named.version
    except (InvalidVersion, IndexError):
        return None
    chosen = [one for one in files if one.named.version == wanted]
    if not chosen:
        return None
    about = next((one for one in chosen if one.metadata), chosen[0])
    fields = BytesParser().parsebytes(about.metadata)
    texts = ("Summary", "Author", "Author-email", "License", "Home-page", "Keywords")
    info: dict[str, object] = {
        "name": fields.get("Name", name),
        "version": str(wanted),
        **{each.lower().replace("-", "_"): fields.get(each) for each in texts},
        "classifiers": fields.get_all("Classifier", []),
        "description": fields.get("Description") or fields.get_payload() or "",
        "requires_dist": fields.get_all("Requires-Dist"),
        "requires_python": about.requires_python or None,
    }
    document: dict[str, object] = {"info": info, "urls": [one.entry(base_url) for one in chosen]}
    if not version:
        releases: dict[str, list[dict[str, object]]] = {}
        for one in files:
            releases.setdefault(str(one.named.version), []).append(one.entry(base_url))
        document["releases"] = releases
    return document


# ---- uploads

MAX_PARTS: Final = 2000
MAX_FILES: Final = 7  # Of one event, with room for another body.
MAX_HEADER_BYTES: Final = 16 << 10
MAX_FIELD_BYTES: Final = 64 << 10  # Of one field; the rest is cut.
_BOUNDARY: Final = re.compile(
    r'multipart/form-data\s*;(?:.*;)?\s*boundary=(?:"([^"]{1,70})"|([^";\s]{1,70})(?=[;\s]|\Z))',
    re.IGNORECASE | re.DOTALL,
)
_PARAMETER: Final = re.compile(
    rb';\s*(name|filename)="((?:[^"\\\r\n]|\\.)*)"', re.IGNORECASE | re.DOTALL
)
_KEPT_FIELDS: Final = (
    *("filetype", "pyversion", "metadata_version", "sha256_digest"),
    *("summary", "author", "author_email"),
)


@dataclass(kw_only=True)
class Form:
    """A form, as far as it could be read. `wrong`: why it can't be taken."""

    fields: dict[str, str] = field(default_factory=dict)
    files: list[tuple[str, str, Capture]] = field(default_factory=list)  # Field, file name, content
    wrong: str = ""


def read_form(content_type: str, body: bytes) -> Form:
    """Return the parts of a multipart/form-data body (RFC 7578). A field's first value counts."""
    form, match = Form(), _BOUNDARY.match(content_type.strip())
    if match is None:
        return Form(wrong="the content type is not multipart/form-data with a boundary")
    boundary = re.escape((match[1] or match[2]).encode("latin-1", "replace"))
    marks = list(
        islice(re.finditer(rb"(?:\A|\r\n)--" + boundary + rb"(--|\r\n)", body), MAX_PARTS + 1)
    )
    if len(marks) > MAX_PARTS:
        form.wrong = f"more than {MAX_PARTS} parts"
    elif not any(mark[1] == b"--" for mark in marks):
        form.wrong = "the form ends too early"
    for mark, following in pairwise([*marks, None]):
        if mark is None or mark[1] == b"--":
            break
        # The line's end before the first field may be the mark's own.
        begin, end = mark.end() - 2, following.start() if following else len(body)
        head_end = body.find(b"\r\n\r\n", begin, min(end + 4, begin + MAX_HEADER_BYTES))
        if head_end < 0:
            form.wrong = form.wrong or "a part has no headers that end"
            break
        named = {
            each[1].lower(): re.sub(rb"\\(.)", rb"\1", each[2]).decode("utf-8", "replace")
            for each in _PARAMETER.finditer(body, begin, head_end)
        }
        content = memoryview(body)[min(head_end + 4, end) : end]
        if b"filename" not in named:
            value = bytes(content[:MAX_FIELD_BYTES]).decode("utf-8", "replace")
            form.fields.setdefault(named.get(b"name", ""), value)
        elif len(form.files) == MAX_FILES:
            form.wrong = f"more than {MAX_FILES} files"
            break
        else:
            capture = Capture(max_kept_bytes=MAX_KEPT_BODY_BYTES)
            capture.feed(content)
            form.files.append((named.get(b"name", ""), named[b"filename"], capture))
    return form


# ---- answers


def make(context: StandInContext) -> App:
    """Of the packages in `context.files`, or in the settings. Memory: one upload (64 MiB)."""
    return streaming_app(_Pypi(context).handle)


def check(_settings: Mapping[str, JsonValue], directory: Path) -> Faults:
    """Faults of a directory of Python packages."""

    def identify(file: StoredFile) -> str:
        named = parse_file_name(file.base)
        if named is None:
            expected = "a wheel or of a source archive (NAME-VERSION.tar.gz)"
            raise ValueError(f"its name is not that of {expected}")
        if named.tags and not metadata_of(file):
            why = "it has no METADATA in a .dist-info directory"
            raise ValueError(f"not a wheel that can be read: {why}")
        return file.base

    what = "wheels (.whl) or source archives (.tar.gz, .zip)"
    return check_packages(directory, what, identify, "file name")


class _Pypi:
    def __init__(self, context: StandInContext) -> None:
        self._context = context
        self._index = Index(context.files, made_files(context, wheel))
        self._token = str(context.settings.get("token", ""))
        # One upload at a time: a second one waits instead of doubling the memory.
        self._uploading = Lock()

    async def handle(self, request: Request, incoming: Incoming) -> Answer | None:
        if request.method == "POST" and request.path in {"/", "/legacy", "/legacy/"}:
            async with self._uploading:
                return await self._upload(request, incoming)
        if request.method not in {"GET", "HEAD"}:
            return text_answer("Method Not Allowed", 405, (("allow", "GET, HEAD"),))
        match [part for part in request.path.split("/") if part]:
            case []:
                return self._page(request, page("Links", iter(())))
            case ["simple"]:
                names = (html.escape(name) for name in sorted(self._index.projects))
                lines = (f'<a href="{name}/">{name}</a>' for name in names)
                return self._page(request, page("Simple index", lines))
            case ["simple", name]:
                project = canonicalize_name(name)
                if project not in self._index.projects:
                    return _NOT_FOUND
                if request.path != f"/simple/{project}/":
                    return text_answer("", 301, (("location", f"/simple/{project}/"),))
                files = await self._index.of_project(project)
                lines = (one.link() for one in files)
                return self._page(request, page(f"Links for {project}", lines))
            case ["packages", name]:
                known = await self._index.find(name.removesuffix(".metadata"))
                if known is not None and not name.endswith(".metadata"):
                    kind = "application/gzip" if name.endswith(".gz") else ""
                    media = kind or "application/octet-stream"
                    return file_answer(known.file, request, media=media, etag=known.sha256)
                if known is not None and known.served_metadata:
                    return self._page(request, known.metadata, "application/octet-stream")
                return _NOT_FOUND
            case ["pypi", name, *version, "json"] if len(version) < 2:
                files = await self._index.of_project(name)
                project = canonicalize_name(name)
                found = release(project, "".join(version), files, request.base_url)
                return json_answer(found) if found else json_answer({"message": "Not Found"}, 404)
        return _NOT_FOUND

    @staticmethod
    def _page(request: Request, content: bytes, media: str = _HTML) -> Answer:
        cache = ("cache-control", "max-age=600, public")
        return page_answer(request, content, (("content-type", media), cache))

    async def _upload(self, request: Request, incoming: Incoming) -> Answer | None:
        """Answer one upload (200, 400, 403, 413), recorded first. Also one that broke off."""
        content_type, status = request.header("content-type"), 400
        try:
            form = read_form(content_type, await incoming.read(MAX_BODY_BYTES))
            missing = next((name for name in ("name", "version") if not form.fields.get(name)), "")
            if not form.wrong and missing:
                form.wrong = f"the form has no {missing}"
        except CutOffError as error:
            form = read_form(content_type, error.body)
            form.wrong = error.refused or "it broke off"
            status = 413 if error.refused else 0
        if status == 400 and self._token and not presents(request, self._token):
            form.wrong, status = "Invalid or non-existent authentication information.", 403
        await self._record(request, form)
        if not status:
            return None
        wrong = word(form.wrong)
        return text_answer(f"{status} {wrong}", status) if wrong else text_answer("")

    async def _record(self, request: Request, form: Form) -> None:
        fields = form.fields
        data: dict[str, Any] = {
            "what": "publish",
            "action": word(fields.get(":action", "")),
            "name": word(fields.get("name", "")),
            "version": word(fields.get("version", "")),
            "fields": {name: word(fields[name]) for name in _KEPT_FIELDS if fields.get(name)},
            "refused": word(form.wrong),
            "filename": "",
            "size_bytes": 0,
        }
        for name, filename, content in reversed(form.files):
            if name == "content":
                data |= {"filename": word(filename), "size_bytes": content.total_bytes}
                data["sha256"] = content.sha256
        bodies = [
            content.body(f"file-{number}") for number, (_, _, content) in enumerate(form.files)
        ]
        await record_change(self._context, request, "pypi", data, bodies)
