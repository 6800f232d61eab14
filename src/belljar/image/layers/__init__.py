"""Container layers: hostile tar streams, read with bounds, merged in memory and never unpacked on the host."""

from __future__ import annotations

from typing import TYPE_CHECKING

from belljar.lazy import lazy_names

if TYPE_CHECKING:
    from belljar.image.layers.headers import LayerEntry, read_entries
    from belljar.image.layers.limits import ImportLimits, LayerError
    from belljar.image.layers.tree import Tree

__all__ = ["ImportLimits", "LayerEntry", "LayerError", "Tree", "read_entries"]

__getattr__ = lazy_names(
    __name__,
    {
        **dict.fromkeys(("LayerEntry", "read_entries"), "belljar.image.layers.headers"),
        **dict.fromkeys(("ImportLimits", "LayerError"), "belljar.image.layers.limits"),
        "Tree": "belljar.image.layers.tree",
    },
)
