"""Code on a node, in a Ray or Slurm worker: checks of node and task, and units. Judges nothing."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from belljar.errors import BelljarError, PolicyError
from belljar.fleet.archive import pack, unpack
from belljar.fleet.guard import END_S, POLL_S, STOP
from belljar.image.store import Store, find_images
from belljar.ledger.files import is_being_written
from belljar.ledger.keys import load_or_make_key
from belljar.package import __version__
from belljar.store.home import belljar_home, need_space
from belljar.units import printable

NAME_VARIABLE: Final = "BELLJAR_FLEET_NODE"
LEASE: Final = "lease"  # with Ray of all units of a node; with Slurm each has its own
CHECK_S: Final = 600.0  # a check loads Inspect and the whole data set, on a busy node
# As `harness.evaluate` names it, which takes long to import; `STARTS` as `harness.source` does.
NOTED_IN: Final = "BELLJAR_RUN_NOTED_IN"
STARTS: Final = "BELLJAR_MAX_STARTS"
_TAIL_CHARS: Final = 2000  # the last words of a process say why it ended; a traceback's end fits
_KEPT_S: Final = 24 * 3600.0  # a workspace changes with each sign of life of its head
SILENCE: Final = "BELLJAR_FLEET_SILENCE_S"
SILENCE_S: Final = 12.0  # without a sign of life a node is lost: a dead one is seen in 15 s
_LEASE: Final = 2.5  # so many times as long a node waits for its head, which gives it up before
# Of the head's environment a unit gets these; of the node's own it keeps the rest.
_SETTINGS: Final = ("INSPECT_EVAL_", "BELLJAR_POLICY", SILENCE)
_REMOVED: Final = ("RAY_", *_SETTINGS)  # with Ray's token, and what changes a unit's options
# A unit's words name its samples, and Inspect refuses to be told twice.
_CHOOSING: Final = ("INSPECT_EVAL_LIMIT", "INSPECT_EVAL_SAMPLE_")


def settings_of(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the head's variables that belong to the evaluation's options."""
    return {
        name: value
        for name, value in environ.items()
        if name.startswith(_SETTINGS) and not name.startswith(_CHOOSING)
    }


def silence_s(environ: Mapping[str, str]) -> float:
    """Return after how long a node is lost. Raises `PolicyError`."""
    text = environ.get(SILENCE, str(SILENCE_S))
    # Shorter, and a busy node is taken for a dead one; at most four digits: an hour or two.
    if re.fullmatch(r"[0-9]{1,4}(\.[0-9]+)?", text) and float(text) >= 5:
        return float(text)
    raise PolicyError("it is no number of seconds from 5 on", where=SILENCE, hint="as in 12 or 60")


def describe() -> dict[str, Any]:
    return {
        "name": _name(),
        "key": load_or_make_key(belljar_home()).fingerprint,
        "version": __version__,
        "inspect": version("inspect-ai"),
        "has_token": os.environ.get("RAY_AUTH_MODE") == "token",
    }


def prepare(
    fleet: str, archive: bytes, sha256: str, words: Sequence[str], settings: Mapping[str, str]
) -> dict[str, Any]:
    folder = _folder(fleet)
    folder.mkdir(mode=0o700, parents=True)
    for other in folder.parent.iterdir():  # of heads that died
        with suppress(OSError):
            if other.is_dir() and time.time() - other.stat().st_mtime > _KEPT_S:
                shutil.rmtree(other)
    if hashlib.sha256(archive).hexdigest() != sha256:
        raise ValueError("the task's archive arrived changed")
    sent = folder / "task.tar"
    sent.write_bytes(archive)
    with sent.open("rb") as file:
        unpack(file, folder / "task")
    sent.unlink()
    return check(fleet, words, settings)


def check(fleet: str, words: Sequence[str], settings: Mapping[str, str]) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "belljar", "check", "--json", *words],
        cwd=_folder(fleet) / "task",
        env=_environment(settings),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=CHECK_S,
        check=False,
    )
    why, names, missing = _tail(done.stderr), set[str](), list[str]()
    with suppress(ValueError, KeyError, TypeError):  # else standard error says why
        found = json.loads(done.stdout)
        names = {each["image"] for group in found["groups"] for each in group["images"]}
        errors = [group["error"] for group in found["groups"]]
        absent = [f"image {each['image']}: {each['what']}" for each in found["missing_images"]]
        why = next(iter([*(str(each["what"]) for each in errors if each), *absent]), why)
        missing = [] if any(errors) else [each["image"] for each in found["missing_images"]]
    images = {}
    if not done.returncode:
        stored = find_images(Store(belljar_home()), sorted(names))
        images = {name: image.digest for name, image in stored.items()}
    return {"exit_code": done.returncode, "why": why, "images": images, "missing": missing}


