"""Package registries of directories; what is published is recorded, and never served."""

from __future__ import annotations

import base64
import codecs
import hashlib
import html
import io
import lzma
import re
import tarfile
import zlib
from asyncio import Lock
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from email.message import Message
from email.parser import HeaderParser
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import IO, Any, Final

from packaging import utils
from packaging.version import Version

from belljar.events import JsonValue
from belljar.network.stand_ins import files, web
from belljar.network.stand_ins.files import Fault, Faults, StoredFile, list_files, pieces_of
from belljar.policy.files import reason

# How broken archives end; `TypeError`: `tarfile`'s where a gzip header is cut.
_BROKEN: Final = (*(tarfile.TarError, zlib.error, lzma.LZMAError, EOFError), TypeError, ValueError)
_MAX_MEMBERS: Final = 50_000  # Millions of empty files would be read for minutes.
MAX_MEMBER_BYTES: Final = 1 << 20


class Registry(web.HttpService):
    name = ""
    algorithms: tuple[str, ...] = ()  # hashlib's, of a file's digests
    max_body_bytes, writes_wait = web.MAX_BODY_BYTES, True

    def __init__(self, context: web.StandInContext) -> None:
        super().__init__(context)
        self._digests: dict[str, Mapping[str, str]] = {}

    @cached_property
    def files(self) -> Sequence[StoredFile]:
        return list_files(self.context.files)

    async def digests(self, file: StoredFile) -> Mapping[str, str]:
        """Return hexadecimal digests by algorithm. Raises `OSError`."""
        if file.name not in self._digests:
            hashes = {name: hashlib.new(name, usedforsecurity=False) for name in self.algorithms}
            async for chunk in pieces_of(file):
                for running in hashes.values():
                    running.update(chunk)
            self._digests[file.name] = {name: each.hexdigest() for name, each in hashes.items()}
        return self._digests[file.name]

    async def record(self, request: web.Request, what: str, content: bytes, **words: str) -> None:
        is_upload = what == "publish"
        body = web.kept_body("file-0" if is_upload else "request", content)
        data: dict[str, JsonValue] = {"registry": self.name, "cell": request.cell, "what": what}
        data |= web.credentials(request.header("authorization"))
        data |= {name: web.word(text) for name, text in words.items()}
        if is_upload:
            data |= {"size_bytes": body.total_bytes, "sha256": body.sha256}
        await self.context.record(data, *([body] if content else ()))


def tar_member(source: IO[bytes], pattern: str) -> bytes:
    """Return the first file of matching name. Raises `ValueError`."""
    try:
        with tarfile.open(fileobj=source, mode="r|*") as stream:
            for entry in islice(stream, _MAX_MEMBERS):
                if entry.isfile() and re.fullmatch(pattern, entry.name):
                    opened = stream.extractfile(entry)
                    content = opened.read(MAX_MEMBER_BYTES + 1) if opened else b""
                    if len(content) <= MAX_MEMBER_BYTES:
                        return content
    except (OSError, *_BROKEN) as error:
        raise ValueError(str(error)) from None
    raise ValueError("no such file of at most a MiB")


def check(_settings: Mapping[str, JsonValue], directory: Path) -> Faults:
    try:
        what = "" if list_files(directory) else "empty, or no directory"
    except (ValueError, OSError) as error:
        what = reason(error)
    return (Fault(what, file=str(directory)),) if what else ()


_NPM_VERSION: Final = re.compile(
    r"\d{1,16}\.\d{1,16}\.\d{1,16}(?:-[0-9A-Za-z.-]+)?(?:\+[0-9A-Za-z.-]+)?", re.ASCII
)
_MAX_COMMAS: Final = 1 << 20  # A value takes up to 300 bytes of memory.
_NOT_FOUND: Final = web.json_answer({"error": "Not found"}, 404)


def _order(version: str) -> tuple[object, ...]:
    release, _, pre_release = version.partition("+")[0].partition("-")
    return not pre_release, tuple(map(int, release.split("."))), version


def _tarball(name: str, version: str) -> str:
    return f"{name.rpartition('/')[2]}-{version}.tgz"


