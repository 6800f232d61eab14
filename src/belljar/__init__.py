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
    from belljar.cell.cell import Cell, Snapshot
    from belljar.cell.connection import CellStream
    from belljar.cell.exec import OutputSoFar, RunningCommand
    from belljar.cell.files import FileInfo
    from belljar.cell.health import HealthFinding
    from belljar.cell.local_tree import Transfer
    from belljar.cell.open import open_cell, open_range
    from belljar.cell.parts import start_run
    from belljar.cell.pool import Pool, open_pool
    from belljar.cell.range import Range
    from belljar.channel import CommandError, ExecOutput, FileTooLargeError, PtySize, Stream
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
    from belljar.ledger.rundir import RunDirectory
    from belljar.plan.model import Plan
    from belljar.policy.limits import Risk, Tier
    from belljar.policy.load import load_policy, load_preset, parse_policy
    from belljar.policy.loaded import LoadedPolicy
    from belljar.policy.model import Policy
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

_NAMES = {
    "belljar.cell.cell": "Cell Snapshot",
    "belljar.cell.connection": "CellStream",
    "belljar.cell.exec": "OutputSoFar RunningCommand",
    "belljar.cell.files": "FileInfo",
    "belljar.cell.health": "HealthFinding",
    "belljar.cell.local_tree": "Transfer",
    "belljar.cell.open": "open_cell open_range",
    "belljar.cell.parts": "start_run",
    "belljar.cell.pool": "Pool open_pool",
    "belljar.cell.range": "Range",
    "belljar.channel": "CommandError ExecOutput FileTooLargeError PtySize Stream",
    "belljar.errors": "BelljarError CellError ContainmentBreach HostError LedgerError PolicyError"
    " ProtocolViolation",
    "belljar.isolation.hold": "release",
    "belljar.isolation.kill": "KillReport kill",
    "belljar.isolation.survivors": "Destruction",
    "belljar.ledger.rundir": "RunDirectory",
    "belljar.plan.model": "Plan",
    "belljar.policy.limits": "Risk Tier",
    "belljar.policy.load": "load_policy load_preset parse_policy",
    "belljar.policy.loaded": "LoadedPolicy",
    "belljar.policy.model": "Policy",
    "belljar.probe.model": "Verdict",
    "belljar.report.reasons": "Reason ReasonCode",
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:  # noqa: ANN401 - module attribute protocol (PEP 562)
    """Import a public name when it is first used (PEP 562)."""
    from importlib import import_module

    if name == "sync":
        return import_module("belljar.sync")
    if name not in _MODULES:
        raise AttributeError(f"module 'belljar' has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)
