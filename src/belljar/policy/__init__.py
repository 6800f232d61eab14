"""The author's file: what a cell may be, read, reach and consume.

Lives here: the model, its YAML reader, the presets, and the rule that risk demands a least tier.
Must not: know the host, images on disk, or how a cell is made.
"""
