"""The append-only, hash-chained, signed record of a run. It interprets no events."""
