"""A Python package index of wheels and source archives.

Uploads are accepted, put on record, and never served.

Speaks: the simple index as HTML (PEP 503) and uploads (`POST /legacy/` and `/`). Not: the index as
JSON, XML-RPC, PEP 694 uploads, metadata beside the files: clients then read it in the files, and go
back to an older version where a wheel wants another Python.
"""

from __future__ import annotations

import html
import re
import zipfile
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from email.message import Message
from functools import cached_property
from itertools import islice, pairwise
from pathlib import Path
from typing import Final

from packaging.utils import (
    InvalidName,
    InvalidSdistFilename,
    InvalidWheelFilename,
    canonicalize_name,
    parse_sdist_filename,
    parse_wheel_filename,
)
from packaging.version import InvalidVersion, Version

from belljar.capture import Capture, body_of
from belljar.events import Body, JsonValue
from belljar.network.gateway.context import MAX_KEPT_BODY_BYTES
from belljar.network.stand_ins.faults import Faults
from belljar.network.stand_ins.files import StoredFile, file_answer
from belljar.network.stand_ins.registry import PackageError, Registry, check_packages
from belljar.network.stand_ins.web import Answer, Request, text_answer, word, writes

MAX_FILE_NAME_CHARS: Final = 255  # Linux's bound of a name
_HTML: Final = "text/html; charset=utf-8"
_FILE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+!-]*", re.ASCII)


def parse_file_name(name: str) -> tuple[str, Version] | None:
    """Return project and version; None: no package, or what could be a path."""
    if len(name) > MAX_FILE_NAME_CHARS or not _FILE.fullmatch(name):
        return None
    try:
        if name.endswith(".whl"):
            project, version, _, _ = parse_wheel_filename(name)
            return project, version
        project, version = parse_sdist_filename(name)
        return canonicalize_name(project, validate=True), version
    except (InvalidWheelFilename, InvalidSdistFilename, InvalidVersion, InvalidName):
        return None


def page(title: str, lines: Iterable[str]) -> str:
    """Return a page of links (PEP 503)."""
    head = '<meta name="pypi:repository-version" content="1.0">'
    head += f"<title>{html.escape(title)}</title>"
    body = "".join(f"{line}<br>\n" for line in lines)
    return f"<!DOCTYPE html>\n<html><head>{head}</head><body>\n{body}</body></html>\n"


MAX_PARTS: Final = 2000
# Without a bound, each of 2,000 parts would search the whole body for its headers' end.
MAX_HEADER_BYTES: Final = 16 << 10
MAX_FIELD_BYTES: Final = 64 << 10  # Of one field; the rest is cut.
# A quoted value ends at a quote without a backslash before it.
_PARAMETER: Final = re.compile(
    rb';\s*(name|filename)="((?:[^"\\\r\n]|\\.)*)"', re.IGNORECASE | re.DOTALL
)


@dataclass(kw_only=True)
class Form:
    """A form with its first file, as far as it could be read. `wrong`: why it can't be taken."""

    fields: dict[str, str] = field(default_factory=dict)
    filename: str = ""
    content: Body = field(default_factory=lambda: body_of("file-0", b"", 0))
    wrong: str = ""


def read_form(content_type: str, body: bytes) -> Form:
    """Return the parts of a multipart/form-data body (RFC 7578). A field's first value counts."""
    form, head, boundary = Form(), Message(), b""
    head["content-type"] = content_type
    with suppress(ValueError, LookupError):  # a guest may name any encoding (RFC 2231)
        if head.get_content_type() == "multipart/form-data":
            boundary = re.escape((head.get_boundary() or "").encode("utf-8", "surrogateescape"))
    if not boundary:
        return Form(wrong="the content type is not multipart/form-data with a boundary")
    found = re.finditer(rb"(?:\A|\r\n)--" + boundary + rb"(--|\r\n)", body)
    marks = list(islice(found, MAX_PARTS))
    if not any(mark[1] == b"--" for mark in marks):
        form.wrong = f"the form ends too early, or has more than {MAX_PARTS} parts"
    for mark, following in pairwise(marks):
        if mark[1] == b"--":
            break
        # The line's end before the first field may be the mark's own.
        begin, end = mark.end() - 2, following.start()
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
        elif not form.filename:
            form.filename = named[b"filename"]
            capture = Capture("file-0", max_kept_bytes=MAX_KEPT_BODY_BYTES)
            capture.feed(content)
            form.content = capture.body()
    return form


def check(_settings: Mapping[str, JsonValue], directory: Path) -> Faults:
    """Return what is wrong with a directory of Python packages."""

    def read(file: StoredFile) -> None:
        if parse_file_name(file.base) is None:
            expected = "a wheel or of a source archive (NAME-VERSION.tar.gz)"
            raise PackageError(f"its name is not that of {expected}")
        with file.open() as source:
            if file.base.endswith(".whl") and not zipfile.is_zipfile(source):
                raise PackageError("not a wheel that can be read: it is no zip archive")

    what = "wheels (.whl) or source archives (.tar.gz, .zip)"
    return check_packages(directory, what, read)


class _Pypi(Registry):
    name, algorithms = "pypi", ("sha256",)

    @cached_property
    def _projects(self) -> Mapping[str, Mapping[str, StoredFile]]:
        """Normal name → file name → file, the oldest version first; other files are left out."""
        files = ((parse_file_name(file.base), file) for file in self.files)
        named = [(*known, file.base, file) for known, file in files if known]
        found: dict[str, dict[str, StoredFile]] = {}
        for project, _, base, file in sorted(named, key=lambda one: one[:3]):
            found.setdefault(project, {})[base] = file
        return found

    async def handle(self, request: Request) -> Answer:
        if request.method == "POST" and request.path in {"/", "/legacy", "/legacy/"}:
            return await self._upload(request)
        if writes(request):
            return text_answer("Method Not Allowed", 405, (("allow", "GET, HEAD"),))
        match [part for part in request.path.split("/") if part]:
            case ["simple"]:
                names = (html.escape(name) for name in sorted(self._projects))
                lines = [f'<a href="{name}/">{name}</a>' for name in names]
                return text_answer(page("Simple index", lines), media=_HTML)
            case ["simple", name] if (project := canonicalize_name(name)) in self._projects:
                lines = []
                for base, file in self._projects[project].items():
                    link, digest = html.escape(base), (await self.digests(file))["sha256"]
                    lines.append(f'<a href="/packages/{link}#sha256={digest}">{link}</a>')
                return text_answer(page(f"Links for {project}", lines), media=_HTML)
            case ["packages", name] if named := parse_file_name(name):
                if (found := self._projects.get(named[0], {}).get(name)) is not None:
                    # Of an archive, too: with a `content-encoding` clients would unpack it.
                    return file_answer(found, media="application/octet-stream")
        return text_answer("404 Not Found", 404)

    async def _upload(self, request: Request) -> Answer:
        """Answer one upload (200, 400), recorded first."""
        form = read_form(request.header("content-type"), request.body)
        missing = next((name for name in ("name", "version") if not form.fields.get(name)), "")
        if not form.wrong and missing:
            form.wrong = f"the form has no {missing}"
        data: dict[str, JsonValue] = {
            "name": word(form.fields.get("name", "")),
            "version": word(form.fields.get("version", "")),
            "refused": form.wrong,
            "filename": word(form.filename),
        }
        await self.publish(request, data, form.content)
        return text_answer(f"400 {form.wrong}", 400) if form.wrong else text_answer("")


make = _Pypi.app
