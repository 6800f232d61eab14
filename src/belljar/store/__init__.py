"""What lives on disk: the store, its locks and claims, scratch directories, the journal.

Must not: know what a part holds, or end a cell. `isolation.prune` decides what may go.
"""
