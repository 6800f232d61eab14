"""What forbids cells of this store: the hold (no new cells) and kill orders.

Written before the kill switch acts. Owners check them after the journal entry and again before the
first guest instruction, so no cell escapes both.
"""

from __future__ import annotations

import getpass
import json
import os
import secrets
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from belljar.dataclass import asdict, dataclass, field_names
from belljar.descriptors import CANNOT_LOOK
from belljar.errors import CellError, HostError, host_errors
from belljar.events import JsonValue
from belljar.process import raise_if_blind
from belljar.store.home import belljar_home, make_store_dir, sync_file
from belljar.store.journal import ORDER_SUFFIX
from belljar.store.scratch import DRAFT, owned_name, write_whole
from belljar.units import iso_time, printable

HOLD_FILE: Final = "hold.json"
RELEASE_HINT: Final = "`belljar release` lifts the hold"
# What a kill order may name; any other word is read as the narrowest.
SCOPES: Final = ("sample", "run", "all", "cells")
NO_REASON: Final = "no reason given"
MAX_REASON_CHARS: Final = 500  # it stands in each error of what was killed
_KEEP_ORDERS_S: Final = 3600.0
_MAX_FILE_BYTES: Final = 1 << 14  # more is none of ours, and holds all the same
_UNCHANGED: Final = "the hold can't be changed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """No new cells."""

    reason: str
    by: str
    at: str

    def __str__(self) -> str:
        return f"no new cell may be made: held by {self.by} since {self.at}: {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class KillOrder:
    """One kill; `rule`: a policy's `on`, `operator` or `self-test`."""

    kill_id: str
    scope: str
    reason: str
    by: str
    at: str
    rule: str = "operator"

    @property
    def is_ours(self) -> bool:
        """Whether this process has given it."""
        return self.by == _whoami()

    def triggered(self, evidence: int | None = None) -> dict[str, JsonValue]:
        """As `kill.triggered` records it; `evidence`: an event's number."""
        data: dict[str, JsonValue] = {"scope": self.scope, "reason": self.reason, "rule": self.rule}
        return data if evidence is None else data | {"evidence": evidence}

    def __str__(self) -> str:
        whose = "the operator" if self.rule == "operator" else f"the rule `{self.rule}`"
        return f"killed by {whose}: {self.reason}"


class KilledError(CellError):
    """A cell was killed or forbidden by this order."""

    def __init__(self, order: KillOrder, *, where: str) -> None:
        what = f"the {where.partition(' ')[0]} was {order}"
        hint = "its record is complete up to here: `belljar ledger show last`"
        super().__init__(what, where=where, hint=hint)
        self.order = order


def new_order(scope: str, reason: str, *, rule: str = "operator") -> KillOrder:
    """An order of this process, now."""
    return KillOrder(
        kill_id=f"k-{secrets.token_hex(6)}",
        scope=scope,
        reason=_bounded(reason),
        by=_whoami(),
        at=iso_time(time.time()),
        rule=rule,
    )


def hold(home: Path, reason: str = "") -> Hold:
    """Forbid new cells until `release`. Durable. Raises `HostError`."""
    words = {"reason": _bounded(reason), "by": _whoami(), "at": iso_time(time.time())}
    hint = "free some space, or end the processes that make cells (`belljar ps`)"
    with host_errors(_UNCHANGED, where=home / HOLD_FILE, hint=hint):
        make_store_dir(home)
        write_whole(home / HOLD_FILE, json.dumps(words), is_durable=True)
    return Hold(**words)


def release(home: Path | None = None) -> Hold | None:
    """Lift the hold, if any. Raises `HostError`."""
    home = home or belljar_home()
    if (held := read_hold(home)) is not None:
        hint = "remove this file as the user who owns it"
        with host_errors(_UNCHANGED, where=home / HOLD_FILE, hint=hint):
            (home / HOLD_FILE).unlink(missing_ok=True)
            sync_file(home)
    return held


def read_hold(home: Path) -> Hold | None:
    """The hold in force; an unreadable one counts."""
    try:
        words = _read(home / HOLD_FILE)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as exc:
        raise_if_blind(exc)
        problem = exc.strerror if isinstance(exc, OSError) and exc.strerror else str(exc)
        return Hold(reason=f"the hold file is damaged: {printable(problem)}", by="?", at="?")
    return Hold(reason=words["reason"], by=words["by"], at=words["at"])


