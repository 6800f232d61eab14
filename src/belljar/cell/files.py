"""A cell's operations on files, done by the guest's agent with the rights of a user."""

from __future__ import annotations

import os
import posixpath
import secrets
import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal

import anyio
import anyio.to_thread

from belljar.capture import body_of
from belljar.cell import local_tree
from belljar.cell.base import CellBase, text
from belljar.cell.local_tree import KIND_NAMES, Transfer, TreeDestination, TreeManifest
from belljar.channel import frames, trees
from belljar.channel.frames import OpKind
from belljar.channel.operations import feed_file
from belljar.channel.trees import MAX_DEPTH, RecordKind, TreeRecord
from belljar.dataclass import dataclass
from belljar.errors import CellError
from belljar.events import Body, JsonValue, Kind
from belljar.policy.files import Tree
from belljar.signals.observe import output_part

_WRITE: Final = (Kind.FILE_WRITE_STARTED, Kind.FILE_WRITE_COMPLETED, Kind.FILE_WRITE_FAILED)
_READ: Final = (Kind.FILE_READ_STARTED, Kind.FILE_READ_COMPLETED, Kind.FILE_READ_FAILED)
_FILES: Final = (Kind.FILES_STARTED, Kind.FILES_COMPLETED, Kind.FILES_FAILED)
# A guest's tree comes to this host's disk: the caller may raise both.
MAX_TRANSFER_BYTES: Final = 256 << 20
MAX_TRANSFER_FILES: Final = 10_000
# A list is in memory, and a guest can make any number of names.
MAX_LISTED: Final = 10_000
# A half-made tree is removed by a guest that may hang.
_CLEAN_UP_S: Final = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FileInfo:
    """One entry of a cell's file system, as the guest says.

    Attributes:
        name: bytes that are no UTF-8 are surrogate escapes; escape it where it is shown.
        kind: `other` is a socket, pipe or device.
        mode: permissions with set-user-ID, set-group-ID and sticky.
    """

    name: str
    kind: Literal["file", "directory", "link", "other"]
    size_bytes: int
    mode: int
    mtime_s: float
    link_target: str = ""


# Of a downloaded file; the rest is recorded as not scanned.
MAX_SCANNED_FILE_BYTES: Final = 64 << 20


