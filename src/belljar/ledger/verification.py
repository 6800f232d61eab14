"""Verifies that a run directory is as its writer left it: offline, streaming, trusting nothing.

Found, if the signing key is secret and known to the verifier: any change, removal, addition or
reordering of events, bodies, checkpoints and files, and truncation of a finished run. A body or
file may be missing if the same key's statement names it (`omission`). Not found: forgery with
the key; changes to the unsigned last events of an *unfinished* run; truncation to an earlier
checkpoint without manifest, which looks like a crash: no unfinished run is evidence.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Any, BinaryIO, Final

from belljar.dataclass import dataclass, field
from belljar.errors import LedgerError
from belljar.events import Kind
from belljar.ledger.chain import NO_LINE, MerkleTree, parse_canonical, sha256_hex
from belljar.ledger.files import (
    BODIES,
    CHECKPOINTS,
    LEDGER,
    MANIFEST,
    MANIFEST_PART,
    body_path,
    exists,
    has_digest,
    is_being_written,
    open_beneath,
    open_directory,
    raw_lines,
    read_beneath,
    walk_files,
)
from belljar.ledger.schema import (
    MAX_CHECKPOINT_BYTES,
    MAX_LINE_BYTES,
    MAX_OMISSION_BYTES,
    MAX_SPILLED_BYTES,
    OMISSIONS,
    SPILLED,
    SPILLED_BODY,
    BodyRef,
    Checkpoint,
    Line,
    Omission,
    check_data,
    check_manifest,
    parse_checkpoint,
    parse_omission,
)
from belljar.units import printable

# It is read whole; hundreds of thousands of files fit.
_MAX_MANIFEST_BYTES: Final = 64 << 20


def parse_line(raw: bytes) -> Line:
    """Read a line, without data in a body. Raises `ValueError`."""
    line = Line.read(parse_canonical(raw))
    if line.data != SPILLED:
        check_data(line.kind, line.data)
    return line


def spilled_data(root: int, line: Line) -> dict[str, Any]:
    """Return data in the line's body. Raises `ValueError`, `OSError`, `LedgerError`."""
    body = next((body for body in line.bodies if body.name == SPILLED_BODY), None)
    if body is None or body.stored is None or body.kept_bytes != body.total_bytes:
        raise ValueError("its data should be a body, which is not there whole")
    return parse_canonical(read_beneath(root, body_path(body.stored), max_bytes=MAX_SPILLED_BYTES))


