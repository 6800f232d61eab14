"""The append-only, hash-chained, signed record of a run.

Lives here: the chain and the Merkle tree (pure), the one writer, verification, export, and the run directory.
Must not: interpret events; know what a cell is.
"""
