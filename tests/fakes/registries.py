"""What tests of registries share: a context whose record is a list, a question to an app in the
same process, an app served on loopback, packages made on the spot."""

from __future__ import annotations

import asyncio
import base64
import gzip
import hashlib
import io
import json
import socket
import tarfile
import threading
import zipfile
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tests.fakes.web import Reply, answered, no_answer, request_to

from belljar.events import Body, JsonValue
from belljar.network.stand_ins.web import App, StandInContext, StreamApp


@dataclass
class Ledger:
    """Keeps what a stand-in recorded, in order. `full`: nothing can be recorded any more."""

    attempts: list[dict[str, JsonValue]] = field(default_factory=list)
    bodies: list[tuple[Body, ...]] = field(default_factory=list)
    full: bool = False

    async def record(self, data: Mapping[str, JsonValue], *bodies: Body) -> None:
        if self.full:
            raise OSError("the record is full")
        if len(json.dumps(data)) > 48 << 10 or len(bodies) > 8:
            raise ValueError("not an event of a stand-in")
        if any(len(body.content) > 64 << 10 for body in bodies):
            raise ValueError("a body is too large")
        self.attempts.append(dict(data))
        self.bodies.append(bodies)


def context_for(files: Path, ledger: Ledger) -> StandInContext:
    """A context with a clock that stands still and even randomness."""
    return StandInContext(
        id="registry",
        names=("registry.example",),
        settings={},
        files=files,
        clock=lambda: 1_760_000_000.0,
        random=lambda count: hashlib.shake_128(b"seed").digest(count),
        record=ledger.record,
        ask=no_answer,
    )


def ask(
    app: App,
    method: str,
    path: str,
    *,
    headers: Mapping[str, str] | None = None,
    body: bytes = b"",
    query: str = "",
) -> Reply:
    """One request to an app in this process, as the gateway makes it."""
    fields = {"host": "registry.example", **(headers or {})}
    return asyncio.run(answered(app, request_to(method, path, query, fields, body)))


@dataclass
class Both:
    """Both ways of a connection, as the gateway gives them to a stand-in."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def receive(self) -> bytes:
        return await self.reader.read(64 << 10)

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()


async def _awaited(answering: Awaitable[None]) -> None:
    await answering


@contextmanager
def served_stream(app: StreamApp) -> Iterator[int]:
    """A stream stand-in on loopback, in a thread of its own; gives its port."""
    listener = socket.create_server(("127.0.0.1", 0))
    tasks: set[asyncio.Task[Any]] = set()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if task := asyncio.current_task():
            tasks.add(task)
        try:
            await app(Both(reader, writer), "agent")
        finally:
            writer.close()

    async def run(stop: Callable[[], Awaitable[object]]) -> None:
        async with await asyncio.start_server(connected, sock=listener):
            await stop()
        await asyncio.wait([*tasks, asyncio.ensure_future(stop())], timeout=30)  # noqa: TID251

    with _in_thread(run):
        yield listener.getsockname()[1]


@contextmanager
def served_service(
    make: Callable[[StandInContext], StreamApp], settings: Mapping[str, Any], ledger: Ledger
) -> Iterator[int]:
    """A decoy service with what was minted for it, as `served_stream`; gives its port."""
    context = replace(context_for(Path("/nonexistent"), ledger), settings=settings)
    with served_stream(make(context)) as port:
        yield port


@contextmanager
def _in_thread(run: Callable[[Callable[[], Awaitable[Any]]], Awaitable[None]]) -> Iterator[None]:
    loop, stop = asyncio.new_event_loop(), asyncio.Event()
    thread = threading.Thread(target=lambda: loop.run_until_complete(_awaited(run(stop.wait))))
    thread.start()
    try:
        yield
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


def basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def make_wheel(directory: Path, name: str, version: str, *, code: str = "") -> Path:
    info = f"{name}-{version}.dist-info"
    wheel = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    files = {
        f"{name}.py": code,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": wheel,
    }
    lines = [
        f"{path},sha256={_urlsafe(hashlib.sha256(text.encode()).digest())},{len(text)}"
        for path, text in files.items()
    ]
    files[f"{info}/RECORD"] = "\n".join([*lines, f"{info}/RECORD,,"]) + "\n"
    path = directory / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for member, text in files.items():
            archive.writestr(member, text)
    return path


def make_tar(path: Path, files: Mapping[str, bytes]) -> Path:
    path.write_bytes(gzip.compress(tar_of(files)))
    return path


def tar_of(files: Mapping[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(content), 0o644
            archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def form(fields: Mapping[str, str], files: Mapping[str, tuple[str, bytes]]) -> tuple[str, bytes]:
    parts = [
        f'Content-Disposition: form-data; name="{name}"\r\n\r\n{value}'.encode()
        for name, value in fields.items()
    ]
    parts += [
        f'Content-Disposition: form-data; name="{name}"; filename="{filename}"\r\n\r\n'.encode()
        + content
        for name, (filename, content) in files.items()
    ]
    mark = b"--xyzzy"
    body = b"".join(mark + b"\r\n" + part + b"\r\n" for part in parts) + mark + b"--\r\n"
    return "multipart/form-data; boundary=xyzzy", body


def _urlsafe(digest: bytes) -> str:
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


def ar_of(members: Sequence[tuple[str, bytes]]) -> bytes:
    parts = [b"!<arch>\n"]
    for name, content in members:
        header = f"{name:<16}{0:<12}{0:<6}{0:<6}{'100644':<8}{len(content):<10}`\n"
        parts += [header.encode(), content, b"\n" * (len(content) % 2)]
    return b"".join(parts)