@dataclass(slots=True)
class _Checker:
    root: int
    expected_key: str | None
    expected_run: str | None
    key_mismatch: bool = False
    tree: MerkleTree = field(default_factory=MerkleTree)
    prev: str = NO_LINE
    mono_ns: int = 0
    checkpoint: Checkpoint | None = None
    checkpoints: int = 0
    final: Checkpoint | None = None
    signed: int = 0
    bodies: dict[bytes, int] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    omissions: list[Omission] = field(default_factory=list)
    missing: set[str] = field(default_factory=set)
    missing_files: frozenset[str] = frozenset()

    def check(self, run_dir: Path) -> None:
        # A live run may be sealed meanwhile: it is judged as it was when reading began.
        try:
            alive = is_being_written(run_dir)
        except OSError:
            alive = False  # Missing or a symlink: opening it for reading says which.
        if exists(self.root, OMISSIONS):
            self._read_omissions()
        for path in (LEDGER, CHECKPOINTS):
            if not exists(self.root, path):
                raise LedgerError("missing", where=path)
        with (
            open_beneath(self.root, LEDGER) as ledger,
            open_beneath(self.root, CHECKPOINTS) as checkpoints,
        ):
            statements = self._checkpoints(checkpoints)
            due = self._reached(statements, next(statements, None))
            for number, raw, complete in raw_lines(ledger, max_bytes=MAX_LINE_BYTES, name=LEDGER):
                where = f"{LEDGER}:{number}"
                if self.final and self.tree.size == self.final.size:
                    raise LedgerError("added after the run's end", where=where)
                if not complete:
                    lost = "the event being written when the run ended was lost"
                    self.warnings.append(f"{where} is incomplete ({len(raw)} bytes): {lost}")
                    break
                self._line(number, raw, where)
                due = self._reached(statements, due)
        if due is not None:
            covered = f"{CHECKPOINTS}:{self.checkpoints} covers {due.size} events"
            what = f"missing or cut off: {covered}, {self.tree.size} are here"
            raise LedgerError(what, where=f"{LEDGER}:{self.tree.size + 1}")
        if self.final:
            self._finished(self.final)
        else:
            self._unfinished(alive=alive)

    def _read_omissions(self) -> None:
        with open_beneath(self.root, OMISSIONS) as file:
            # Any key can sign any number of them, and all are read before the run's is compared.
            if os.fstat(file.fileno()).st_size > 2 * MAX_OMISSION_BYTES:
                raise LedgerError("statements of what was left out are too large", where=OMISSIONS)
            for number, raw, _ in raw_lines(file, max_bytes=MAX_OMISSION_BYTES, name=OMISSIONS):
                self.omissions.append(parse_omission(raw, f"{OMISSIONS}:{number}"))

    def _reached(
        self, statements: Iterator[Checkpoint], due: Checkpoint | None
    ) -> Checkpoint | None:
        """Compare checkpoints of exactly the read events; return the next."""
        while due is not None and due.size == self.tree.size:
            if due.root != self.tree.root().hex():
                signed = f"those that {CHECKPOINTS}:{self.checkpoints} signed"
                what = f"changed: lines {self.signed + 1} to {due.size} are not {signed}"
                raise LedgerError(what, where=f"{LEDGER}:{max(due.size, 1)}")
            self.signed = due.size
            due = next(statements, None)
        return due

    def _line(self, number: int, raw: bytes, where: str) -> None:
        try:
            line = parse_line(raw)
        except ValueError as error:
            raise LedgerError(f"not an event: {error}", where=where) from error
        if line.seq != self.tree.size:
            what = f"event {line.seq} where {self.tree.size} is due: events were removed, added or"
            raise LedgerError(f"{what} moved", where=where)
        if line.prev != self.prev:
            what = "changed, or the line after it: its digest is not the one named there"
            raise LedgerError(what, where=f"{LEDGER}:{max(number - 1, 1)}")
        if int(line.mono_ns) < self.mono_ns:
            raise LedgerError("its time is before that of the event before it", where=where)
        for body in line.bodies:
            if what := self._wrong(body):
                raise LedgerError(f"body {body.name}: {what}", where=where)
        if line.data == SPILLED:
            try:
                check_data(line.kind, spilled_data(self.root, line))
            except ValueError as error:
                raise LedgerError(f"body {SPILLED_BODY}: {error}", where=where) from error
        if line.kind is Kind.RUN_STARTED and self.checkpoint is not None:
            named = (line.data.get("run_id"), line.data.get("key"))
            if named != (self.checkpoint.run_id, self.checkpoint.key):
                raise LedgerError(f"of another run or key than {CHECKPOINTS}", where=where)
        self.tree, self.prev = self.tree.added(raw), sha256_hex(raw)
        self.mono_ns = int(line.mono_ns)

    def _wrong(self, body: BodyRef) -> str:
        is_whole = body.kept_bytes == body.total_bytes
        if body.kept_bytes > body.total_bytes or (
            is_whole and body.stored_sha256 not in {None, body.sha256}
        ):
            return "its sizes and digests contradict each other"
        if body.kept_bytes == 0:
            return ""
        digest = body.stored
        if digest is None:
            return "no digest says where its bytes are"
        if (size := self.bodies.get(bytes.fromhex(digest))) is not None:
            return "of another size than before" if size != body.kept_bytes else ""
        path = body_path(digest)
        try:
            with open_beneath(self.root, path) as file:
                if not has_digest(file, digest, body.kept_bytes):
                    return f"{path}: changed, its bytes are not those recorded"
        except FileNotFoundError:
            if not any(digest in each.bodies for each in self.omissions):
                return f"{path}: missing"
            self.missing.add(digest)
        except LedgerError as error:
            return f"{path}: {error.what}"
        # Once read, a body isn't read again, however many events name it; bytes are half as long as
        # hex.
        self.bodies[bytes.fromhex(digest)] = body.kept_bytes
        return ""

    def _checkpoints(self, file: BinaryIO) -> Iterator[Checkpoint]:
        prev, size = NO_LINE, 0
        lines = raw_lines(file, max_bytes=MAX_CHECKPOINT_BYTES, name=CHECKPOINTS)
        for number, raw, complete in lines:
            where = f"{CHECKPOINTS}:{number}"
            if self.final:
                raise LedgerError("added after the run's final checkpoint", where=where)
            if not complete:
                self.warnings.append(f"{where} is incomplete ({len(raw)} bytes)")
                return
            try:
                checkpoint = parse_checkpoint(raw)
            except ValueError as error:
                raise LedgerError(f"not a checkpoint: {error}", where=where) from error
            key, run_id, last = checkpoint.key, checkpoint.run_id, self.checkpoint or checkpoint
            if self.expected_key not in {None, key}:
                self.key_mismatch = True
                what = f"signed by key {key}, not by {self.expected_key}, which is expected"
                raise LedgerError(what, where=where)
            if self.expected_run not in {None, run_id}:
                what = f"of run {run_id}, in the place of {self.expected_run}"
                raise LedgerError(what, where=where)
            if (key, run_id) != (last.key, last.run_id):
                what = "of another key or run than the checkpoint before it"
                raise LedgerError(what, where=where)
            if checkpoint.number != number - 1 or checkpoint.prev != prev:
                what = f"checkpoint {checkpoint.number} where {number - 1} is due, or not chained"
                raise LedgerError(f"{what}: one was removed, added or moved", where=where)
            if checkpoint.size < size:
                raise LedgerError("covers fewer events than the one before it", where=where)
            prev, size = sha256_hex(raw), checkpoint.size
            self.checkpoint, self.checkpoints = checkpoint, number
            self.final = checkpoint if checkpoint.final else None
            yield checkpoint

    def _finished(self, final: Checkpoint) -> None:
        sealed = (final.run_id, final.key, final.manifest_sha256)
        for number, each in enumerate(self.omissions, 1):
            if (each.run_id, each.key, each.manifest_sha256) != sealed:
                what = "of another run or key than the final checkpoint"
                raise LedgerError(what, where=f"{OMISSIONS}:{number}")
        files = self._check_files(final)
        if unsaid := files - frozenset().union(*(each.files for each in self.omissions)):
            raise LedgerError("missing: the manifest lists it", where=min(unsaid))
        self.missing_files = files
        for each in self.omissions:
            what = f"{len(each.bodies & self.missing)} bodies and {len(each.files & files)} files"
            how = f"were {each.action} on {each.time[:10]} ({', '.join(each.classes)})"
            self.warnings.append(f"{what} {how}")

    def _check_files(self, final: Checkpoint) -> frozenset[str]:
        """Compare manifest and files with the final checkpoint; return the missing files."""
        name, known = MANIFEST, {CHECKPOINTS, *([OMISSIONS] if self.omissions else [])}
        # After a crash between final checkpoint and rename, the complete manifest has its first
        # name.
        if not exists(self.root, MANIFEST) and exists(self.root, MANIFEST_PART):
            name = MANIFEST_PART
            died = f"the process died as it put {MANIFEST} in place; {name} is complete"
            self.warnings.append(died)
        due = self._manifest(name, final)
        for path in walk_files(self.root):
            if path.startswith(f"{BODIES}/"):
                try:
                    digest = bytes.fromhex(path.rpartition("/")[2])
                except ValueError:
                    digest = b""
                # A digest has one spelling: with capitals or blanks it is another file.
                if digest not in self.bodies or path != body_path(digest.hex()):
                    raise LedgerError("added: no event names it", where=path)
            elif path not in {name, *known}:
                expected = due.pop(path, None)
                if expected is None:
                    raise LedgerError("added: the manifest doesn't list it", where=path)
                with open_beneath(self.root, path) as file:
                    if not has_digest(file, expected["sha256"], expected["bytes"]):
                        what = "changed: its digest is not the manifest's"
                        raise LedgerError(what, where=path)
        return frozenset(due)

    def _manifest(self, name: str, final: Checkpoint) -> dict[str, dict[str, Any]]:
        try:
            content = read_beneath(self.root, name, max_bytes=_MAX_MANIFEST_BYTES)
            if sha256_hex(content) != final.manifest_sha256:
                what = "changed: its digest is not the one in the final checkpoint"
                raise LedgerError(what, where=name)
            manifest = parse_canonical(content.removesuffix(b"\n"))
            check_manifest(manifest)
        except FileNotFoundError as error:
            raise LedgerError("missing", where=name) from error
        except ValueError as error:
            raise LedgerError(f"not a manifest: {error}", where=name) from error
        for each in ("run_id", "key", "public_key"):
            if manifest[each] != getattr(final, each):
                raise LedgerError("of another run or key than the final checkpoint", where=name)
        files: dict[str, dict[str, Any]] = manifest["files"]
        return files

    def _unfinished(self, *, alive: bool) -> None:
        if self.omissions:
            raise LedgerError("only of a finished run can a part be left out", where=OMISSIONS)
        if not alive and exists(self.root, MANIFEST):
            what = f"cut off: {MANIFEST} was written, but the final checkpoint is not there"
            raise LedgerError(what, where=f"{CHECKPOINTS}:{self.checkpoints + 1}")
        for _ in walk_files(self.root):
            pass  # Refuses links and special files.
        died = "was not finished (its process died, or its end was removed)"
        unsigned = f"{self.tree.size - self.signed} of {self.tree.size} events are not signed"
        state = "is still being written" if alive else died
        rest = "its files but the ledger and its bodies are not covered"
        self.warnings.append(f"the run {state}: {unsigned}, and {rest}")


