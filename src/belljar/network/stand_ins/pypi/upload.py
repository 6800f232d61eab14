"""Uploads: read to their end, recorded, then thrown away."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from email.message import Message
from typing import Final

from belljar.capture import Capture
from belljar.events import JsonValue
from belljar.network.gateway.context import MAX_KEPT_BODY_BYTES, StandInContext
from belljar.network.stand_ins.registry import record_change
from belljar.network.stand_ins.web import Answer, CutOffError, Incoming, Request, text_answer, word

MAX_PARTS: Final = 2000
MAX_HEADER_BYTES: Final = 16 << 10
# All fields together. What goes beyond is dropped, and `Form.cut` says so.
MAX_FIELD_BYTES: Final = 1 << 20
_BOUNDARY: Final = re.compile(rb"[0-9A-Za-z'()+_,\-./:=? ]{1,70}")


class MultipartError(ValueError):
    """The body is not what its content type says."""


@dataclass(kw_only=True)
class FormFile:
    """`content`: what of it goes on record."""

    field_name: str
    filename: str
    content: Capture


@dataclass(kw_only=True)
class Form:
    """What was read so far; a field's first value counts."""

    fields: dict[str, str] = field(default_factory=dict)
    files: list[FormFile] = field(default_factory=list)
    complete: bool = False
    cut: bool = False


class MultipartReader:
    """Feed it the body; `form` grows within the bounds above."""

    def __init__(self, content_type: str, *, kept_bytes: int) -> None:
        """Raises `MultipartError` without a boundary."""
        self.form = Form()
        self._kept_bytes = kept_bytes
        self._mark = b"\r\n--" + _boundary(content_type)
        # The first boundary has no line end before it; with one put there, all are alike.
        self._buffer = bytearray(b"\r\n")
        self._parts = self._field_bytes = 0
        self._file: FormFile | None = None
        self._field_name: str | None = None
        self._value = bytearray()
        self._in_headers = False

    def feed(self, data: bytes) -> None:
        """Raises `MultipartError`; `form` keeps what was read."""
        if self.form.complete:
            return
        self._buffer += data
        while self._headers() if self._in_headers else self._content():
            pass

    def _content(self) -> bool:
        """Up to the next boundary. False: more is needed."""
        at = self._buffer.find(self._mark)
        if at < 0:
            # What could be the beginning of a boundary stays.
            safe = len(self._buffer) - len(self._mark) + 1
            if safe > 0:
                self._take(bytes(self._buffer[:safe]))
                del self._buffer[:safe]
            return False
        after = at + len(self._mark)
        if len(self._buffer) < after + 2:
            return False
        self._take(bytes(self._buffer[:at]))
        ending = bytes(self._buffer[after : after + 2])
        if self._field_name is not None:
            self.form.fields.setdefault(self._field_name, self._value.decode("utf-8", "replace"))
        self._file, self._field_name = None, None
        self._value.clear()
        del self._buffer[: after + 2]
        if ending == b"--":
            self.form.complete = True
            self._buffer.clear()
            return False
        if ending != b"\r\n":
            raise MultipartError("a boundary is followed by neither a line end nor --")
        self._in_headers = True
        return True

    def _headers(self) -> bool:
        end = self._buffer.find(b"\r\n\r\n")
        if (len(self._buffer) if end < 0 else end) > MAX_HEADER_BYTES:
            raise MultipartError(f"a part's header is longer than {MAX_HEADER_BYTES} bytes")
        if end < 0:
            return False
        header = bytes(self._buffer[:end])
        del self._buffer[: end + 4]
        self._in_headers = False
        self._parts += 1
        if self._parts > MAX_PARTS:
            raise MultipartError(f"more than {MAX_PARTS} parts")
        name, filename = "", None
        for line in header.decode("utf-8", "replace").split("\r\n"):
            field_name, _, value = line.partition(":")
            if field_name.strip().lower() == "content-disposition":
                found = dict(re.findall(r';\s*(name|filename)="([^"]*)"', value))
                name, filename = found.get("name", ""), found.get("filename")
                break
        if filename is None:
            self._field_name = name
            return True
        if len(self.form.files) >= 8:
            raise MultipartError("more than 8 files")
        content = Capture(max_kept_bytes=self._kept_bytes)
        self._file = FormFile(field_name=name, filename=filename, content=content)
        self.form.files.append(self._file)
        return True

    def _take(self, data: bytes) -> None:
        if self._file is not None:
            self._file.content.feed(data)
        elif self._field_name is not None:
            room = MAX_FIELD_BYTES - self._field_bytes
            self.form.cut |= len(data) > room
            self._value += data[:room]
            self._field_bytes += min(room, len(data))


def _boundary(content_type: str) -> bytes:
    message = Message()
    message["content-type"] = content_type.replace("\r", " ").replace("\n", " ")
    boundary = message.get_param("boundary")
    if message.get_content_type() != "multipart/form-data" or not isinstance(boundary, str):
        raise MultipartError("the content type is not multipart/form-data with a boundary")
    raw = boundary.encode("latin-1", "replace")
    if _BOUNDARY.fullmatch(raw) is None:
        others = "holds others than RFC 2046 allows"
        raise MultipartError(f"the boundary is longer than 70 characters or {others}")
    return raw


_ABOUT: Final = ("filetype", "pyversion", "metadata_version", "sha256_digest")
_KEPT_FIELDS: Final = (*_ABOUT, "summary", "author", "author_email")


async def take_upload(
    context: StandInContext, request: Request, incoming: Incoming, *, is_refused: bool = False
) -> Answer | None:
    """Answer one upload (200, 403, 400), recorded first. Also one that broke off."""
    form, refused = Form(), ""
    try:
        reader = MultipartReader(request.header("content-type"), kept_bytes=MAX_KEPT_BODY_BYTES)
        form = reader.form
        async for piece in incoming.pieces():
            reader.feed(piece)
        missing = next((name for name in ("name", "version") if not form.fields.get(name)), "")
        if not form.complete:
            refused = "the form ends too early"
        elif missing:
            refused = f"the form has no {missing}"
    except MultipartError as error:
        refused = str(error)
    except CutOffError:
        await _record(context, request, form, "it broke off")
        return None
    status = 400 if refused else 200
    if is_refused:
        status, refused = 403, "Invalid or non-existent authentication information."
    await _record(context, request, form, refused)
    return text_answer(f"{status} {refused}" if refused else "", status)


async def _record(context: StandInContext, request: Request, form: Form, refused: str) -> None:
    file = next((file for file in form.files if file.field_name == "content"), None)
    data: dict[str, JsonValue] = {
        "what": "publish",
        "action": word(form.fields.get(":action", "")),
        "name": word(form.fields.get("name", "")),
        "version": word(form.fields.get("version", "")),
        "fields": {name: word(form.fields[name]) for name in _KEPT_FIELDS if form.fields.get(name)},
        "refused": refused,
        "filename": word(file.filename) if file else "",
        "size_bytes": file.content.total_bytes if file else 0,
    }
    if file:
        data["sha256"] = file.content.sha256
    bodies = [one.content.body(f"file-{number}") for number, one in enumerate(form.files[:8])]
    await record_change(context, request, "pypi", data, bodies)