class FileOperations(CellBase):
    """A `Cell`'s operations on files and directories."""

    async def write_file(
        self,
        path: str,
        contents: bytes | str,
        *,
        user: str | None = None,
        mode: int | None = None,
        owner: str = "",
        timeout_s: float | None = None,
    ) -> None:
        """Write a file; its parents are made, an existing one is replaced at once or not at all.

        Relative paths resolve against the work directory. Raise the guest's `OSError` with
        `path` in it, `TimeoutError`, `CellError`.
        """
        contents = contents.encode() if isinstance(contents, str) else contents
        options = self._options(user, timeout_s) | {"mode": mode, "owner": owner}
        await self._write(path, contents, options)

    async def make_directory(self, path: str, *, mode: int | None = None, owner: str = "") -> None:
        """Make a directory with parents, as root. Raise as `write_file`."""
        # The work directory may be the one to be made
        options = self._options("0") | {"cwd": "/", "mode": mode, "owner": owner}
        await self._write(path, b"", options | {"is_directory": True})

    def _options(self, user: str | None, timeout_s: float | None = None) -> dict[str, Any]:
        limit_s = timeout_s or self.plan.limits.exec_timeout_s
        return {"user": self._user(user), "cwd": self.plan.workdir, "timeout_s": limit_s}

    async def _write(self, path: str, contents: bytes, options: Mapping[str, Any]) -> None:
        started: dict[str, JsonValue] = {"path": text(path), "bytes": len(contents)}
        started |= {name: options[name] for name in ("user", "mode")}
        with self._recorded(_WRITE, started, sent=[body_of("content", contents)]):
            await self._live.client.write_file(path, contents, **options)

    async def read_file(
        self,
        path: str,
        *,
        max_bytes: int = 16 << 20,
        user: str | None = None,
        timeout_s: float | None = None,
    ) -> bytes:
        """Read a regular file. Raise as `write_file`, and `FileTooLargeError`."""
        options, seen = self._options(user, timeout_s), list[Body]()
        started = {"path": text(path), "max_bytes": max_bytes, "user": options["user"]}
        with self._recorded(_READ, started, seen=lambda: seen) as result:
            contents = await self._live.client.read_file(path, max_bytes=max_bytes, **options)
            seen.append(body_of("content", contents))
            result["bytes"] = len(contents)
        if not self._redacts:
            return contents
        return await anyio.to_thread.run_sync(self._let_out, contents, "file.read")

    async def upload(
        self,
        local_path: str | os.PathLike[str],
        target: str,
        *,
        user: str | None = None,
        overwrite: bool = False,
        max_files: int = MAX_TRANSFER_FILES,
        max_bytes: int = MAX_TRANSFER_BYTES,
        timeout_s: float | None = None,
    ) -> Transfer:
        """Copy a file or directory of this host into the cell: all of it, or nothing.

        A directory becomes `target`; an existing one keeps its other entries. `overwrite`
        replaces files and links, but never a directory by a file.

        Raise as `write_file`, `FileExistsError`, `FileTooLargeError` beyond `max_bytes`,
        `ValueError` beyond `max_files`, for a link that may lead out, a socket, pipe or device.
        """
        listing = partial(
            local_tree.list_source, Path(local_path), max_files=max_files, max_bytes=max_bytes
        )
        source = await anyio.to_thread.run_sync(listing)
        options: dict[str, Any] = {"overwrite": overwrite, "timeout_s": timeout_s}
        return await self._put_tree(source, target, user=user, **options)

    async def _put_tree(
        self,
        tree: Tree,
        target: str,
        *,
        reading: Callable[[], AbstractContextManager[object]] = nullcontext,
        **options: Any,  # noqa: ANN401 - as `_put_records` has them
    ) -> Transfer:
        directory, name = target, ""
        if not tree.is_directory:
            directory, name = posixpath.split(target)
            if not name or name in (".", ".."):
                raise ValueError(f"{target!r} names no file; give its whole path in the cell")
        manifest = TreeManifest()

        def records() -> Iterator[bytes]:
            with reading():
                yield from local_tree.records_of(tree, name, manifest)

        options |= {"entries": len(tree.entries), "total_bytes": tree.total_bytes}
        mode = tree.entries[0].mode | 0o700 if tree.is_directory else None
        return await self._put_records(
            directory, records(), manifest, target=target, mode=mode, **options
        )

    async def _put_records(
        self,
        directory: str,
        records: Iterator[bytes],
        manifest: TreeManifest,
        *,
        target: str,
        entries: int,
        total_bytes: int,
        user: str | None,
        mode: int | None,
        overwrite: bool = False,
        times: bool = False,
        owner: str = "",
        timeout_s: float | None = None,
    ) -> Transfer:
        """Put records into a directory; all or nothing. Their iterator fills the manifest.

        `mode` is that of made directories. With `times` files have their records' times, and
        made directories the newest of these.
        """
        options, staging = self._options(user, timeout_s), f".{secrets.token_hex(8)}"
        who, limit_s, client = options["user"], options["timeout_s"], self._live.client
        body = frames.place(who, options["cwd"], directory or ".", overwrite | times << 1)
        body += struct.pack("<I", frames.KEEP_MODE if mode is None else mode)
        body += frames.counted(staging.encode()) + frames.counted(owner.encode())
        data = {"entries": entries, "bytes": total_bytes, "overwrite": overwrite}
        with self._files_recorded("upload", target, who, manifest, **data) as result:
            try:
                putting = client.operation(OpKind.PUT, body, limit_s, stdin_open=True)
                async with putting as operation:
                    await feed_file(operation, local_tree.fed(records), directory or ".", limit_s)
            except BaseException as error:
                if not isinstance(error, CellError):
                    # A put that was ended from outside leaves what it had made.
                    made, options["timeout_s"] = posixpath.join(directory, staging), _CLEAN_UP_S
                    quiet = suppress(OSError, CellError)
                    with quiet, anyio.move_on_after(_CLEAN_UP_S, shield=True):
                        await trees.remove(client, made, recursive=True, **options)
                raise
            transfer = manifest.transfer()
            result |= transfer.counts()
        return transfer

    async def download(
        self,
        path: str,
        local_path: str | os.PathLike[str],
        *,
        user: str | None = None,
        overwrite: bool = False,
        skip_unsafe: bool = False,
        max_files: int = MAX_TRANSFER_FILES,
        max_bytes: int = MAX_TRANSFER_BYTES,
        timeout_s: float | None = None,
    ) -> Transfer:
        """Copy a file or directory of the cell to this host: all of it, or nothing.

        Nothing is written outside of `local_path`; set-user-ID bits and others' right to write
        are dropped. A link that may lead out, a socket, pipe or device is a `ValueError`;
        `skip_unsafe` leaves it out and names it in the result.

        Raise as `read_file`, `FileExistsError`, `OSError(E2BIG)` beyond `max_files`.
        """
        in_thread, options = anyio.to_thread.run_sync, self._options(user, timeout_s)
        bounds = {"max_files": max_files, "max_bytes": max_bytes}
        copy = await in_thread(
            partial(TreeDestination, Path(local_path), overwrite=overwrite, skip_unsafe=skip_unsafe)
        )

        async def take(items: Iterator[TreeRecord | bytes]) -> None:
            await in_thread(copy.take, items)

        recording = self._files_recorded("download", path, options["user"], copy.manifest, **bounds)
        try:
            with recording as result:
                await trees.walk(
                    self._live.client,
                    path,
                    take,
                    depth=MAX_DEPTH,
                    contents=True,
                    max_entries=max_files,
                    max_bytes=max_bytes,
                    **options,
                )
                await in_thread(self._let_out_files, copy)
                await in_thread(copy.place)
                transfer = copy.manifest.transfer()
                result |= transfer.counts()
        finally:
            # A cancelled download leaves no half of a tree behind.
            with anyio.CancelScope(shield=True):
                await in_thread(copy.discard)
        return transfer

    def _let_out_files(self, copy: TreeDestination) -> None:
        guard = self.guard
        if guard is None:
            return
        for path in copy.files():
            with path.open("rb") as file:
                content = file.read(MAX_SCANNED_FILE_BYTES)
            missing_bytes = path.stat().st_size - len(content)
            part = output_part(content, "file.download", missing_bytes=missing_bytes)
            let_out = guard.let_out(part, cell_id=self.id) or b""
            if let_out != content:
                path.write_bytes(let_out)

    async def list_dir(
        self, path: str = "", *, user: str | None = None, max_entries: int = MAX_LISTED
    ) -> tuple[FileInfo, ...]:
        """List a directory by name. Raise as `write_file`, and `OSError(E2BIG)`."""
        options = self._options(user)
        found = await self._look("list", path or ".", options, depth=1, max_entries=max_entries)
        return tuple(sorted((_info(r) for r in found if r.path), key=lambda info: info.name))

    async def stat(
        self, path: str, *, user: str | None = None, follow_symlinks: bool = True
    ) -> FileInfo:
        """Look what a path is. Raise as `write_file`."""
        options = self._options(user) | {"follow": follow_symlinks}
        (found,) = await self._look("stat", path, options, depth=0, max_entries=1)
        return _info(found, name=posixpath.basename(path.rstrip("/")) or "/")

    async def remove(self, path: str, *, recursive: bool = False, user: str | None = None) -> None:
        """Remove a file or link; with `recursive` also a directory with all that is in it.

        Raise as `write_file`, and `ValueError` for `/`, `.` or `..`.
        """
        if posixpath.basename(path.rstrip("/")) in ("", ".", ".."):
            raise ValueError(f"{path!r} can't be removed; name a file or a directory")
        options = self._options(user) | {"recursive": recursive}
        with self._files_recorded("remove", path, options["user"], recursive=recursive) as result:
            count = await trees.remove(self._live.client, path.rstrip("/"), **options)
            result["entries"] = count

    async def _look(
        self, action: str, path: str, options: Mapping[str, Any], *, depth: int, max_entries: int
    ) -> list[TreeRecord]:
        found, manifest, client = list[TreeRecord](), TreeManifest(), self._live.client

        async def take(items: Iterator[TreeRecord | bytes]) -> None:
            for item in items:
                if isinstance(item, TreeRecord) and item.kind is not RecordKind.LEAVE:
                    found.append(item)
                    manifest.add(item)

        with self._files_recorded(action, path, options["user"], manifest) as result:
            await trees.walk(client, path, take, depth=depth, max_entries=max_entries, **options)
            result["entries"] = len(found)
        return found

    @contextmanager
    def _files_recorded(
        self,
        action: str,
        path: str,
        user: str,
        manifest: TreeManifest | None = None,
        **more: JsonValue,
    ) -> Iterator[dict[str, JsonValue]]:
        def entries() -> list[Body]:  # of a failed copy, too: what passed may have been read
            content = b"" if manifest is None else manifest.content()
            return [body_of("entries", content)] if content else []

        started = {"action": action, "path": text(path), "user": user, **more}
        with self._recorded(_FILES, started, seen=entries) as result:
            result["action"] = action
            yield result


def _info(found: TreeRecord, name: str = "") -> FileInfo:
    return FileInfo(
        name=name or found.name,
        kind=KIND_NAMES[found.kind],  # type: ignore[arg-type]
        size_bytes=found.size_bytes,
        mode=found.mode,
        mtime_s=found.mtime_s,
        link_target=found.link,
    )
