"""The hold (no new cells) and kill orders of this store.

Owners check both after the journal entry and before the first guest instruction.
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
from belljar.descriptors import open_plain_file
from belljar.errors import CellError, HostError, host_errors
from belljar.events import JsonValue
from belljar.process import raise_if_blind
from belljar.store.home import belljar_home, make_store_dir, sync_file
from belljar.store.journal import ORDER_SUFFIX
from belljar.store.scratch import DRAFT, owned_name, write_whole
from belljar.units import iso_time, printable

HOLD_FILE: Final = "hold.json"
RELEASE_HINT: Final = "`belljar release` lifts the hold"
# What an order may name; any other word is read as the narrowest.
SCOPES: Final = ("sample", "run", "all", "cells", "hold")
NO_REASON: Final = "no reason given"
MAX_REASON_CHARS: Final = 500  # it stands in each error of what was killed
_KEEP_ORDERS_S: Final = 3600.0
_MAX_FILE_BYTES: Final = 1 << 14  # what is longer is cut, thus damaged, and holds all the same
_UNCHANGED: Final = "the hold can't be changed"


@dataclass(frozen=True, slots=True, kw_only=True)
class KillOrder:
    """`rule` is a policy's `on`, `operator` or `self-test`."""

    kill_id: str
    scope: str
    reason: str
    by: str
    at: str
    rule: str = "operator"

    @property
    def is_ours(self) -> bool:
        return self.by == _whoami()

    def triggered(self, evidence: int | None = None) -> dict[str, JsonValue]:
        data: dict[str, JsonValue] = {"scope": self.scope, "reason": self.reason, "rule": self.rule}
        return data if evidence is None else data | {"evidence": evidence}

    def __str__(self) -> str:
        if self.scope == "hold":
            return f"no new cell may be made: held by {self.by} since {self.at}: {self.reason}"
        whose = "the operator" if self.rule == "operator" else f"the rule `{self.rule}`"
        return f"killed by {whose}: {self.reason}"


class KilledError(CellError):
    def __init__(self, order: KillOrder, *, where: str) -> None:
        what = f"the {where.partition(' ')[0]} was {order}"
        hint = "its record is complete up to here: `belljar ledger show last`"
        super().__init__(what, where=where, hint=hint)
        self.order = order


def new_order(scope: str, reason: str, *, rule: str = "operator") -> KillOrder:
    return KillOrder(
        kill_id=f"k-{secrets.token_hex(6)}",
        scope=scope,
        reason=printable(" ".join(reason.split()), max_chars=MAX_REASON_CHARS) or NO_REASON,
        by=_whoami(),
        at=iso_time(time.time()),
        rule=rule,
    )


def hold(home: Path, reason: str = "") -> KillOrder:
    """Forbid new cells until `release`, durably. Raises `HostError`."""
    order = new_order("hold", reason)
    hint = "free some space, or end the processes that make cells (`belljar ps`)"
    with host_errors(_UNCHANGED, where=home / HOLD_FILE, hint=hint):
        make_store_dir(home)
        write_whole(home / HOLD_FILE, json.dumps(asdict(order)), is_durable=True)
    return order


def release(home: Path | None = None) -> KillOrder | None:
    """Lift the hold, if any, and return it. Raises `HostError`."""
    home = home or belljar_home()
    if (held := read_hold(home)) is not None:
        hint = "remove this file as the user who owns it"
        with host_errors(_UNCHANGED, where=home / HOLD_FILE, hint=hint):
            (home / HOLD_FILE).unlink(missing_ok=True)
            sync_file(home)
    return held


def read_hold(home: Path) -> KillOrder | None:
    """Return the hold; a damaged one counts. Raises `OSError`."""
    return _read(home / HOLD_FILE, scope="hold")


def give_order(home: Path, names: Iterable[str], order: KillOrder) -> None:
    """Put the order beside each; the first stands. Raises `OSError`."""
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
    """Return the kill order; a damaged one counts."""
    # For want of descriptors nothing is known: it is no order, and is looked for again
    with suppress(OSError):
        return _read(_order_file(home, name), scope="cells")
    return None


def sweep_orders(directory: Path) -> None:
    for path in directory.glob(f"*{ORDER_SUFFIX}"):
        with suppress(OSError):
            is_old = time.time() - path.stat().st_mtime > _KEEP_ORDERS_S
            has_entry = path.with_suffix(".json").exists()
            if is_old and not has_entry and not run_goes_on(directory.parent, path.stem):
                path.unlink()


@contextmanager
def run_order_kept(home: Path, run_id: str) -> Iterator[None]:
    try:
        yield
    finally:
        with suppress(OSError):
            _order_file(home, run_id).unlink(missing_ok=True)


def run_goes_on(home: Path, run_id: str) -> bool:
    """Return True while a living process writes the run's record."""
    from belljar.ledger.files import is_being_written
    from belljar.ledger.rundir import RUNS

    try:
        return is_being_written(home / RUNS / run_id)
    except OSError as exc:
        raise_if_blind(exc)
        return False


def check_may_start(home: Path, *, cell: str = "", run: str = "", is_held: bool = True) -> None:
    """Raise `HostError` while the store is held, `CellError` if cell or run was killed."""
    if is_held and (held := read_hold(home)) is not None:
        raise HostError(str(held), where=str(home / HOLD_FILE), hint=RELEASE_HINT)
    for kind, name in (("cell", cell), ("run", run)):
        if name:
            raise_if_killed(read_order(home, name), where=f"{kind} {name}")


def killed_error(order: KillOrder | None, *, where: str) -> KilledError | None:
    return None if order is None else KilledError(order, where=where)


def raise_if_killed(order: KillOrder | None, *, where: str) -> None:
    if (error := killed_error(order, where=where)) is not None:
        raise error


def _order_file(home: Path, name: str) -> Path:
    # A name must not lead out of the journal.
    if "/" in name or name.startswith("."):
        raise ValueError(f"{name!r} names no cell, range or run")
    return home / "journal" / f"{name}{ORDER_SUFFIX}"


def _read(path: Path, *, scope: str) -> KillOrder | None:
    words: Any = None
    try:
        with open_plain_file(path) as file:
            words = json.loads(file.read(_MAX_FILE_BYTES))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, RecursionError) as exc:
        raise_if_blind(exc)
    if not isinstance(words, dict) or not {"reason", "by", "at"} <= set(words):
        words = {"reason": f"{path.name} is damaged", "by": "?", "at": "?"}
    fields = {"kill_id": "", "rule": "operator", **words}
    fields["scope"] = words["scope"] if words.get("scope") in SCOPES else scope
    shown = {
        name: printable(str(fields[name]), max_chars=MAX_REASON_CHARS)
        for name in field_names(KillOrder)
    }
    return KillOrder(**shown)


def _whoami() -> str:
    try:
        name = getpass.getuser()
    except (KeyError, OSError):  # a uid without an account
        name = f"uid {os.getuid()}"
    return printable(f"{name} (process {os.getpid()})", max_chars=100)
