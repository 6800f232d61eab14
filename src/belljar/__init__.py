"""Belljar runs high-risk AI model evaluations in sealed, ephemeral, recorded cells.

The public Python interface is small: `open_cell`, `open_pool` and the types they take and give. It is imported late, so that
`import belljar` costs nothing; see `belljar.cell` for the contracts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from belljar.cell import Cell, ExecOutput, Pool, open_cell, open_pool
    from belljar.policy import Policy, load_policy, load_preset

__all__ = [
    "Cell",
    "ExecOutput",
    "Policy",
    "Pool",
    "__version__",
    "load_policy",
    "load_preset",
    "open_cell",
    "open_pool",
]

_HOMES = {
    "Cell": "belljar.cell",
    "ExecOutput": "belljar.cell",
    "open_cell": "belljar.cell",
    "Pool": "belljar.cell",
    "open_pool": "belljar.cell",
    "Policy": "belljar.policy",
    "load_policy": "belljar.policy",
    "load_preset": "belljar.policy",
}


def __getattr__(name: str) -> Any:  # noqa: ANN401 - module attribute protocol (PEP 562)
    """Import a public name when it is first used (PEP 562)."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'belljar' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(home), name)
