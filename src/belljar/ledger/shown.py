"""Events, verifications and proofs as text and JSON, for `belljar ledger` and `belljar-verify`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, BinaryIO, Final

from belljar.errors import LedgerError
from belljar.ledger.proof import check_proof
from belljar.ledger.schema import Line
from belljar.ledger.verification import Status, Verification
from belljar.units import printable

HINT_KEY: Final = (
    "no key to compare with: on the host that made the run, `belljar ledger verify` prints its "
    "fingerprint; get it by a way you trust and pass it with --key FINGERPRINT"
)
# A line with its path and a checkpoint, in JSON.
MAX_PROOF_BYTES: Final = 8 << 20
# Where the status's own word would be taken for more or less than it says.
_TITLES: Final = {
    Status.UNFINISHED: "unfinished, and nothing is wrong with what is there",
    Status.PARTIAL: "partial: verified, but for what its signer left out",
    Status.BAD: "BAD",
}


def verification_json(result: Verification, *, strict: bool) -> dict[str, Any]:
    """Return a verification as JSON values."""
    lacks_key = result.key and not result.key_checked
    return {
        "ok": result.passes(strict=strict),
        "status": result.status.value,
        "problem": {"where": result.problem.where, "what": result.problem.what}
        if result.problem
        else None,
        "warnings": [*result.warnings, *([HINT_KEY] if lacks_key else [])],
        "run_id": result.run_id,
        "key": result.key,
        "events": result.events,
        "signed_events": result.signed_events,
        "checkpoints": result.checkpoints,
        "bodies": result.bodies,
        "root": result.root,
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
        unknown = "compared with no known key: a forgery signed with another key would pass"
        shown.append(f"that is {origin}" if origin else f"{unknown}; give --key")
    if result.key_mismatch and origin == "this host's key":
        shown.append(
            "hint: if it was made elsewhere, get that host's fingerprint by a way you trust "
            "and pass it with --key"
        )
    return "\n  ".join(shown)


def check_proof_file(file: BinaryIO, expected: str | None, origin: str) -> tuple[str, bool]:
    """Check the proof in a file; return what to tell a person, and whether the known key signed."""
    try:
        event, run_id, key = check_proof(json.loads(file.read(MAX_PROOF_BYTES)))
    except (LedgerError, ValueError, RecursionError) as error:
        return f"belljar: {printable(str(error))}", False
    found = f"{row(event)}\n  event {event.seq} of run {run_id}, signed by {key}\n  "
    if expected is None:
        return found + HINT_KEY, False
    return found + f"{'that is' if expected == key else 'which is NOT'} {origin}", expected == key


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
        f"[{body.name} {body.kept_bytes}"
        + (f" of {body.total_bytes}" if body.kept_bytes != body.total_bytes else "")
        + " B]"
        for body in event.bodies
    )
    return (
        f"{event.seq:>6}  {event.time[11:23]}  {cell:<12}  {mark} {event.kind.value:<20}  "
        f"{details}  {bodies}"
    ).rstrip()