class Status(StrEnum):
    """`PARTIAL`: verified, with deliberate omissions. `OWN`: this process's own, good so far."""

    VERIFIED = "verified"
    PARTIAL = "partial"
    OWN = "own"
    UNFINISHED = "unfinished"
    BAD = "bad"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """Counts are of what was read before the first `problem`.

    Its `where` is `file:line` or a file. `key` signed; `key_checked`: it was the expected one;
    `key_mismatch`: another one signed. A signed statement names `files_left_out`.
    """

    status: Status
    problem: LedgerError | None
    warnings: tuple[str, ...]
    run_id: str | None
    key: str | None
    key_checked: bool
    key_mismatch: bool
    events: int
    signed_events: int
    checkpoints: int
    bodies: int
    root: str
    files_left_out: frozenset[str] = frozenset()

    def ok(self, *, strict: bool = False) -> bool:
        return self.status is Status.VERIFIED or (self.status is not Status.BAD and not strict)

    def passes(self, *, strict: bool) -> bool:
        """Return whether nothing is wrong; `strict`: it is whole, and a known key was compared."""
        return self.ok(strict=strict) and (self.key_checked or not strict)


def verify(
    run_dir: Path, *, expected_key: str | None = None, expected_run: str | None = None
) -> Verification:
    """Verify a run directory of any size (200 bytes of memory per distinct body).

    Without `expected_key`, a ledger forged whole with another key is *not* found: compare `key`.
    `expected_run`: refuses another, genuine run in this directory. Raises `OSError`.
    """
    problem = None
    with open_directory(run_dir) as root:
        checker = _Checker(root, expected_key, expected_run)
        try:
            checker.check(run_dir)
        except LedgerError as error:
            problem = LedgerError(error.what, where=error.where)
        # It says nothing of the run: whoever may read it can still verify it.
        except PermissionError:
            raise
        except OSError as error:
            what = f"can't be read: {error.strerror}"
            problem = LedgerError(what, where=str(error.filename or run_dir))
    last, status = checker.checkpoint, Status.BAD if problem else Status.UNFINISHED
    if checker.final and not problem:
        status = Status.PARTIAL if checker.omissions else Status.VERIFIED
    return Verification(
        status=status,
        problem=problem,
        warnings=tuple(checker.warnings),
        run_id=last.run_id if last else None,
        key=last.key if last else None,
        key_checked=last is not None and checker.expected_key is not None,
        key_mismatch=checker.key_mismatch,
        events=checker.tree.size,
        signed_events=checker.signed,
        checkpoints=checker.checkpoints,
        bodies=len(checker.bodies) - len(checker.missing),
        root=checker.tree.root().hex(),
        files_left_out=checker.missing_files,
    )


