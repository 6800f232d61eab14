"""A Python package index: HTML (PEP 503), and uploads into a void."""

from __future__ import annotations

import html
import re
from collections.abc import Mapping
from contextlib import suppress
from functools import cached_property
from itertools import islice
from typing import Final

from packaging import utils
from packaging.version import Version

from belljar.network.stand_ins import files, web

_HTML: Final = "text/html; charset=utf-8"
_MAX_FIELD_BYTES: Final = 4 << 10
_FIELD: Final = re.compile(rb'; ?name="(name|version)"\r\n\r\n([^\r\n]*)')
_FILE_PART: Final = re.compile(rb'; ?filename="([^"\r\n]*)"')


def read_form(body: bytes) -> tuple[dict[str, str], str, bytes]:
    """Return fields, file name and content (RFC 7578)."""
    fields = {
        each[1].decode(): each[2][:_MAX_FIELD_BYTES].decode("utf-8", "replace")
        for each in islice(_FIELD.finditer(body), 8)
    }
    file, content = _FILE_PART.search(body), body
    if file is None or not body.startswith(b"--"):
        return fields, "", body
    if (begin := body.find(b"\r\n\r\n", file.end()) + 4) > 4:
        end = body.find(b"\r\n" + body[: body.find(b"\r\n")], begin)
        content = body[begin : end if end >= 0 else len(body)]
    return fields, file[1].decode("utf-8", "replace"), content


class _Pypi(files.Registry):
    name, algorithms = "pypi", ("sha256",)

    @cached_property
    def _projects(self) -> Mapping[str, Mapping[str, files.StoredFile]]:
        named = list[tuple[str, Version, str, files.StoredFile]]()
        for file in self.files:
            base = file.path.name
            with suppress(ValueError):  # as all of the library's are
                if base.endswith(".whl"):
                    project, version, *_ = utils.parse_wheel_filename(base)
                else:
                    project, version = utils.parse_sdist_filename(base)
                named.append((project, version, base, file))
        found: dict[str, dict[str, files.StoredFile]] = {}
        for name, _, base, file in sorted(named, key=lambda one: one[:3]):
            found.setdefault(name, {})[base] = file
        return found

    async def handle(self, request: web.Request) -> web.Answer:
        if request.method == "POST" and request.path in {"/", "/legacy", "/legacy/"}:
            fields, filename, content = read_form(request.body)
            words = {name: fields.get(name, "") for name in ("name", "version")}
            refused = "" if all(words.values()) else "not a form with a name and a version"
            about = {**words, "filename": filename, "refused": refused}
            await self.record(request, "publish", content, **about)
            return web.text_answer(f"400 {refused}", 400) if refused else web.text_answer("")
        if web.writes(request):
            return web.text_answer("Method Not Allowed", 405, (("allow", "GET, HEAD"),))
        links: dict[str, str] = {}
        match [part for part in request.path.split("/") if part]:
            case ["simple"]:
                links = {f"{name}/": name for name in sorted(self._projects)}
            case ["simple", name]:
                for base, file in self._projects.get(utils.canonicalize_name(name), {}).items():
                    digest = (await self.digests(file))["sha256"]
                    links[f"/packages/{base}#sha256={digest}"] = base
            case ["packages", name]:
                for named in self._projects.values():
                    if name in named:
                        # Of an archive, too: with a `content-encoding` clients would unpack it.
                        return files.file_answer(named[name], media="application/octet-stream")
        if not links:
            return web.text_answer("404 Not Found", 404)
        pairs = ((html.escape(to), html.escape(name)) for to, name in links.items())
        lines = "".join(f'<a href="{to}">{name}</a><br>\n' for to, name in pairs)
        return web.text_answer(f"<!DOCTYPE html>\n<title>Links</title>\n{lines}", media=_HTML)


check, make = files.check, _Pypi
