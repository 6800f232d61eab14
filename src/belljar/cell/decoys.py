"""Places a policy's decoys in a taken cell, and reports what touches them.

A decoy is on record before it is placed, with keyed digests of its values, never the values.
"""

from __future__ import annotations

import hashlib
import posixpath
import secrets
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from belljar.cell.guarded import MAX_FOREIGN, GuardedRecorder
from belljar.cell.local_tree import TreeManifest
from belljar.channel import FileTooLargeError
from belljar.channel.trees import RecordKind, TreeRecord, encode
from belljar.dataclass import asdict, replace
from belljar.errors import BelljarError, PolicyError
from belljar.events import Actor, Event, JsonValue, Kind
from belljar.isolation.touches import Access
from belljar.signals.decoys import KEY_BYTES, Minted, MintedFile, digests, mint, mint_service
from belljar.units import printable

if TYPE_CHECKING:
    from belljar.cell.cell import Cell
    from belljar.ledger.rundir import RunDirectory
    from belljar.policy.loaded import LoadedPolicy
    from belljar.policy.model import DecoySpec
    from belljar.signals.values import KnownValue


KEY_FILE: Final = "decoys.key"
# It is the image's or the guest's file: a larger one is no list of accounts.
MAX_PASSWD_BYTES: Final = 1 << 20
# Directories that their programs make for one user alone.
PRIVATE: Final = (".ssh", ".aws", ".kube", ".mozilla")
# 1990: a file of an image that is older has the constant time of a reproducible build (0, 1980).
MIN_BUILD_S: Final = 631_152_000
_key_lock: Final = threading.Lock()


def decoy_key(run: RunDirectory) -> bytes:
    """Return the run's key of decoys, made on first use."""
    with _key_lock:
        path = run.path / KEY_FILE
        if not path.exists():
            run.write_text(KEY_FILE, secrets.token_bytes(KEY_BYTES).hex() + "\n")
            path.chmod(0o600)
        return read_key(run.path)


def read_key(run_path: Path) -> bytes:
    key = bytes.fromhex((run_path / KEY_FILE).read_text("ascii").strip())
    if len(key) != KEY_BYTES:
        raise ValueError(f"a key of {len(key)} bytes; it has {KEY_BYTES}")
    return key


def home_of(passwd: bytes, user: str) -> str:
    """Return a user's home by the image's hostile passwd."""
    wanted = user.partition(":")[0]
    for line in passwd.decode("utf-8", "replace").splitlines():
        fields = line.split(":")
        if len(fields) != 7 or wanted not in (fields[0], fields[2]):
            continue
        home = fields[5]
        is_plain = home.startswith("/") and home.isprintable() and len(home) <= 1024
        if is_plain and ".." not in home.split("/"):
            return posixpath.normpath(home)
    return "/root" if wanted in ("", "0", "root") else "/"


@asynccontextmanager
async def decoys_in(cell: Cell, loaded: LoadedPolicy, run: RunDirectory) -> AsyncIterator[None]:
    services = () if cell.guard is None else cell.guard.services
    minted = await place_decoys(cell, loaded.policy.decoys, decoy_key(run), services)
    files = {file.path: decoy.id for decoy in minted for file in decoy.files}
    watching = watch_files(cell, files, record=cell._recorder.record) if files else nullcontext()
    async with watching:
        with _known(run, cell, [value for decoy in minted for value in decoy.values]):
            yield


class _RunValues:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.foreign: deque[KnownValue] = deque(maxlen=MAX_FOREIGN)
        self.recorders: dict[str, GuardedRecorder] = {}


@contextmanager
def _known(run: RunDirectory, cell: Cell, own: Sequence[KnownValue]) -> Iterator[None]:
    from belljar.signals.values import ValueSource

    if (recorder := cell.guard) is None:
        yield
        return
    values = run.enter_once("decoy values", lambda: nullcontext(_RunValues()))
    theirs = [
        replace(value, id=f"{cell.id}/{value.id}", source=ValueSource.FOREIGN) for value in own
    ]
    with values.lock:
        recorder.know((*own, *values.foreign))
        for other in values.recorders.values():
            other.know(theirs)
        values.foreign.extend(theirs)
        values.recorders[cell.id] = recorder
    try:
        with recorder.reporting_services():
            yield
    finally:
        with values.lock:
            values.recorders.pop(cell.id, None)


def mint_services(specs: Sequence[DecoySpec], run: RunDirectory) -> tuple[Minted, ...]:
    scope = f"range-{secrets.token_hex(8)}"  # its cells have no ids yet
    return tuple(mint_service(decoy_key(run), scope, spec) for spec in specs if spec.is_service)