HINT_KEY: Final = (
    "no key to compare with: on the host that made the run, `belljar ledger verify` prints its "
    "fingerprint; get it by a way you trust and pass it with --key FINGERPRINT"
)


def verification_json(result: Verification, *, strict: bool) -> dict[str, Any]:
    lacks_key = result.key and not result.key_checked
    problem = result.problem
    names = ("run_id", "key", "events", "signed_events", "checkpoints", "bodies", "root")
    return {
        "ok": result.passes(strict=strict),
        "status": result.status.value,
        "problem": {"where": problem.where, "what": problem.what} if problem else None,
        "warnings": [*result.warnings, *([HINT_KEY] if lacks_key else [])],
        **{name: getattr(result, name) for name in names},
    }


def verification_text(result: Verification, path: Path, origin: str) -> str:
    """Return the result for a person; `origin`: the compared key's."""
    shown = [f"{printable(str(path))}: {result.status.value}"]
    if result.problem:
        shown.append(f"{printable(result.problem.where)}: {printable(result.problem.what)}")
    shown += [f"warning: {printable(warning)}" for warning in result.warnings]
    counted = f"{result.events} events ({result.signed_events} signed)"
    shown.append(f"{counted}, {result.checkpoints} checkpoints, {result.bodies} bodies")
    if result.key:
        shown.append(f"signed by {result.key}")
    if result.key and not result.problem:
        shown.append(f"that is {origin}" if origin else HINT_KEY)
    return "\n  ".join(shown)


def row(event: Line) -> str:
    mark = "·" if event.trust == "host-observed" else "g"
    cell = printable(event.cell or "-")[:12]
    shown = {
        name: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        for name, value in event.data.items()
        if not name.endswith("_times")  # for replays; `--json` has them
    }
    details = "  ".join(
        f"{printable(name, max_chars=64)}={printable(text, max_chars=160)}"
        for name, text in shown.items()
    )
    sizes = (f"[{each.name} {each.kept_bytes} of {each.total_bytes} B]" for each in event.bodies)
    head = f"{event.seq:>6}  {event.time[11:23]}  {cell:<12}  {mark} {event.kind.value:<20}"
    return f"{head}  {details}  {'  '.join(sizes)}".rstrip()
