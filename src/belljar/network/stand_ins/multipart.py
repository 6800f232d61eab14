"""A reader of `multipart/form-data` (RFC 7578) that is fed piece by piece and never holds more than
its bounds.

Small fields are kept; a file's bytes are counted, hashed and thrown away but for their beginning.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from email.message import Message
from typing import Final

from belljar.capture import Capture

MAX_PARTS: Final = 2000
MAX_HEADER_BYTES: Final = 16 << 10
MAX_FIELD_BYTES: Final = 1 << 20
"""All fields together. What goes beyond is dropped, and `Form.cut` says so."""
_BOUNDARY: Final = re.compile(rb"[0-9A-Za-z'()+_,\-./:=? ]{1,70}")


class MultipartError(ValueError):
    """The body is not what its content type says."""


@dataclass(kw_only=True)
class FormFile:
    """A file of a form. `content` is what of it goes on record."""

    field_name: str
    filename: str
    content: Capture


@dataclass(kw_only=True)
class Form:
    """What was read so far. A field that comes several times keeps its first value."""

    fields: dict[str, str] = field(default_factory=dict)
    files: list[FormFile] = field(default_factory=list)
    complete: bool = False
    cut: bool = False


class MultipartReader:
    """Feed it the body; `form` grows.

    Memory: the bounds above, one piece, and `kept_bytes` a file (at most 8 files).
    """

    def __init__(self, content_type: str, *, kept_bytes: int) -> None:
        """Raises `MultipartError` when the content type names no boundary."""
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
        """The next bytes.

        Raises `MultipartError`; what was read until then stays in `form`. Anything after the end is
        ignored.
        """
        if self.form.complete:
            return
        self._buffer += data
        while self._headers() if self._in_headers else self._content():
            pass

    def _content(self) -> bool:
        """Take content up to the next boundary. False: more is needed."""
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
        if end < 0:
            if len(self._buffer) > MAX_HEADER_BYTES:
                raise MultipartError(f"a part's header is longer than {MAX_HEADER_BYTES} bytes")
            return False
        if end > MAX_HEADER_BYTES:
            raise MultipartError(f"a part's header is longer than {MAX_HEADER_BYTES} bytes")
        self._begin_part(bytes(self._buffer[:end]))
        del self._buffer[: end + 4]
        self._in_headers = False
        return True

    def _begin_part(self, header: bytes) -> None:
        self._parts += 1
        if self._parts > MAX_PARTS:
            raise MultipartError(f"more than {MAX_PARTS} parts")
        name, filename = _disposition(header)
        if filename is None:
            self._field_name = name
            return
        if len(self.form.files) >= 8:
            raise MultipartError("more than 8 files")
        self._file = FormFile(
            field_name=name,
            filename=filename,
            content=Capture(max_kept_bytes=self._kept_bytes),
        )
        self.form.files.append(self._file)

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
        raise MultipartError(
            "the boundary is longer than 70 characters or holds others than RFC 2046 allows"
        )
    return raw


def _disposition(header: bytes) -> tuple[str, str | None]:
    """A part's name and, of a file, its file name."""
    for line in header.decode("utf-8", "replace").split("\r\n"):
        key, _, value = line.partition(":")
        if key.strip().lower() == "content-disposition":
            found = dict(re.findall(r';\s*(name|filename)="([^"]*)"', value))
            return found.get("name", ""), found.get("filename")
    return "", None
