"""Whether a run directory is what its writer left: offline, streaming, trusting nothing in it.

Found: any change to, removal, addition or reordering of events, bodies, checkpoints and files, and
the cutting-off of a finished run, as long as the signing key stayed secret and is known to who
verifies. Not found: what the key's holder forges; the last events of an *unfinished* run that no
checkpoint signed yet (their number is reported); and the cutting-back of a finished run to an
earlier checkpoint with the manifest removed, which looks like a crash. So an unfinished run is
never evidence.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from belljar.errors import LedgerError
from belljar.ledger.checker import Checker


class Status(StrEnum):
    """What verification found."""

    VERIFIED = "verified"
    UNFINISHED = "unfinished"
    BAD = "bad"


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """The first thing that is wrong: `where` is `file:line` or a file, relative to the run
    directory.
    """

    where: str
    what: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """The result.

    `key` is the fingerprint that signed; `key_checked` says whether it was compared with one that
    was expected.

    `signed_events` of the `events` are covered by a checkpoint. Counts are of what was read before
    the problem, if there is one.
    """

    status: Status
    problem: Problem | None
    warnings: tuple[str, ...]
    run_id: str | None
    key: str | None
    key_checked: bool
    events: int
    signed_events: int
    checkpoints: int
    bodies: int
    root: str

    def ok(self, *, strict: bool = False) -> bool:
        """Nothing is wrong; strictly: and the run was finished."""
        return self.status is Status.VERIFIED or (self.status is Status.UNFINISHED and not strict)


def verify(
    run_dir: Path, *, expected_key: str | None = None, expected_run: str | None = None
) -> Verification:
    """Verify a run directory.

    Memory: about 200 bytes per distinct body; the ledger may be of any size.

    Args:
        run_dir: the run directory.
        expected_key: the fingerprint that must have signed. Without it, a ledger forged as a whole
            and signed with another key is *not* found: compare `key`.
        expected_run: the run id that it must be of: found under a name, a directory could hold
            another, genuine run.

    Raises:
        FileNotFoundError, NotADirectoryError, PermissionError: there is no such directory, or it
            can't be read.
    """
    root = os.open(run_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        checker = Checker(root, run_dir, expected_key, expected_run)
        return _result(checker, _first_problem(checker))
    finally:
        os.close(root)


def _first_problem(checker: Checker) -> Problem | None:
    try:
        checker.check()
    except LedgerError as error:
        return Problem(where=error.where, what=error.what)
    except PermissionError:
        raise
    except OSError as error:
        return Problem(
            where=str(error.filename or checker.run_dir), what=f"can't be read: {error.strerror}"
        )
    return None


def _result(checker: Checker, problem: Problem | None) -> Verification:
    last = checker.checkpoint
    return Verification(
        status=Status.BAD if problem else Status.VERIFIED if checker.final else Status.UNFINISHED,
        problem=problem,
        warnings=tuple(checker.warnings),
        run_id=last.run_id if last else None,
        key=last.key if last else None,
        key_checked=last is not None and checker.expected_key is not None,
        events=checker.tree.size,
        signed_events=checker.signed,
        checkpoints=checker.checkpoints,
        bodies=len(checker.bodies),
        root=checker.tree.root().hex(),
    )
