"""An npm registry of packed packages (`npm pack`)."""

from __future__ import annotations

import base64
import codecs
import re
from collections.abc import Mapping
from contextlib import suppress
from functools import cached_property
from typing import Any, Final

from belljar.network.stand_ins import files, web

_VERSION: Final = re.compile(
    r"\d{1,16}\.\d{1,16}\.\d{1,16}(?:-[0-9A-Za-z.-]+)?(?:\+[0-9A-Za-z.-]+)?", re.ASCII
)
# Of a document: a value takes up to 300 bytes of the gateway's memory.
_MAX_COMMAS: Final = 1 << 20
_NOT_FOUND: Final = web.json_answer({"error": "Not found"}, 404)


def _order(version: str) -> tuple[object, ...]:
    release, _, pre_release = version.partition("+")[0].partition("-")
    return not pre_release, tuple(map(int, release.split("."))), version


def _tarball(name: str, version: str) -> str:
    return f"{name.rpartition('/')[2]}-{version}.tgz"


class _Npm(files.Registry):
    name, algorithms = "npm", ("sha1", "sha512")

    @cached_property
    def _packages(self) -> Mapping[str, Mapping[str, tuple[files.StoredFile, Mapping[str, Any]]]]:
        found: dict[str, dict[str, tuple[files.StoredFile, Mapping[str, Any]]]] = {}
        for file in self.files:
            with suppress(ValueError, OSError, LookupError, TypeError), file.open() as source:
                content = files.tar_member(source, r"(?:\./)?[^/]+/package\.json")
                # npm takes a byte order mark too.
                manifest = web.parse_json(content.removeprefix(codecs.BOM_UTF8))
                name, version = str(manifest["name"]), manifest["version"]
                if _VERSION.fullmatch(version):
                    found.setdefault(name, {}).setdefault(version, (file, manifest))
        ordered = ((name, sorted(versions, key=_order)) for name, versions in found.items())
        return {name: {each: found[name][each] for each in versions} for name, versions in ordered}

    async def _packument(self, name: str, base_url: str) -> web.Answer:
        packages = self._packages.get(name)
        if not packages:
            return _NOT_FOUND
        versions: dict[str, dict[str, Any]] = {}
        for version, (file, manifest) in packages.items():
            digests = await self.digests(file)
            integrity = base64.b64encode(bytes.fromhex(digests["sha512"])).decode()
            dist = {
                "shasum": digests["sha1"],
                "integrity": f"sha512-{integrity}",
                "tarball": f"{base_url}/{name}/-/{_tarball(name, version)}",
            }
            versions[version] = {**manifest, "_id": f"{name}@{version}", "dist": dist}
        tags = {"latest": list(packages)[-1]}
        document = {"_id": name, "name": name, "dist-tags": tags, "versions": versions}
        return web.json_answer(document)

    async def handle(self, request: web.Request) -> web.Answer:
        parts = [part for part in request.path.split("/") if part]
        if len(parts) > 1 and parts[0].startswith("@"):
            parts[:2] = [f"{parts[0]}/{parts[1]}"]  # A scope and its name, encoded or not.
        if not web.writes(request):
            match parts:
                case [] | ["-", "ping"]:
                    return web.json_answer({})
                case [name]:
                    return await self._packument(name, request.base_url)
                case [name, "-", filename]:
                    for version, (file, _) in self._packages.get(name, {}).items():
                        if filename == _tarball(name, version):
                            return files.file_answer(file, media="application/octet-stream")
            return _NOT_FOUND
        if parts[:4] == ["-", "npm", "v1", "security"]:
            return _NOT_FOUND  # npm goes on without an audit, which changes nothing
        if request.method == "PUT" and len(parts) == 1:
            return await self._publish(request, parts[0])
        # Tags, unpublishing, logins. A login's document has a password, which is never kept, and a
        # logout's path the token that it ends.
        is_login = parts[:2] == ["-", "user"]
        path = "/-/user" if is_login else request.path
        about = {"method": request.method, "path": path, "refused": "not found"}
        await self.record(request, "change", b"" if is_login else request.body, **about)
        return _NOT_FOUND

    async def _publish(self, request: web.Request, name: str) -> web.Answer:
        document: Any = None
        with suppress(ValueError):
            document = web.parse_json(request.body, max_commas=_MAX_COMMAS)
        document = document if isinstance(document, dict) else {}
        refused = "" if document else "not a JSON object"
        version, filename, packed = "", "", ""
        with suppress(LookupError, TypeError, AttributeError, StopIteration):
            filename, attachment = next(iter(document["_attachments"].items()))
            packed, version = attachment["data"], next(iter(document["versions"]))
        content = request.body
        with suppress(ValueError, TypeError):
            content = base64.b64decode(packed) or content
        about = {"name": name, "version": str(version), "filename": str(filename)}
        what = "change" if document and not filename else "publish"
        await self.record(request, what, content, **about, refused=refused)
        if refused:
            return web.json_answer({"error": refused}, 400)
        return web.json_answer({"ok": True, "success": True}, 201)


check, make = files.check, _Npm