async def place_decoys(
    cell: Cell, specs: Sequence[DecoySpec], key: bytes, services: Sequence[Minted] = ()
) -> tuple[Minted, ...]:
    """Mint and place decoys. Raise `PolicyError`."""
    try:
        passwd = await cell.read_file("/etc/passwd", max_bytes=MAX_PASSWD_BYTES, user="0")
    except (OSError, FileTooLargeError):
        passwd = b""
    home = home_of(passwd, cell.plan.user)
    # No decoy is newer than the image, by its passwd (`/` has mounts of the cell's own), and now
    newest_s = time.time()
    with suppress(OSError):
        newest_s = min(newest_s, (await cell.stat("/etc/passwd", user="0")).mtime_s)
    times_s = {"/": newest_s}
    placed = [replace(service, cell_id=cell.id) for service in services]
    for service in placed:
        _note_placed(cell, service, key)
    logins = {service.id: service.login for service in placed if service.login is not None}
    for spec in specs:
        if spec.is_service:
            continue
        minted = mint(key, cell.id, spec, home=home, login=logins.get(spec.service))
        try:
            times = [await _check_free(cell, file.path, times_s) for file in minted.files]
            _note_placed(cell, minted, key)
            in_home = home != "/" and minted.place.startswith(home + "/")
            await _put(cell, minted, min(times), in_home=in_home)
        except (OSError, ValueError, TimeoutError) as error:
            reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
            at = printable(str(getattr(error, "filename", None) or minted.place))
            why = f"{at}: {printable(reason)}"
            what = {"decoy": minted.id, "kind": minted.kind, "place": minted.place, "reason": why}
            cell.note(Kind.DECOY_FAILED, what)
            said = f"decoy {minted.id} can't be placed at {why}"
            hint = "name another `place` for this decoy, or leave it out"
            raise PolicyError(said, where="decoys", hint=hint) from error
        placed.append(minted)
    return tuple(placed)


def _note_placed(cell: Cell, minted: Minted, key: bytes) -> None:
    data: dict[str, JsonValue] = {
        "decoy": minted.id,
        "kind": minted.kind,
        "place": minted.place,
        "values": dict(digests(key, minted)),
        "files": [file.path for file in minted.files],
    }
    cell.note(Kind.DECOY_PLACED, data)


async def _check_free(cell: Cell, path: str, times_s: dict[str, float]) -> float:
    """Return the time of the nearest directory or older image."""
    parts = path.strip("/").split("/")
    nearest_s = times_s["/"]
    for count in range(1, len(parts) + 1):
        at = "/" + "/".join(parts[:count])
        if at in times_s and count < len(parts):
            nearest_s = times_s[at]
            continue
        try:
            found = await cell.stat(at, user="0", follow_symlinks=False)
        except FileNotFoundError:
            break
        if count == len(parts):
            raise FileExistsError(17, "the image has something there", at)
        if found.kind != "directory":
            raise NotADirectoryError(20, f"it is a {found.kind}, not a directory", at)
        nearest_s = times_s[at] = found.mtime_s
    return min(times_s["/"], nearest_s)


async def _put(cell: Cell, minted: Minted, newest_s: float, *, in_home: bool) -> None:
    in_folder: dict[str, list[MintedFile]] = {}
    for file in minted.files:
        in_folder.setdefault(posixpath.dirname(file.path), []).append(file)
    for folder, files in in_folder.items():
        manifest = TreeManifest()
        await cell._put_records(
            folder,
            _records(files, newest_s, manifest),
            manifest,
            target=folder,
            entries=len(files),
            total_bytes=sum(len(file.content) for file in files),
            mode=0o700 if set(folder.split("/")) & set(PRIVATE) else 0o755,
            times=True,
            owner="" if in_home else cell.plan.user,
            user=cell.plan.user if in_home else "0",
        )


def _records(
    files: Sequence[MintedFile], newest_s: float, manifest: TreeManifest
) -> Iterator[bytes]:
    for file in files:
        record = TreeRecord(
            path=posixpath.basename(file.path),
            kind=RecordKind.FILE,
            mode=file.mode,
            size_bytes=len(file.content),
            mtime_s=file_time(newest_s, file.age_s),
        )
        manifest.add(record, hashlib.sha256(file.content).hexdigest())
        yield encode(record) + file.content


def file_time(newest_s: float, age_s: int) -> float:
    """Return a decoy's mtime; reproducible builds share one early time."""
    return newest_s - age_s if newest_s >= MIN_BUILD_S else newest_s


@asynccontextmanager
async def watch_files(
    cell: Cell, files: Mapping[str, str], *, record: Callable[[Event], object]
) -> AsyncIterator[list[str]]:
    """Record opens and reads of these files (path → decoy id) during the block.

    A sensor's failure is recorded and yielded. An error of `record` ends the sensor.
    """
    problems, name = list[str](), ""

    def failed(reason: str, of: list[str]) -> None:
        problems.append(reason)
        cell.note(Kind.SENSOR_FAILED, {"sensor": name, "decoys": of, "reason": reason})

    def touched(seen: Access) -> None:
        data = {each: value for each, value in asdict(seen).items() if value not in ("", None)}
        data["decoy"] = files[seen.path]
        touch = Event(
            kind=Kind.DECOY_TOUCHED,
            cell_id=cell.id,
            actor=Actor.GUEST,
            trust=watch.trust,
            data=data,
        )
        record(touch)

    try:
        watch = await cell._live.watch_files(list(files))
    except (BelljarError, OSError) as error:
        reason = error.what if isinstance(error, BelljarError) else str(error)
        failed(reason, sorted(set(files.values())))
        yield problems
        return
    try:
        name = watch.sensor
        for path, reason in watch.missing.items():
            failed(f"{path}: {reason}", [files[path]])
        watched = sorted({decoy for path, decoy in files.items() if path not in watch.missing})
        cell.note(Kind.SENSOR_STARTED, {"sensor": name, "decoys": watched})
        watch.begin(touched, lambda reason: failed(reason, watched))
        yield problems
    finally:
        await watch.aclose()
