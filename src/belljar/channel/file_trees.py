"""Operations on directories in a guest, over its client: walk, put, remove; and what it uses.

The agent carries all of them out by itself: no program of the image is run.
"""

from __future__ import annotations

import errno
from collections.abc import AsyncIterable, Awaitable, Callable, Iterator

import anyio

from belljar.channel import payloads, trees
from belljar.channel.client import GuestClient
from belljar.channel.feeding import feed, judge
from belljar.channel.frames import FrameType, OpKind, Outcome, Stage
from belljar.channel.outcomes import FileTooLarge
from belljar.channel.trees import TreeReader, Usage

TakeItems = Callable[[Iterator[trees.Record | bytes]], Awaitable[None]]
_FOLLOW, _CONTENTS = 1, 2
_COUNT_BYTES = 8


async def walk(
    client: GuestClient,
    path: str,
    take: TakeItems,
    *,
    user: str,
    cwd: str,
    depth: int,
    follow: bool = True,
    contents: bool = False,
    max_entries: int,
    max_bytes: int = 0,
    timeout_s: float | None = None,
) -> None:
    """Hand what a path is (`depth` 0), a directory holds (1), or a tree, to `take`, as it comes.

    Raises as `GuestClient.read_file`, besides `NotADirectoryError`; `OSError` with `E2BIG` for more
    than `max_entries`; `FileTooLarge` for more than `max_bytes` of contents.
    """
    allowed = max_entries + (depth == 1)  # the directory itself is not one of those it holds
    flags = (_FOLLOW if follow else 0) | (_CONTENTS if contents else 0)
    body = trees.walk_body(
        user=user,
        cwd=cwd,
        path=path,
        flags=flags,
        depth=depth,
        max_entries=allowed,
        max_bytes=max_bytes,
    )
    reader = TreeReader(contents=contents, depth=depth, max_entries=allowed, max_bytes=max_bytes)
    cap = trees.stream_bytes(max_entries=allowed, max_bytes=max_bytes)
    operating = client.file_operation(
        lambda wire: wire.start_files(OpKind.WALK, body, max_answer_bytes=cap), timeout_s
    )
    async with client.own_reads.of(path, cwd), operating as operation:
        while (chunk := await operation.next_chunk()) is not None:
            await take(reader.feed(chunk[1]))
        result = operation.ended()
        if result.outcome is Outcome.IO_FAILED:
            if result.code == errno.EFBIG:
                size_bytes = max_bytes + 1
                raise FileTooLarge(path, max_bytes=max_bytes, size_bytes=size_bytes, head=b"")
            if result.code == errno.E2BIG:
                raise OSError(errno.E2BIG, f"more than {max_entries:,} files and directories", path)
            if result.code == errno.ELOOP and result.stage is Stage.READ:
                deep = f"more than {trees.MAX_DEPTH} directories in each other"
                raise OSError(errno.ELOOP, deep, path)
        judge(operation, path, timeout_s)
    reader.finish()


async def put(
    client: GuestClient,
    path: str,
    records: AsyncIterable[bytes],
    *,
    user: str,
    cwd: str,
    replace: bool,
    mode: int | None,
    staging: str,
    times: bool = False,
    owner: str = "",
    timeout_s: float | None = None,
) -> None:
    """Put a tree into the directory `path`, which is made with its parents; all or nothing.

    Raises `FileExistsError` where an entry is there already and `replace` is false,
    `NotADirectoryError` and `IsADirectoryError` where the one is to replace the other; else as
    `GuestClient.write_file`. A put that was ended from outside leaves the directory `staging` in
    `path`, for the caller to remove. `times`, `owner`: as `trees.put_body`.
    """
    body = trees.put_body(
        user=user,
        cwd=cwd,
        path=path,
        replace=replace,
        mode=mode,
        staging=staging,
        times=times,
        owner=owner,
    )
    async with client.file_operation(
        lambda wire: wire.start_files(OpKind.PUT, body, max_answer_bytes=0), timeout_s
    ) as operation:
        with anyio.move_on_at(operation.deadline):
            await feed(operation, records)
        while await operation.next_chunk() is not None:
            pass
        judge(operation, path, timeout_s)


async def remove(
    client: GuestClient,
    path: str,
    *,
    user: str,
    cwd: str,
    recursive: bool,
    timeout_s: float | None = None,
) -> int:
    """Remove a file or link, or with `recursive` a directory too; how many entries there were."""
    body = trees.place_body(user=user, cwd=cwd, path=path, flags=int(recursive))
    raw = await _answer(client, OpKind.REMOVE, body, _COUNT_BYTES, path, timeout_s)
    if len(raw) != _COUNT_BYTES:
        payloads.violated(f"a count of {len(raw)} bytes", FrameType.DATA, 0)
    removed = int.from_bytes(raw, "little")
    if removed > trees.MAX_COUNT:
        payloads.violated("a count that can't be", FrameType.DATA, 0)
    return removed


async def usage(client: GuestClient, *, timeout_s: float | None = None) -> Usage:
    """What the guest says that its workload uses."""
    return trees.read_usage(
        await _answer(client, OpKind.USAGE, b"", trees.USAGE_BYTES, "usage", timeout_s)
    )


async def _answer(
    client: GuestClient, kind: OpKind, body: bytes, size: int, path: str, timeout_s: float | None
) -> bytes:
    answer = b""
    async with client.file_operation(
        lambda wire: wire.start_files(kind, body, max_answer_bytes=size), timeout_s
    ) as operation:
        while (chunk := await operation.next_chunk()) is not None:
            answer += chunk[1]
        judge(operation, path, timeout_s)
    return answer
