"""Turns a plan into a live cell and back into nothing.

Holds: jail, engines of all tiers, templates, destruction with its proof.

Must not: use the guest beyond bringing it up; decide what a plan says.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from belljar.lazy import lazy_names

if TYPE_CHECKING:
    from belljar.isolation.reap import CellListing, list_cells
    from belljar.isolation.survivors import Destruction

__all__ = ["CellListing", "Destruction", "list_cells"]

__getattr__ = lazy_names(
    __name__,
    {
        **dict.fromkeys(("CellListing", "list_cells"), "belljar.isolation.reap"),
        "Destruction": "belljar.isolation.survivors",
    },
)
