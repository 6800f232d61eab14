"""Container layers: hostile tar streams, read with bounds and merged in memory, never unpacked."""
