"""Events and verifications as text and JSON, for `belljar ledger` and `belljar-verify`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from belljar.ledger.schema import Line
from belljar.ledger.verification import Status, Verification
from belljar.units import printable

HINT_KEY: Final = (
    "no key to compare with: on the host that made the run, `belljar ledger verify` prints its "
    "fingerprint; get it by a way you trust and pass it with --key FINGERPRINT"
)
# Where the status's own word would be taken for more or less than it says.
_TITLES: Final = {
    Status.UNFINISHED: "unfinished, and nothing is wrong with what is there",
    Status.PARTIAL: "partial: verified, but for what its signer left out",
    Status.BAD: "BAD",
}


def verification_json(result: Verification, *, strict: bool) -> dict[str, Any]:
    """Return a verification as JSON values."""
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
    """Return a verification for a person; `origin` names the key that was compared."""
    shown = [f"{printable(str(path))}: {_TITLES.get(result.status, result.status.value)}"]
    if result.problem:
        shown.append(f"{printable(result.problem.where)}: {printable(result.problem.what)}")
    shown += [f"warning: {printable(warning)}" for warning in result.warnings]
    shown.append(
        f"{result.events} events ({result.signed_events} signed), {result.checkpoints} "
        f"checkpoints, {result.bodies} bodies"
    )
    if result.key:
        shown.append(f"signed by {result.key}")
    if result.key and not result.problem:
        shown.append(f"that is {origin}" if origin else HINT_KEY)
    if result.key_mismatch and origin == "this host's key":
        shown.append("hint: if it was made elsewhere, pass that host's fingerprint with --key")
    return "\n  ".join(shown)


def dump(event: Line) -> dict[str, Any]:
    """Return an event as JSON values."""
    value = event.to_json()
    for body in value["bodies"]:
        if body["stored_sha256"] is None:
            del body["stored_sha256"]
    return value


def row(event: Line) -> str:
    """Return an event as a line for a person."""
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
    bodies = "  ".join(
        f"[{body.name} {body.kept_bytes} of {body.total_bytes} B]" for body in event.bodies
    )
    return (
        f"{event.seq:>6}  {event.time[11:23]}  {cell:<12}  {mark} {event.kind.value:<20}  "
        f"{details}  {bodies}"
    ).rstrip()
