"""The one writer of a run's ledger.

The kernel has a line before `record` returns: the death of this process loses at most the event
being written. Checkpoints (each half second) sync events first: a power loss may lose what came
after the last one, never what a checkpoint covers.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from belljar.dataclass import dataclass
from belljar.descriptors import open_fd
from belljar.errors import InvalidEventError, LedgerError
from belljar.events import Body, Event, Kind
from belljar.ledger.chain import NO_LINE, MerkleTree, canonical, sha256_hex
from belljar.ledger.files import BODIES, CHECKPOINTS, LEDGER, write_all
from belljar.ledger.keys import SigningKey
from belljar.ledger.kinds import SCHEMA_VERSION
from belljar.ledger.schema import (
    BODY_NAME,
    MAX_BODIES,
    MAX_DATA_BYTES,
    MAX_LINE_BYTES,
    MAX_SPILLED_BYTES,
    SPILLED,
    SPILLED_BODY,
    check_data,
    make_checkpoint,
)
from belljar.process import end_if_forked
from belljar.store.home import sync_file

# Half of the second within which events are signed; the rest is for slow disks.
CHECKPOINT_INTERVAL_S: Final = 0.5

# A file that is there already, or a link, is never continued.
_APPEND: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW


def wall_time(time_ns: int) -> str:
    """Convert nanoseconds since the epoch to RFC 3339, UTC, microseconds."""
    seconds, rest = divmod(time_ns, 1_000_000_000)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}.{rest // 1000:06d}Z"


def _reference(body: Body) -> tuple[str, dict[str, Any]]:
    """Return the digest of what is kept, and the line's reference.

    Raises `ValueError`: bad name, size or digest.
    """
    kept, digest = len(body.content), sha256_hex(body.content)
    if not re.fullmatch(BODY_NAME, body.name):
        raise ValueError(f"{body.name!r} is not a body's name")
    if kept > body.total_bytes:
        raise ValueError(f"body {body.name}: {kept} bytes kept of {body.total_bytes}")
    if kept == body.total_bytes and body.sha256 not in {digest, ""}:
        raise ValueError(f"body {body.name}: its digest is of other bytes")
    whole = body.sha256 or (digest if kept == body.total_bytes else None)
    ref: dict[str, Any] = {"name": body.name, "sha256": whole, "kept_bytes": kept}
    ref |= {"total_bytes": body.total_bytes}
    ref |= {"stored_sha256": digest} if kept and digest != whole else {}
    return digest, ref


@dataclass(frozen=True, slots=True)
class _Written:
    """It is replaced as a whole: interrupts leave the old or the new one."""

    tree: MerkleTree
    prev: str
    offset: int

    def after(self, line: bytes) -> _Written:
        return _Written(self.tree.added(line), sha256_hex(line), self.offset + len(line) + 1)


class LedgerWriter:
    """It is the `Recorder` of a run directory, with a thread that signs checkpoints.

    It is thread-safe; a run has one writer. After a failed write each call raises that failure
    again: nothing may run without a record. Leaving without `seal` leaves an unfinished run.
    Entering raises `LedgerError`.
    """

    def __init__(self, run_dir: Path, key: SigningKey) -> None:
        self.run_dir = run_dir
        self.run_id = run_dir.name
        self.key = key
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._stop = threading.Event()
        self._thread = threading.Thread(
            target=self._sign_as_events_arrive, name="ledger-checkpoints", daemon=True
        )
        self._state = _Written(MerkleTree(), NO_LINE, 0)
        self._root = run_dir / BODIES
        self._sizes: dict[bytes, int] = {}  # of each stored body
        # Stored by a call that was interrupted before its line, or is about to write it.
        self._unnamed: set[str] = set()
        self._unsynced: list[str] = []
        self.killed = ""  # the first kill order's rule and reason
        self._pending: tuple[bytes, list[str]] | None = None  # a line and its bodies' digests
        self._poison: LedgerError | None = None
        self._ended = False
        self._signed_size = -1  # a run without events is signed, too
        self._checkpoint_number = 0
        self._checkpoint_prev = NO_LINE
        self._ledger_fd = -1
        self._checkpoints_fd = -1

    def __enter__(self) -> LedgerWriter:
        try:
            with self._failing("the ledger can't be made"):
                try:
                    self._ledger_fd = os.open(self.run_dir / LEDGER, _APPEND, 0o600)
                except FileExistsError as error:
                    what = "there is a ledger already, of this run or another writer"
                    hint = "a run is recorded once; start a new one"
                    raise LedgerError(what, where=str(self.run_dir), hint=hint) from error
                # Marks this run as alive (`is_being_written`). Readers unlock at once.
                fcntl.flock(self._ledger_fd, fcntl.LOCK_EX)
                self._checkpoints_fd = os.open(self.run_dir / CHECKPOINTS, _APPEND, 0o600)
                self._root.mkdir(mode=0o700)
                # The names, which a power loss could take although their contents were synced.
                sync_file(self.run_dir)
        except BaseException:
            self._close()
            raise
        self._thread.start()
        return self

    def __exit__(self, _kind: object, _error: object, _trace: object) -> None:
        self.end_if_forked()
        self._halt()
        try:
            if self._poison is None and self._signed_size != self._state.tree.size:
                self._checkpoint()
        finally:
            self._ended = True
            self._close()

    def end_if_forked(self) -> None:
        end_if_forked(self._pid)

    @property
    def events(self) -> int:
        return self._state.tree.size

    @property
    def body_totals(self) -> dict[str, int]:
        return {"count": len(self._sizes), "bytes": sum(self._sizes.values())}

    def record(self, event: Event) -> int:
        """Record the event; return its number once the kernel has the line.

        Data over 64 KiB becomes a body (up to 32 MiB). Raises `LedgerError` for an invalid event,
        or a failed write, then also in each later call. In a fork it ends the process.
        """
        self.end_if_forked()  # before the lock, which a thread of the parent may hold
        try:
            check_data(event.kind, dict(event.data))
            bodies = list(event.bodies)
            data = canonical([dict(event.data)])[1:-1]  # as deep as in its line
            if (size := len(data)) > MAX_DATA_BYTES:
                if size > MAX_SPILLED_BYTES:
                    most = f"an event has at most {MAX_SPILLED_BYTES}"
                    raise ValueError(f"{size} bytes of data; {most}")
                bodies.append(Body(name=SPILLED_BODY, content=data, total_bytes=size, sha256=""))
                data = canonical(SPILLED)
            if len(bodies) > MAX_BODIES:
                raise ValueError(f"{len(bodies)} bodies; an event has at most {MAX_BODIES}")
            if len({body.name for body in bodies}) != len(bodies):
                # Of two named `data`, a reader would take the wrong one for the event's own
                raise ValueError("two bodies of one name")
            refs = [_reference(body) for body in bodies]
        except ValueError as error:
            what = f"an event that is not one: {error}"
            hint = "this is a fault of Belljar: report it"
            raise InvalidEventError(what, where=str(event.kind), hint=hint) from error
        with self._lock, self._failing("the event can't be recorded"):
            return self._write(event, data, bodies, refs)

    def end(self) -> None:
        """Refuse further events, stop the thread, drop unnamed bodies."""
        with self._lock, self._failing("the ledger can't be ended"):
            self._settle()
            self._ended = True
        self._halt()
        # Only now: the thread syncs bodies by their names.
        with self._failing("the ledger can't be ended"):
            # A reader would take what no line names for added.
            for digest in self._unnamed:
                (self._root / digest[:2] / digest).unlink(missing_ok=True)
                self._sizes.pop(bytes.fromhex(digest), None)
            (self._root / ".part").unlink(missing_ok=True)
            self._unsynced = [each for each in self._unsynced if each not in self._unnamed]

    def seal(self, manifest_sha256: str) -> None:
        """Sign the final checkpoint, after `end`. Raises `LedgerError`."""
        if not self._ended or self._thread.is_alive():
            raise ValueError("seal comes after end")
        self._checkpoint(manifest_sha256)

    def _write(
        self, event: Event, data: bytes, bodies: list[Body], refs: list[tuple[str, dict[str, Any]]]
    ) -> int:
        self._settle()
        digests = [digest for digest, _ in refs]
        # The bodies first: no line names bytes that aren't there.
        for body, digest in zip(bodies, digests, strict=True):
            self._keep(digest, body.content)
        seq = self._state.tree.size
        line = _line(event, data, [ref for _, ref in refs], seq=seq, prev=self._state.prev)
        content = line + b"\n"
        if len(content) > MAX_LINE_BYTES:
            raise LedgerError(f"a line of {len(content)} bytes: a fault of Belljar")
        self._pending = line, digests
        _write_once(self._ledger_fd, content)
        self._state = self._state.after(line)
        self._unnamed.difference_update(digests)
        self._pending = None
        # Asked first: setting takes a lock and wakes a thread, on each of thousands of events.
        if not self._wake.is_set():
            self._wake.set()
        if event.kind is Kind.KILL_TRIGGERED and not self.killed:
            self.killed = f"{event.data['rule']}: {event.data['reason']}"
        return seq

    def _keep(self, digest: str, content: bytes) -> None:
        name, folder = bytes.fromhex(digest), self._root / digest[:2]
        if not content or name in self._sizes:
            return
        self._unnamed.add(digest)
        folder.mkdir(mode=0o700, exist_ok=True)
        # A store that failed may have left its part; no second writer shares this directory.
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
        with open_fd(os.open(part := self._root / ".part", flags, 0o600)) as fd:
            write_all(fd, content)
        # Whole or not there: a reader may look at a run that is being written.
        part.rename(folder / digest)
        # In this order: what counts as stored is synced, wherever an interrupt comes.
        self._unsynced.append(digest)
        self._sizes[name] = len(content)

    def _settle(self) -> None:
        """Refuse if unwritable; learn what an interrupted call did."""
        if self._poison is not None:
            raise self._poison
        if self._ended:
            raise LedgerError("the ledger is closed", where=str(self.run_dir))
        if self._pending is None:
            return
        (line, digests), size = self._pending, os.fstat(self._ledger_fd).st_size
        # The interrupt may have come before the write, after it, or after the state was replaced.
        if size == self._state.offset + len(line) + 1:
            self._state = self._state.after(line)
        elif size != self._state.offset:
            raise OSError(errno.EIO, "a line was written in part")
        if self._state.prev == sha256_hex(line):
            self._unnamed.difference_update(digests)
        self._pending = None
        self._wake.set()

    def _sign_as_events_arrive(self) -> None:
        while True:
            self._wake.wait()
            if self._stop.wait(CHECKPOINT_INTERVAL_S):
                return
            self._wake.clear()
            if self._stop.is_set():
                return  # That wakeup may have been `_halt`'s: there is no other.
            try:
                self._checkpoint()
            except LedgerError:
                return  # Poisoned: the next record says so.

    def _checkpoint(self, manifest_sha256: str | None = None) -> None:
        with self._lock:
            state = self._state
            digests, self._unsynced = self._unsynced, []
        if state.tree.size == self._signed_size and manifest_sha256 is None:
            return
        with self._failing("a checkpoint can't be written"):
            folders = {self._root / digest[:2] for digest in digests}
            for path in (*(self._root / each[:2] / each for each in digests), *folders):
                sync_file(path)
            if digests:
                sync_file(self._root)
            os.fsync(self._ledger_fd)
            line = make_checkpoint(
                self.key,
                state.tree,
                run_id=self.run_id,
                number=self._checkpoint_number,
                prev=self._checkpoint_prev,
                time=wall_time(time.time_ns()),
                manifest_sha256=manifest_sha256,
            )
            _write_once(self._checkpoints_fd, line + b"\n")
            os.fsync(self._checkpoints_fd)
        self._signed_size, self._checkpoint_prev = state.tree.size, sha256_hex(line)
        self._checkpoint_number += 1

    def _close(self) -> None:
        for fd in (self._ledger_fd, self._checkpoints_fd):
            if fd >= 0:
                os.close(fd)
        self._ledger_fd = self._checkpoints_fd = -1

    def _halt(self) -> None:
        self._stop.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join()

    @contextmanager
    def _failing(self, what: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self._poison = LedgerError(
                f"{what}: {error.strerror or error}",
                where=str(self.run_dir),
                hint="free disk space or check the disk, then run again",
            )
            raise self._poison from error


def _line(event: Event, data: bytes, bodies: list[dict[str, Any]], *, seq: int, prev: str) -> bytes:
    left = canonical({"actor": event.actor, "bodies": bodies, "cell": event.cell_id})
    now, mono_ns = wall_time(time.time_ns()), str(time.monotonic_ns())
    right = {"kind": event.kind, "mono_ns": mono_ns, "prev": prev, "seq": seq, "time": now}
    right |= {"trust": event.trust, "v": SCHEMA_VERSION}
    return b"".join((left[:-1], b',"data":', data, b",", canonical(right)[1:]))


def _write_once(fd: int, content: bytes) -> None:
    """Make one write per line, so readers and crashes see no mixed lines."""
    if (written := os.write(fd, content)) != len(content):
        what = f"only {written} of {len(content)} bytes were taken: the disk is full"
        raise OSError(errno.ENOSPC, what)
