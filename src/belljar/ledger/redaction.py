"""Copies of a run without classes of its contents, on record."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Collection, Set
from pathlib import Path
from typing import Final

from belljar.dataclass import asdict, dataclass
from belljar.errors import HostError, LedgerError
from belljar.events import Kind
from belljar.ledger.files import (
    CHECKPOINTS,
    body_path,
    open_beneath,
    open_directory,
    raw_lines,
    read_raw,
    walk_files,
)
from belljar.ledger.keys import SigningKey
from belljar.ledger.schema import (
    MAX_CHECKPOINT_BYTES,
    OMISSIONS,
    SPILLED,
    SPILLED_BODY,
    make_omission,
    parse_checkpoint,
)
from belljar.ledger.verification import Status, parse_line, verify
from belljar.ledger.writer import wall_time

# By the first word of an event's kind.
_OF_KINDS: Final = {
    **dict.fromkeys(("network", "connect", "model"), "requests"),
    "exec": "outputs",
    **dict.fromkeys(("file", "files"), "files"),
}
CLASSES: Final = (
    *("requests", "outputs", "inputs", "files", "other"),  # bodies of events
    *("packets", "logs", "secrets"),  # files of the run directory
)
# What quotes the bodies of a class is left out with them.
_QUOTED_IN: Final = {
    "requests": {"packets", "logs"},
    **{each: {"logs"} for each in ("outputs", "inputs", "files")},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """`classes` are with those that quote them; `bodies` are digests."""

    classes: tuple[str, ...]
    bodies: frozenset[str]
    files: frozenset[str]


def choose(run_dir: Path, classes: Collection[str]) -> Chosen:
    """Find these classes' remaining contents. Raises `LedgerError`, `OSError`."""
    wanted = {*classes}.union(*(_QUOTED_IN.get(each, ()) for each in classes))
    found, needed = set[str](), set[str]()
    for number, raw, _ in read_raw(run_dir):
        try:
            line = parse_line(raw)
        except ValueError as error:
            raise LedgerError(f"not an event: {error}", where=f"line {number}") from error
        word = line.kind.partition(".")[0]
        for body in line.bodies:
            is_data = line.data == SPILLED and body.name == SPILLED_BODY
            is_input = line.kind is Kind.EXEC_INPUT or (word == "exec" and body.name == "stdin")
            of_class = "inputs" if is_input else _OF_KINDS.get(word, "other")
            if body.stored and (is_data or of_class in wanted):
                (needed if is_data else found).add(body.stored)
    # Equal bytes are stored once: a body that an event needs as its data stays.
    bodies = {digest for digest in found - needed if (run_dir / body_path(digest)).exists()}
    with open_directory(run_dir) as root:
        files = {path for path in walk_files(root) if wanted & _classes_of_file(path)}
    return Chosen(
        classes=tuple(each for each in CLASSES if each in wanted),
        bodies=frozenset(bodies),
        files=frozenset(files),
    )


def _classes_of_file(path: str) -> Set[str]:
    if path.startswith("ranges/") and path.endswith(".pcapng"):
        return {"packets"}
    if path.startswith("inspect/") or path == "findings.json":  # both quote outputs
        return {"logs"}
    if path.startswith("units/"):  # whole runs of a fleet's nodes
        return {*CLASSES}
    return {"secrets"} if path == "decoys.key" else set()


def share(run_dir: Path, target: Path, chosen: Chosen, key: SigningKey) -> None:
    """Copy a run without what is chosen, whole or not at all; the copy verifies.

    Raises `LedgerError`, `HostError`, `OSError`.
    """
    result = verify(run_dir)
    if result.problem is not None:
        raise result.problem
    if result.status is Status.UNFINISHED:
        what = "only of a finished run can a part be left out"
        hint = "delete the whole directory of an unfinished one"
        raise LedgerError(what, where=str(run_dir), hint=hint)
    if result.key != key.fingerprint:
        what = "only the key that sealed the run can sign what is left out of it"
        raise HostError(what, where=str(run_dir), hint="do it on the host that made the run")
    left_out = {*chosen.files, *map(body_path, chosen.bodies)}
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}.") as scratch:
        part = Path(scratch) / "run"
        part.mkdir(mode=0o700)
        with open_directory(run_dir) as root:
            with open_beneath(root, CHECKPOINTS) as file:
                *_, (_, last, _) = raw_lines(file, max_bytes=MAX_CHECKPOINT_BYTES, name=CHECKPOINTS)
            final = parse_checkpoint(last)
            for path in walk_files(root):
                if path in left_out:
                    continue
                (part / path).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                with open_beneath(root, path) as source, (part / path).open("xb") as copy:
                    shutil.copyfileobj(source, copy, 1 << 20)
        now = wall_time(time.time_ns())
        statement = make_omission(key, final, time=now, **asdict(chosen))
        with (part / OMISSIONS).open("ab") as file:
            file.write(statement + b"\n")
        # What is handed on must verify for its reader, so it is verified before it has its name.
        result = verify(part, expected_key=key.fingerprint, expected_run=final.run_id)
        if result.status is not Status.PARTIAL:
            raise LedgerError(f"the copy does not verify: {result.problem}", where=str(run_dir))
        if target.exists():
            raise FileExistsError(17, "it exists", str(target))
        part.rename(target)
