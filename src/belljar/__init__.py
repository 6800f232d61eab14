"""Belljar runs high-risk AI model evaluations in sealed, ephemeral, recorded cells.

The public interface: `open_cell`, `open_pool` and `open_range` with the types they take and give,
the errors, and `belljar.sync`, the same for code without `async`. All of it is imported when it is
first used, so that `import belljar` costs nothing. See docs/python.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from belljar.package import __version__ as __version__

if TYPE_CHECKING:
    from belljar import sync as sync
    from belljar.cell import (
        Cell,
        CellStream,
        CommandError,
        ExecOutput,
        FileInfo,
        HealthFinding,
        Metrics,
        OutputSoFar,
        Pool,
        PtySize,
        Range,
        RunningCommand,
        Snapshot,
        Stream,
        Transfer,
        open_cell,
        open_pool,
        open_range,
        start_run,
    )
    from belljar.channel import FileTooLargeError
    from belljar.errors import (
        BelljarError,
        CellError,
        ContainmentBreach,
        HostError,
        LedgerError,
        PolicyError,
        ProtocolViolation,
    )
    from belljar.isolation.hold import release
    from belljar.isolation.kill import KillReport, kill
    from belljar.isolation.survivors import Destruction
    from belljar.ledger import RunDirectory
    from belljar.plan import Plan
    from belljar.policy import (
        LoadedPolicy,
        Policy,
        Risk,
        Tier,
        load_policy,
        load_preset,
        parse_policy,
    )
    from belljar.probe.model import Verdict
    from belljar.report.reasons import Reason, ReasonCode

__all__ = [
    "BelljarError",
    "Cell",
    "CellError",
    "CellStream",
    "CommandError",
    "ContainmentBreach",
    "Destruction",
    "ExecOutput",
    "FileInfo",
    "FileTooLargeError",
    "HealthFinding",
    "HostError",
    "KillReport",
    "LedgerError",
    "LoadedPolicy",
    "Metrics",
    "OutputSoFar",
    "Plan",
    "Policy",
    "PolicyError",
    "Pool",
    "ProtocolViolation",
    "PtySize",
    "Range",
    "Reason",
    "ReasonCode",
    "Risk",
    "RunDirectory",
    "RunningCommand",
    "Snapshot",
    "Stream",
    "Tier",
    "Transfer",
    "Verdict",
    "__version__",
    "kill",
    "load_policy",
    "load_preset",
    "open_cell",
    "open_pool",
    "open_range",
    "parse_policy",
    "release",
    "start_run",
    "sync",
]

_ELSEWHERE = {
    "belljar.channel": ("FileTooLargeError",),
    "belljar.errors": (
        "BelljarError",
        "CellError",
        "ContainmentBreach",
        "HostError",
        "LedgerError",
        "PolicyError",
        "ProtocolViolation",
    ),
    "belljar.isolation.survivors": ("Destruction",),
    "belljar.isolation.hold": ("release",),
    "belljar.isolation.kill": ("KillReport", "kill"),
    "belljar.ledger": ("RunDirectory",),
    "belljar.plan": ("Plan",),
    "belljar.policy": (
        "LoadedPolicy",
        "Policy",
        "Risk",
        "Tier",
        "load_policy",
        "load_preset",
        "parse_policy",
    ),
    "belljar.probe.model": ("Verdict",),
    "belljar.report.reasons": (
        "Reason",
        "ReasonCode",
    ),
}
_MODULES = {
    **dict.fromkeys(__all__, "belljar.cell"),
    **{name: module for module, names in _ELSEWHERE.items() for name in names},
}


def __getattr__(name: str) -> Any:  # noqa: ANN401 - module attribute protocol (PEP 562)
    """Import a public name when it is first used (PEP 562)."""
    from importlib import import_module

    if name == "sync":
        return import_module("belljar.sync")
    if name not in _MODULES:
        raise AttributeError(f"module 'belljar' has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)
