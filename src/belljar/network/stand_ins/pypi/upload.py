"""Uploads: read to their end, recorded, then thrown away."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from multipart import (  # type: ignore[import-untyped]
    MultipartError,
    MultipartSegment,
    ParserLimitReached,
    PushMultipartParser,
    parse_options_header,
)

from belljar.capture import Capture
from belljar.events import JsonValue
from belljar.network.gateway.context import MAX_KEPT_BODY_BYTES, StandInContext
from belljar.network.stand_ins.registry import record_change
from belljar.network.stand_ins.web import Answer, CutOffError, Incoming, Request, text_answer, word

MAX_PARTS: Final = 2000
MAX_FILES: Final = 8
MAX_HEADER_BYTES: Final = 16 << 10  # one line
# All fields together. What goes beyond is dropped, and `Form.cut` says so.
MAX_FIELD_BYTES: Final = 1 << 20


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
    cut: bool = False


class FormReader:
    """Feed it the body of a multipart/form-data request; `form` grows within the bounds above.

    Raises `multipart.MultipartError` for a body that is not what its content type says; `form`
    keeps what was read. RFC 7578.
    """

    def __init__(self, content_type: str, *, kept_bytes: int) -> None:
        kind, options = parse_options_header(content_type)
        boundary = options.get("boundary", "")
        if kind != "multipart/form-data" or not 1 <= len(boundary) <= 70:
            raise MultipartError("the content type is not multipart/form-data with a boundary")
        self.form = Form()
        self._kept_bytes = kept_bytes
        self._parser = PushMultipartParser(
            boundary, max_header_size=MAX_HEADER_BYTES, max_segment_count=MAX_PARTS
        )
        self._field_bytes = 0
        self._part: FormFile | tuple[str, bytearray] = ("", bytearray())

    def feed(self, data: bytes) -> None:
        """The next piece; what follows the last boundary is passed over."""
        for event in self._parser.parse(data):
            if isinstance(event, MultipartSegment):
                self._begin(event)
            elif isinstance(self._part, FormFile):
                if event is not None:
                    self._part.content.feed(bytes(event))
            elif event is None:  # The part's end.
                name, value = self._part
                self.form.fields.setdefault(name, value.decode("utf-8", "replace"))
            else:
                room = MAX_FIELD_BYTES - self._field_bytes
                self.form.cut |= len(event) > room
                self._part[1].extend(event[:room])
                self._field_bytes += min(room, len(event))

    def close(self) -> None:
        """The body has ended."""
        self._parser.close()

    def _begin(self, segment: MultipartSegment) -> None:
        if segment.filename is None:
            self._part = (segment.name, bytearray())
            return
        if len(self.form.files) >= MAX_FILES:
            raise ParserLimitReached(f"more than {MAX_FILES} files")
        content = Capture(max_kept_bytes=self._kept_bytes)
        self._part = FormFile(field_name=segment.name, filename=segment.filename, content=content)
        self.form.files.append(self._part)


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
        reader.close()
        missing = next((name for name in ("name", "version") if not form.fields.get(name)), "")
        refused = f"the form has no {missing}" if missing else ""
    except MultipartError as error:
        refused = str(error.args[0])
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