def give_order(home: Path, names: Iterable[str], order: KillOrder) -> None:
    """Put the order beside entries or runs; the first stands. Raises `OSError`."""
    directory = home / "journal"
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    draft = directory / owned_name(DRAFT, secrets.token_hex(4))
    try:
        draft.write_text(json.dumps(asdict(order)))
        for name in names:
            with suppress(FileExistsError):
                # link(2) puts the whole order there at once, and fails where another one stands.
                os.link(draft, _order_file(home, name))
    finally:
        draft.unlink(missing_ok=True)


def read_order(home: Path, name: str) -> KillOrder | None:
    """The kill order; an unreadable one counts."""
    try:
        words = _read(_order_file(home, name))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as exc:
        # For want of descriptors nothing is known: it would be no order, and is looked for again
        if isinstance(exc, OSError) and exc.errno in CANNOT_LOOK:
            return None
        words = {"reason": "its kill order is damaged", "by": "", "at": ""}
    fields = {"kill_id": "", "rule": "operator", "scope": "cells", **words}
    if fields["scope"] not in SCOPES:
        fields["scope"] = "cells"
    return KillOrder(**{name: fields[name] for name in field_names(KillOrder)})


def sweep_orders(directory: Path) -> None:
    """Remove orphaned orders over an hour old."""
    for path in directory.glob(f"*{ORDER_SUFFIX}"):
        with suppress(OSError):
            is_old = time.time() - path.stat().st_mtime > _KEEP_ORDERS_S
            has_entry = path.with_suffix(".json").exists()
            if is_old and not has_entry and not run_goes_on(directory.parent, path.stem):
                path.unlink()


@contextmanager
def run_order_kept(home: Path, run_id: str) -> Iterator[None]:
    """Remove the run's order after the block."""
    try:
        yield
    finally:
        with suppress(OSError):
            _order_file(home, run_id).unlink(missing_ok=True)


def run_goes_on(home: Path, run_id: str) -> bool:
    """Whether a living process writes the run's record."""
    from belljar.ledger.files import is_being_written
    from belljar.ledger.rundir import RUNS

    try:
        return is_being_written(home / RUNS / run_id)
    except OSError as exc:
        raise_if_blind(exc)
        return False


def check_may_start(home: Path, *, cell: str = "", run: str = "", is_held: bool = True) -> None:
    """Raise `HostError` while the store is held (`is_held`), `CellError` if cell or run was killed.

    Asked before a run gets a cell, when the journal names one, and before it runs.
    """
    if is_held and (held := read_hold(home)) is not None:
        raise HostError(str(held), where=str(home / HOLD_FILE), hint=RELEASE_HINT)
    for kind, name in (("cell", cell), ("run", run)):
        if name:
            raise_if_killed(read_order(home, name), where=f"{kind} {name}")


def killed_error(order: KillOrder | None, *, where: str) -> KilledError | None:
    """A kill order's error, or None; `where`: kind and id."""
    return None if order is None else KilledError(order, where=where)


def raise_if_killed(order: KillOrder | None, *, where: str) -> None:
    """Raise a kill order's error; none without one."""
    if (error := killed_error(order, where=where)) is not None:
        raise error


def _order_file(home: Path, name: str) -> Path:
    # A name must not lead out of the journal.
    if "/" in name or name.startswith("."):
        raise ValueError(f"{name!r} names no cell, range or run")
    return home / "journal" / f"{name}{ORDER_SUFFIX}"


def _read(path: Path) -> dict[str, str]:
    # O_NONBLOCK: opening a FIFO in its place would wait for ever.
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(fd, "rb") as file:
        content = file.read(_MAX_FILE_BYTES + 1)
    try:
        words: Any = json.loads(content) if len(content) <= _MAX_FILE_BYTES else None
    except RecursionError as error:
        raise ValueError("nested too deep") from error
    if not isinstance(words, dict) or not {"reason", "by", "at"} <= set(words):
        raise ValueError("not what Belljar writes")
    return {
        str(key): printable(str(value), max_chars=MAX_REASON_CHARS) for key, value in words.items()
    }


def _bounded(reason: str) -> str:
    return printable(" ".join(reason.split()), max_chars=MAX_REASON_CHARS) or NO_REASON


def _whoami() -> str:
    try:
        name = getpass.getuser()
    except (KeyError, OSError):  # a uid without an account
        name = f"uid {os.getuid()}"
    return printable(f"{name} (process {os.getpid()})", max_chars=100)
