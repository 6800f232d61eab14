"""Uploads: read to their end, put on record, answered as if taken, and thrown away."""

from __future__ import annotations

from typing import Final

from belljar.events import Body, JsonValue
from belljar.network.gateway.context import MAX_KEPT_BODY_BYTES, StandInContext
from belljar.network.stand_ins.multipart import Form, FormFile, MultipartError, MultipartReader
from belljar.network.stand_ins.records import credentials, word
from belljar.network.stand_ins.web import Answer, CutOffError, Incoming, Request, text_answer

_KEPT_FIELDS: Final = (
    "filetype",
    "pyversion",
    "metadata_version",
    "summary",
    "author",
    "author_email",
    "sha256_digest",
)


async def take_upload(
    context: StandInContext,
    request: Request,
    incoming: Incoming,
    *,
    is_refused: bool = False,
) -> Answer | None:
    """Answer one upload (the protocol of twine: a multipart form with `:action`, the metadata and
    the file in `content`).

    200 for what an index would take, 403 for what `is_refused`; 400 for what is no such form. Each
    is on record first, also one that broke off. Memory: the form's fields (1 MiB) and the first 64
    KiB of its files.
    """
    try:
        reader = MultipartReader(request.header("content-type"), kept_bytes=MAX_KEPT_BODY_BYTES)
    except MultipartError as error:
        await _record(context, request, Form(), str(error))
        return text_answer("400 The upload is not a form", 400)
    status, reason = 200, ""
    try:
        status, reason = await _read(incoming, reader)
    except MultipartError as error:
        status, reason = 400, str(error)
    except CutOffError:
        await _record(context, request, reader.form, "it broke off")
        return None
    if is_refused:
        status, reason = 403, "Invalid or non-existent authentication information."
    await _record(context, request, reader.form, reason)
    return text_answer("" if status == 200 else f"{status} {reason}", status)


async def _read(incoming: Incoming, reader: MultipartReader) -> tuple[int, str]:
    async for piece in incoming.pieces():
        reader.feed(piece)
    if not reader.form.complete:
        return 400, "the form ends too early"
    missing = [name for name in ("name", "version") if not reader.form.fields.get(name)]
    return (400, f"the form has no {missing[0]}") if missing else (200, "")


async def _record(context: StandInContext, request: Request, form: Form, refused: str) -> None:
    file = next((file for file in form.files if file.field_name == "content"), None)
    data: dict[str, JsonValue] = {
        "what": "publish",
        "registry": "pypi",
        "cell": request.cell,
        "action": word(form.fields.get(":action", "")),
        "name": word(form.fields.get("name", "")),
        "version": word(form.fields.get("version", "")),
        "fields": {name: word(form.fields[name]) for name in _KEPT_FIELDS if form.fields.get(name)},
        "refused": refused,
        **_about(file),
        **credentials(request.header("authorization")),
    }
    bodies: list[Body] = [
        one.content.body(f"file-{number}") for number, one in enumerate(form.files[:8])
    ]
    await context.record("network.attempt", data, bodies)


def _about(file: FormFile | None) -> dict[str, JsonValue]:
    if file is None:
        return {"filename": "", "size_bytes": 0}
    return {
        "filename": word(file.filename),
        "size_bytes": file.content.total_bytes,
        "sha256": file.content.sha256,
    }
