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
    from belljar.cell.cell import Cell as Cell
    from belljar.cell.cell import CellStream as CellStream
    from belljar.cell.cell import Snapshot as Snapshot
    from belljar.cell.exec import RunningCommand as RunningCommand
    from belljar.cell.files import FileInfo as FileInfo
    from belljar.cell.health import HealthFinding as HealthFinding
    from belljar.cell.local_tree import Transfer as Transfer
    from belljar.cell.open import open_cell as open_cell
    from belljar.cell.open import open_range as open_range
    from belljar.cell.parts import start_run as start_run
    from belljar.cell.pool import Pool as Pool
    from belljar.cell.pool import open_pool as open_pool
    from belljar.cell.range import Range as Range
    from belljar.channel import CommandError as CommandError
    from belljar.channel import ExecOutput as ExecOutput
    from belljar.channel import FileTooLargeError as FileTooLargeError
    from belljar.channel import OutputTexts as OutputTexts
    from belljar.channel import PtySize as PtySize
    from belljar.channel import Stream as Stream
    from belljar.errors import BelljarError as BelljarError
    from belljar.errors import CellError as CellError
    from belljar.errors import ContainmentBreach as ContainmentBreach
    from belljar.errors import HostError as HostError
    from belljar.errors import LedgerError as LedgerError
    from belljar.errors import PolicyError as PolicyError
    from belljar.errors import ProtocolViolation as ProtocolViolation
    from belljar.isolation.hold import release as release
    from belljar.isolation.kill import KillReport as KillReport
    from belljar.isolation.kill import kill as kill
    from belljar.isolation.survivors import Destruction as Destruction
    from belljar.ledger.rundir import RunDirectory as RunDirectory
    from belljar.plan.model import Plan as Plan
    from belljar.policy.limits import Risk as Risk
    from belljar.policy.limits import Tier as Tier
    from belljar.policy.load import load_policy as load_policy
    from belljar.policy.load import load_preset as load_preset
    from belljar.policy.load import parse_policy as parse_policy
    from belljar.policy.loaded import LoadedPolicy as LoadedPolicy
    from belljar.policy.model import Policy as Policy
    from belljar.probe.model import Verdict as Verdict
    from belljar.report.reasons import Reason as Reason
    from belljar.report.reasons import ReasonCode as ReasonCode

_NAMES = {
    "belljar.cell.cell": "Cell CellStream Snapshot",
    "belljar.cell.exec": "RunningCommand",
    "belljar.cell.files": "FileInfo",
    "belljar.cell.health": "HealthFinding",
    "belljar.cell.local_tree": "Transfer",
    "belljar.cell.open": "open_cell open_range",
    "belljar.cell.parts": "start_run",
    "belljar.cell.pool": "Pool open_pool",
    "belljar.cell.range": "Range",
    "belljar.channel": "CommandError ExecOutput FileTooLargeError OutputTexts PtySize Stream",
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
__all__ = ["__version__", "sync", *_MODULES]


def __getattr__(name: str) -> Any:  # noqa: ANN401 - module attribute protocol (PEP 562)
    from importlib import import_module

    if name == "sync":
        return import_module("belljar.sync")
    if name not in _MODULES:
        raise AttributeError(f"module 'belljar' has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)
