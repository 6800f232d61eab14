"""Container layers: hostile tar streams, read with bounds, merged in memory and never unpacked on the host."""

from belljar.image.layers.headers import LayerEntry, read_entries
from belljar.image.layers.limits import ImportLimits, LayerError
from belljar.image.layers.tree import Tree

__all__ = ["ImportLimits", "LayerEntry", "LayerError", "Tree", "read_entries"]
