"""The few errors, sorted by their cause.

A guest command that fails is a *result*, never one of these. Where a builtin's meaning fits
(`FileNotFoundError`, `TimeoutError`), it is raised instead.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar, TypeVar


class BelljarError(Exception):
    """An error: `what` happened, `where`, and a `hint` what to do next."""

    exit_code: ClassVar[int] = 1
    code: str = "error"
    """Identifies the error to programs (`--json`); stable like the exit code."""

    def __init__(self, what: str, *, where: str = "", hint: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.hint = hint

    def __str__(self) -> str:
        text = f"{self.where}: {self.what}" if self.where else self.what
        return f"{text}\n  hint: {self.hint}" if self.hint else text


class PolicyError(BelljarError):
    """The policy or another input file is invalid or not allowed."""

    exit_code = 4
    code = "policy_error"


class HostError(BelljarError):
    """This machine can't do what the policy demands. Nothing was weakened."""

    exit_code = 3
    code = "host_error"


class CellError(BelljarError):
    """A cell could not be made, died, or broke the protocol."""

    exit_code = 5
    code = "cell_error"


class ProtocolViolation(CellError):  # noqa: N818 - the design's word
    """The guest broke the channel's protocol; its cell is ended."""

    code = "protocol_violation"


class LedgerError(BelljarError):
    """The record can't be written or doesn't verify. Nothing may run unrecorded."""

    exit_code = 5
    code = "ledger_error"


class InvalidEventError(LedgerError):
    """The event is invalid for its kind, and was not written."""


class ContainmentBreach(BelljarError):  # noqa: N818 - the design's word
    """Something got out, or a destroyed cell left a survivor. Stop everything."""

    exit_code = 2
    code = "containment_breach"
    cause: str = ""
    """The reason code of this error's verdict, "" for none."""


_E = TypeVar("_E", bound=BaseException)


def first_of(error: BaseException | None, kind: type[_E]) -> _E | None:
    """Return the first error of a kind, also in groups."""
    while isinstance(error, BaseExceptionGroup) and (wanted := error.subgroup(kind)):
        error = wanted.exceptions[0]
    return error if isinstance(error, kind) else None


def chained(error: BaseException) -> Iterator[BaseException]:
    """Yield the error, those of its group, and what caused or preceded each, once."""
    waiting, seen = [error], set[int]()  # an error may be its own cause
    while waiting:
        raised = waiting.pop(0)
        if id(raised) not in seen:
            seen.add(id(raised))
            yield raised
            waiting += raised.exceptions if isinstance(raised, BaseExceptionGroup) else ()
            hidden = None if raised.__suppress_context__ else raised.__context__
            waiting += filter(None, (raised.__cause__ or hidden,))


@contextmanager
def host_errors(what: str, *, where: object, hint: str = "") -> Iterator[None]:
    """Raise the block's `OSError` as a `HostError` with the system's reason."""
    try:
        yield
    except OSError as exc:
        raise HostError(
            f"{what}: {exc.strerror}", where=str(exc.filename or where), hint=hint
        ) from exc


@contextmanager
def breach_stands(verdict: str, *, hint: str) -> Iterator[None]:
    """Raise a breach for whatever fails in the block, if `verdict` is one."""
    try:
        yield
    except BaseException as error:
        if verdict != "breached" or isinstance(error, ContainmentBreach):
            raise
        what = f"it is breached, and could not be recorded or shown: {type(error).__name__}"
        raise ContainmentBreach(what, hint=hint) from error