class Npm(Registry):
    name, algorithms = "npm", ("sha1", "sha512")

    @cached_property
    def _packages(self) -> Mapping[str, Mapping[str, tuple[StoredFile, Mapping[str, Any]]]]:
        found: dict[str, dict[str, tuple[StoredFile, Mapping[str, Any]]]] = {}
        for file in self.files:
            with suppress(ValueError, OSError, LookupError, TypeError), file.open() as source:
                content = tar_member(source, r"(?:\./)?[^/]+/package\.json")
                # npm takes a byte order mark too.
                manifest = web.parse_json(content.removeprefix(codecs.BOM_UTF8))
                name, version = str(manifest["name"]), manifest["version"]
                if _NPM_VERSION.fullmatch(version):
                    found.setdefault(name, {}).setdefault(version, (file, manifest))
        ordered = ((name, sorted(versions, key=_order)) for name, versions in found.items())
        return {name: {each: found[name][each] for each in versions} for name, versions in ordered}

    async def _packument(self, name: str, base_url: str) -> web.HttpAnswer:
        packages = self._packages.get(name)
        if not packages:
            return _NOT_FOUND
        versions: dict[str, dict[str, Any]] = {}
        for version, (file, manifest) in packages.items():
            digests = await self.digests(file)
            integrity = base64.b64encode(bytes.fromhex(digests["sha512"])).decode()
            dist = {"shasum": digests["sha1"], "integrity": f"sha512-{integrity}"}
            dist["tarball"] = f"{base_url}/{name}/-/{_tarball(name, version)}"
            versions[version] = {**manifest, "_id": f"{name}@{version}", "dist": dist}
        tags = {"latest": list(packages)[-1]}
        document = {"_id": name, "name": name, "dist-tags": tags, "versions": versions}
        return web.json_answer(document)

    async def handle(self, request: web.Request) -> web.HttpAnswer:
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
        # Tags, unpublishing, logins: a password, or the token in a path, is never kept.
        is_login = parts[:2] == ["-", "user"]
        path = "/-/user" if is_login else request.path
        about = {"method": request.method, "path": path, "refused": "not found"}
        await self.record(request, "change", b"" if is_login else request.body, **about)
        return _NOT_FOUND

    async def _publish(self, request: web.Request, name: str) -> web.HttpAnswer:
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


class Pypi(Registry):
    name, algorithms = "pypi", ("sha256",)

    @cached_property
    def _projects(self) -> Mapping[str, Mapping[str, StoredFile]]:
        named = list[tuple[str, Version, str, StoredFile]]()
        for file in self.files:
            base = file.path.name
            with suppress(ValueError):  # as all of the library's are
                if base.endswith(".whl"):
                    project, version, *_ = utils.parse_wheel_filename(base)
                else:
                    project, version = utils.parse_sdist_filename(base)
                named.append((project, version, base, file))
        found: dict[str, dict[str, StoredFile]] = {}
        for name, _, base, file in sorted(named, key=lambda one: one[:3]):
            found.setdefault(name, {})[base] = file
        return found

    async def handle(self, request: web.Request) -> web.HttpAnswer:
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


MAX_CONTROL_BYTES: Final = 8 << 20  # Of a packed control archive.
# ar(5): name, times and owners, size, end
_HEADER: Final = re.compile(rb"(.{16}).{32}([0-9 ]{10})`\n", re.DOTALL)
# A source may name any: apt complains of one that the Release file lacks, so all are there, empty.
_COMPONENTS: Final = (
    *("main", "contrib", "non-free", "non-free-firmware", "restricted", "universe", "multiverse"),
)
_OURS: Final = {"filename", "size", "md5sum", "sha1", "sha256", "sha512", "status"}
_SUITE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9+._~-]{0,62}", re.ASCII)
_DAY_S: Final = 86_400
_BELOW: Final = re.compile(r"(?:.*/)?((?:dists|pool)/.+)", re.DOTALL)
_TEXT: Final = (("content-type", "text/plain; charset=utf-8"),)


