"""The append-only, hash-chained, signed record of a run.

Chain and Merkle tree (pure), the one writer, verification, run directory. Interprets no events.
"""
