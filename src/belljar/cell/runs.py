"""Run directories for cells: opening one, and putting into it what its cells were made by."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from belljar.cell.parts import ContainerParts, Parts
from belljar.ledger import RunDirectory, create_run
from belljar.policy import LoadedPolicy
from belljar.store.home import belljar_home

_describing: Final = threading.Lock()
"""Cells are made in the event loops of several threads."""


def start_run(
    kind: str, what: str | None, argv: Sequence[str], *, home: Path | None = None
) -> RunDirectory:
    """A run directory to be entered; leaving it seals it.

    `kind` is the command that makes the run, `what` a word for lists.

    Raises `HostError` on entering, when it can't be made: without a record nothing may run.
    """
    return create_run(home or belljar_home(), kind, argv, what=what or " ".join(argv[:3]))


def describe(run: RunDirectory, loaded: LoadedPolicy, parts: Parts) -> None:
    """Keep the policy as written, the plan, what its cells are made of and the host's facts beside
    the ledger; once for each policy of the run.
    """
    with _describing:
        digest = hashlib.sha256(loaded.text).hexdigest()[:12]
        tag = "" if _is_free_or_same(run.path / "policy.yaml", loaded.text) else f"-{digest}"
        if not (run.path / f"policy{tag}.yaml").exists():
            run.write_text(f"policy{tag}.yaml", loaded.text.decode("utf-8"))
            run.write_json(f"plan{tag}.json", parts.plan.to_json())
            run.write_json(f"parts{tag}.json", made_of(parts))
        if not (run.path / "host.json").exists():
            run.write_json("host.json", parts.facts.to_json())


def made_of(parts: Parts) -> dict[str, Any]:
    """The versions and digests of what a cell is made of."""
    image = parts.image
    made = {"image": {"digest": image.digest, "names": list(image.names), "source": image.source}}
    if isinstance(parts, ContainerParts):
        runtime = parts.plan.oci.runtime
        return {**made, "runtime": {"name": runtime.name, "version": runtime.version}}
    kernel = parts.kernel
    qemu = next((tool.version for tool in parts.facts.tools if tool.name.startswith("qemu")), None)
    guest_kernel = {"version": kernel.version, "digest": kernel.digest, "package": kernel.package}
    return {**made, "guest_kernel": guest_kernel, "qemu": qemu}


def _is_free_or_same(path: Path, text: bytes) -> bool:
    return not path.exists() or path.read_bytes() == text
