"""Uploads: read to their end, recorded, then thrown away."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Final

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from belljar.capture import Capture
from belljar.events import JsonValue
from belljar.network.gateway.context import MAX_KEPT_BODY_BYTES, StandInContext
from belljar.network.stand_ins.registry import record_change
from belljar.network.stand_ins.web import Answer, CutOffError, Incoming, Request, text_answer, word

MAX_PARTS: Final = 2000
MAX_FILES: Final = 8
MAX_HEADER_BYTES: Final = 16 << 10  # one line
MAX_BOUNDARY_BYTES: Final = 70  # RFC 2046
MAX_NAME_BYTES: Final = 1 << 10  # of a field or file; the rest is cut
# All fields together. What goes beyond is dropped, and `Form.cut` says so.
MAX_FIELD_BYTES: Final = 1 << 20
# It warns of malformed forms, which are on record; standard error is for the gateway's own faults.
logging.getLogger("python_multipart").addHandler(logging.NullHandler())


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


class FormReader:
    """Feed it the body of a multipart/form-data request; `form` grows within the bounds above.

    Raises `FormParserError` for a body that is not what its content type says; `form` keeps what
    was read. RFC 7578.
    """

    def __init__(self, content_type: str, *, kept_bytes: int) -> None:
        kind, options = parse_options_header(content_type.encode("latin-1", "replace"))
        boundary = options.get(b"boundary", b"")
        if kind != b"multipart/form-data" or not 1 <= len(boundary) <= MAX_BOUNDARY_BYTES:
            raise FormParserError("the content type is not multipart/form-data with a boundary")
        self.form = Form()
        self._kept_bytes = kept_bytes
        self._parts = self._field_bytes = 0
        self._header_name, self._header_value = bytearray(), bytearray()
        self._disposition = b""
        self._file: FormFile | None = None
        self._field_name = ""
        self._field_value = bytearray()
        self._parser = MultipartParser(
            boundary,
            {
                "on_part_begin": self._begin_part,
                "on_header_field": lambda data, start, end: self._header_name.extend(
                    data[start:end]
                ),
                "on_header_value": lambda data, start, end: self._header_value.extend(
                    data[start:end]
                ),
                "on_header_end": self._end_header,
                "on_headers_finished": self._begin_content,
                "on_part_data": self._take_content,
                "on_part_end": self._end_part,
                "on_end": self._end,
            },
            max_header_size=MAX_HEADER_BYTES,
        )

    def feed(self, data: bytes) -> None:
        """The next piece; what follows the last boundary is passed over."""
        self._parser.write(data)

    def _begin_part(self) -> None:
        self._parts += 1
        if self._parts > MAX_PARTS:
            raise FormParserError(f"more than {MAX_PARTS} parts")
        self._disposition, self._file = b"", None
        self._field_value.clear()

    def _end_header(self) -> None:
        if self._header_name.lower() == b"content-disposition":
            self._disposition = bytes(self._header_value)
        self._header_name.clear()
        self._header_value.clear()

    def _begin_content(self) -> None:
        _, options = parse_options_header(self._disposition)
        name = options.get(b"name", b"")[:MAX_NAME_BYTES].decode("utf-8", "replace")
        filename = options.get(b"filename")
        if filename is None:
            self._field_name = name
            return
        if len(self.form.files) >= MAX_FILES:
            raise FormParserError(f"more than {MAX_FILES} files")
        self._file = FormFile(
            field_name=name,
            filename=filename[:MAX_NAME_BYTES].decode("utf-8", "replace"),
            content=Capture(max_kept_bytes=self._kept_bytes),
        )
        self.form.files.append(self._file)

    def _take_content(self, data: bytes, start: int, end: int) -> None:
        if self._file is not None:
            self._file.content.feed(data[start:end])
            return
        room = MAX_FIELD_BYTES - self._field_bytes
        self.form.cut |= end - start > room
        taken = min(end - start, room)
        self._field_value += data[start : start + taken]
        self._field_bytes += taken

    def _end_part(self) -> None:
        if self._file is None:
            value = self._field_value.decode("utf-8", "replace")
            self.form.fields.setdefault(self._field_name, value)

    def _end(self) -> None:
        self.form.complete = True


_ABOUT: Final = ("filetype", "pyversion", "metadata_version", "sha256_digest")
_KEPT_FIELDS: Final = (*_ABOUT, "summary", "author", "author_email")


async def take_upload(
    context: StandInContext, request: Request, incoming: Incoming, *, is_refused: bool = False
) -> Answer | None:
    """Answer one upload (200, 403, 400), recorded first. Also one that broke off."""
    form, refused = Form(), ""
    try:
        reader = FormReader(request.header("content-type"), kept_bytes=MAX_KEPT_BODY_BYTES)
        form = reader.form
        async for piece in incoming.pieces():
            reader.feed(piece)
        missing = next((name for name in ("name", "version") if not form.fields.get(name)), "")
        if not form.complete:
            refused = "the form ends too early"
        elif missing:
            refused = f"the form has no {missing}"
    except FormParserError as error:
        refused = word(str(error))
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
    bodies = [one.content.body(f"file-{number}") for number, one in enumerate(form.files)]
    await record_change(context, request, "pypi", data, bodies)