def read_control(file: StoredFile) -> Message:
    """Return a package file's control data. Raises `ValueError`, `OSError`."""
    with file.open() as source:
        if source.read(8) != b"!<arch>\n":
            raise ValueError("no ar archive")
        # A package has three members (deb(5)); a later version's may stand among them.
        for _ in range(16):
            match = _HEADER.fullmatch(source.read(60))
            if match is None or not match[2].strip():
                break
            name, length = match[1].strip().rstrip(b"/"), int(match[2])
            packed = io.BytesIO(source.read(min(length + length % 2, MAX_CONTROL_BYTES)))
            if name.startswith(b"control.tar"):
                member = tar_member(packed, r"(?:\./)?control")
                control = HeaderParser().parsestr(member.decode("utf-8", "replace").strip())
                if all(control[key] for key in ("Package", "Version", "Architecture")):
                    return control
    raise ValueError("no control file")


class Debian(Registry):
    name, algorithms = "debian", ("md5", "sha256")

    def __init__(self, context: web.StandInContext) -> None:
        super().__init__(context)
        # The Release file is dated a day before, so a guest's clock may be somewhat behind.
        self._made_s = int(context.clock()) - _DAY_S
        self._reading = Lock()
        self._pool: dict[str, StoredFile] = {}
        self._indexes: dict[str, bytes] = {}  # By the name below a suite.
        self._architectures: list[str] = []

    async def handle(self, request: web.Request) -> web.HttpAnswer:
        if request.method in {"PUT", "POST"}:
            about = {"path": request.path, "name": request.path.rpartition("/")[2], "refused": ""}
            await self.record(request, "publish", request.body, **about)
            return web.text_answer("", 201)
        if web.writes(request):
            return web.text_answer("Method Not Allowed", 405, (("allow", "GET, HEAD, PUT"),))
        match = _BELOW.fullmatch(request.path)
        below = match[1] if match else ""
        async with self._reading:
            if not self._indexes:
                await self._read_packages()
        suite, _, name = below.partition("/")[2].partition("/")
        if name == "Release" and _SUITE.fullmatch(suite):
            return web.HttpAnswer(headers=_TEXT, body=self._release(suite).encode())
        if name in self._indexes:
            return web.HttpAnswer(headers=_TEXT, body=self._indexes[name])
        if (file := self._pool.get(below)) is None:
            return web.text_answer("404 Not Found", 404)
        return files.file_answer(file, media="application/vnd.debian.binary-package")

    async def _read_packages(self) -> None:
        stanzas, texts = [], list[tuple[str, str]]()
        for file in self.files:
            with suppress(ValueError, OSError):
                stanzas.append((read_control(file), file))
        stanzas.sort(key=lambda pair: (pair[0]["Package"], pair[0]["Version"]))
        for control, file in stanzas:
            digests, package = await self.digests(file), control["Package"]
            start = package[:4] if package.startswith("lib") else package[0]
            version = control["Version"].rpartition(":")[2]
            base = f"{package}_{version}_{control['Architecture']}.deb"
            place = f"pool/main/{start}/{package}/{base}"
            self._pool.setdefault(place, file)
            lines = [
                f"{name}: {text}" for name, text in control.items() if name.lower() not in _OURS
            ]
            lines += [f"Filename: {place}", f"Size: {file.size_bytes}"]
            lines += [f"MD5sum: {digests['md5']}", f"SHA256: {digests['sha256']}"]
            texts.append((control["Architecture"], "\n".join(lines) + "\n"))
        self._architectures = sorted({"amd64", "arm64"} | {arch for arch, _ in texts} - {"all"})
        for arch in self._architectures:
            own = "\n".join(text for each, text in texts if each in {arch, "all"})
            for component in _COMPONENTS:
                content = own.encode() if component == "main" else b""
                self._indexes[f"{component}/binary-{arch}/Packages"] = content

    def _release(self, suite: str) -> str:
        date = datetime.fromtimestamp(self._made_s, UTC).strftime("%a, %d %b %Y %H:%M:%S UTC")
        lines = [
            f"Origin: Debian\nLabel: Debian\nSuite: {suite}\nCodename: {suite}\nDate: {date}",
            f"Architectures: {' '.join(self._architectures)}",
            f"Components: {' '.join(_COMPONENTS)}\nSHA256:",
        ]
        lines += (
            f" {hashlib.sha256(content).hexdigest()} {len(content)} {name}"
            for name, content in sorted(self._indexes.items())
        )
        return "\n".join(lines) + "\n"