def take_piece(fleet: str, digest: str, offset: int, size_bytes: int, piece: bytes) -> str:
    file = _folder(fleet) / digest / "rootfs.sqfs"
    try:
        file.parent.mkdir(mode=0o700, exist_ok=True)
        if not offset:  # before the first piece, for the whole file
            need_space(belljar_home(), size_bytes, "it")
        with file.open("r+b" if offset else "wb") as out:
            out.seek(offset)
            out.write(piece)
    except (BelljarError, OSError) as error:
        return getattr(error, "what", str(error))
    return ""


def take_image(
    fleet: str, digest: str, document: bytes, names: Sequence[str], origins: Sequence[str]
) -> str:
    """Return why the store did not take it; known digests keep their image."""
    folder, store = _folder(fleet) / digest, Store(belljar_home())
    try:
        (folder / "image.json").write_bytes(document)
        origins = [each for each in origins if store.missing(each) is not None]
        store.adopt(folder, names=names, origins=origins)
    except (BelljarError, OSError) as error:
        return getattr(error, "what", str(error))
    return ""


def run_unit(
    fleet: str, unit: str, words: Sequence[str], settings: Mapping[str, str], *, lease: str = LEASE
) -> Iterator[dict[str, Any] | bytes]:
    """Its record is sent however it ended: it may be a breach's."""
    folder = _folder(fleet)
    noted = folder / f"{unit}.run"
    lease_s = _LEASE * silence_s(settings)
    guard = [sys.executable, "-m", "belljar.fleet.guard", str(folder / lease), str(lease_s)]
    command = [sys.executable, "-m", "belljar", "run", *words]  # not `--json`: errors on stderr
    with (
        (folder / f"{unit}.err").open("wb") as err,
        subprocess.Popen(
            [*guard, *command],
            cwd=folder / "task",
            # The node's operator may set another number of starts.
            env={STARTS: str(os.cpu_count() or 1), **_environment(settings), NOTED_IN: str(noted)},
            stdin=subprocess.PIPE,  # its end tells the guard that this worker is gone
            stdout=subprocess.DEVNULL,
            stderr=err,
            start_new_session=True,  # its guard ends it, no signal to the worker's group
        ) as process,
    ):
        code = process.wait()
    run_id = ""
    if noted.exists() and noted.stat().st_size:  # a run that was refused has no directory
        directory = Path(noted.read_text())
        run_id, waited_s = directory.name, 0.0
        # When the guard was killed, the kernel interrupted the run, which still ends.
        while is_being_written(directory) and waited_s < END_S:
            time.sleep(POLL_S)
            waited_s += POLL_S
        yield from pack(directory)
    with (folder / f"{unit}.err").open("rb") as said:
        # A character is at most four bytes of UTF-8.
        said.seek(max(0, said.seek(0, os.SEEK_END) - 4 * _TAIL_CHARS))
        why = _tail(said.read())
    yield {"run_id": run_id, "exit_code": code, "why": why}


def clear(fleet: str) -> None:
    """Remove the fleet's files. Run directories stay as evidence."""
    folder = _folder(fleet)
    gone = folder.with_name(f"{fleet}.gone")
    # First its name: the head's next sign of life would write a file into it meanwhile.
    with suppress(OSError):
        folder.rename(gone)
    shutil.rmtree(gone, ignore_errors=True)


def kill_all(reason: str, more: Sequence[str]) -> tuple[str, int, str]:
    """Return the node's name, the exit code and its output."""
    command = [sys.executable, "-m", "belljar", "kill", "--all", "--reason", reason]
    done = subprocess.run(
        [*command, *more], stdin=subprocess.DEVNULL, capture_output=True, timeout=END_S, check=False
    )
    return _name(), done.returncode, _tail(done.stdout + done.stderr)


# The functions that a head may call here.
CALLED: Final[tuple[Callable[..., Any], ...]] = (
    *(describe, prepare, check, take_piece, take_image, clear, kill_all),
)


class HeadWatch:
    def __init__(self, fleet: str, lease: str = LEASE) -> None:
        self._lease = _folder(fleet) / lease

    def beat(self, number: int, *, stop: bool) -> None:
        # Renamed into place: a guard never reads half a lease.
        fresh = self._lease.with_name(f"{self._lease.name}.new")
        with suppress(FileNotFoundError):  # the workspace was cleared meanwhile
            fresh.write_text(f"{number} {STOP if stop else 'go on'}")
            fresh.rename(self._lease)


def _name() -> str:
    named = os.environ.get(NAME_VARIABLE) or os.environ.get("SLURMD_NODENAME")
    return named or os.uname().nodename


def _folder(fleet: str) -> Path:
    # It becomes a path, and must not lead out of the store.
    if not re.fullmatch(r"[0-9A-Za-z][0-9A-Za-z.-]{0,63}", fleet):
        raise ValueError("not a run's id")
    return belljar_home() / "fleet" / fleet


def _environment(settings: Mapping[str, str]) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_REMOVED)}
    return {**kept, **settings_of(settings), "NO_COLOR": "1"}


def _tail(output: bytes) -> str:
    lines = [line for line in output.decode("utf-8", "replace").splitlines() if line.strip()]
    return printable(" / ".join(lines[-6:])[-_TAIL_CHARS:], max_chars=_TAIL_CHARS)
