"""A container's file sensor: inotify marks on its files, from outside.

For files only the cell's root may read, an ordinary user's helper process enters the cell's user
namespace and marks them in a queue that it inherits.
"""

from __future__ import annotations

import errno
import json
import os
import stat
import struct
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final, TypeAlias

import anyio.to_thread

from belljar import libc
from belljar.channel.operations import OwnReads
from belljar.descriptors import open_fd
from belljar.errors import CellError, host_errors
from belljar.isolation.jail import find_agent
from belljar.isolation.touches import FULL_READ, Access, Operation, QueueThread, QueueWatch

# struct inotify_event without its name, which a mark on a file hasn't (inotify(7)).
_ENTRY: Final = struct.Struct("<iIII")
# Of linux/inotify.h. The last: the queue was full.
_OPERATIONS: Final[Mapping[int, Operation]] = {0x20: "open", 0x01: "read"}
_OVERFLOW: Final = 0x4000
# To enter the cell's user namespace, whose root may look at all of its files.
_CLONE_NEWUSER: Final = 0x1000_0000
# A guest's file system that hangs must not hang the cell's start.
_TIMEOUT_S: Final = 20.0
# With -I and -S the helper's sys.path is bare: this process's own comes along.
_BOOT: Final = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from belljar.isolation.oci.marks import main; main()"
)
_Marks: TypeAlias = tuple[dict[int, str], dict[str, str]]


def mark_files(queue: int, root: int, paths: Sequence[str]) -> _Marks:
    """Return paths by number, and errors. `root` is hostile."""
    files, missing = dict[int, str](), dict[str, str]()
    for path in paths:
        try:
            files[_mark(queue, root, path)] = path
        except OSError as error:
            missing[path] = error.strerror or "unknown"
    return files, missing


def _mark(queue: int, root: int, path: str) -> int:
    # A guest's links can't lead out of its tree.
    within = libc.IN_ROOT | libc.NO_MAGICLINKS
    with open_fd(libc.openat2(root, path, os.O_PATH | os.O_CLOEXEC, within)) as held:
        # A guest may put a device or FIFO in the file's place.
        if not stat.S_ISREG(os.fstat(held).st_mode):
            raise OSError(errno.EINVAL, "it is no regular file")
        # That very file, whatever happens to its name
        return libc.inotify_add(queue, f"/proc/self/fd/{held}", sum(_OPERATIONS))


def _mark_in(queue: int, agent: int, paths: Sequence[str]) -> _Marks:
    flags = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
    with open_fd(os.open(f"/proc/{agent}/root", flags)) as root:
        return mark_files(queue, root, paths)


def _mark_within(queue: int, agent: int, paths: Sequence[str]) -> _Marks:
    arguments = (json.dumps(sys.path), str(queue), str(agent))
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-c", _BOOT, *arguments],
            input=json.dumps(list(paths)).encode(),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=_TIMEOUT_S,
            pass_fds=[queue],
            env={},
            check=True,
        )
    except subprocess.SubprocessError:
        raise OSError(errno.EIO, "its helper failed") from None
    files, missing = json.loads(done.stdout)
    return {int(number): path for number, path in files.items()}, missing


def main() -> None:
    queue, agent = map(int, sys.argv[2:])
    with Path(f"/proc/{agent}/ns/user").open("rb") as namespace:
        libc.enter_namespace(namespace.fileno(), _CLONE_NEWUSER)
    print(json.dumps(_mark_in(queue, agent, json.load(sys.stdin))))


class MarkWatch(QueueWatch):
    sensor = "inotify"

    def __init__(
        self, queue: int, files: Mapping[int, str], missing: Mapping[str, str], own_reads: OwnReads
    ) -> None:
        self._inotify, self._files = queue, files
        super().__init__(own_reads, QueueThread(lambda: queue, self._read, self.end))
        self.missing = missing
        self._thread.start()

    def _read(self) -> int:
        data = b""
        with suppress(BlockingIOError):
            data = os.read(self._inotify, FULL_READ * _ENTRY.size)
        for number, mask, _, _ in _ENTRY.iter_unpack(data):
            if mask & _OVERFLOW:
                self.end("more happened than the kernel kept: accesses were lost")
            path = self._files.get(number)
            for bit, operation in _OPERATIONS.items():
                if path is not None and mask & bit:
                    self.offer(Access(path=path, operation=operation))
        self.report()
        return len(data) // _ENTRY.size

    async def _stop(self) -> None:
        await super()._stop()
        await anyio.to_thread.run_sync(self._thread.stop)
        os.close(self._inotify)


def watch_container(jail_pid: int | None, paths: Sequence[str], own_reads: OwnReads) -> MarkWatch:
    """Mark them, and start to read. Blocks."""
    agent = None if jail_pid is None else find_agent(jail_pid)
    if agent is None:
        raise CellError("its files can't be watched: the container has ended")
    hint = "if it lacks instances, raise the sysctl fs.inotify.max_user_instances"
    with host_errors("its files can't be watched", where="inotify", hint=hint), ExitStack() as undo:
        queue = libc.inotify_queue()
        undo.callback(os.close, queue)
        if os.geteuid() == 0:
            files, missing = _mark_in(queue, agent, paths)
        else:
            files, missing = _mark_within(queue, agent, paths)
        watch = MarkWatch(queue, files, missing, own_reads)
        undo.pop_all()
    return watch
