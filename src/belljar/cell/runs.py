"""Run directories for cells: opening one, and putting into it what its cells were made by."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from belljar.cell.parts import Parts
from belljar.host.home import belljar_home
from belljar.ledger import RunDirectory, create_run
from belljar.policy import LoadedPolicy


def start_run(kind: str, what: str | None, argv: Sequence[str], *, home: Path | None = None) -> RunDirectory:
    """A run directory to be entered; leaving it seals it. `kind` is the command that makes the run, `what` a word for lists.

    Raises `HostError` on entering, when it can't be made: without a record nothing may run.
    """
    return create_run(home or belljar_home(), kind, argv, what=what or " ".join(argv[:3]))


def describe(run: RunDirectory, loaded: LoadedPolicy, parts: Parts) -> None:
    """Keep the policy as written, the plan and the host's facts beside the ledger; once for each policy of the run."""
    digest = hashlib.sha256(loaded.text).hexdigest()[:12]
    tag = "" if _is_free_or_same(run.path / "policy.yaml", loaded.text) else f"-{digest}"
    if not (run.path / f"policy{tag}.yaml").exists():
        run.write_text(f"policy{tag}.yaml", loaded.text.decode("utf-8"))
        run.write_json(f"plan{tag}.json", parts.plan.to_json())
    if not (run.path / "host.json").exists():
        run.write_json("host.json", parts.facts.to_json())


def _is_free_or_same(path: Path, text: bytes) -> bool:
    return not path.exists() or path.read_bytes() == text
