"""The author's file: what a cell may be, read, reach and consume.

Lives here: the model, its YAML reader, the presets, and the rule that risk demands a least tier.
Must not: know anything of the host, of images on disk, or of how a cell is made.
"""
