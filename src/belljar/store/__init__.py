"""What lives on disk: the store's place, locks and claims, scratch directories, the journal.

Lives here: where the store is; who uses a part of it now; what a crash leaves behind, by name.
Must not: know what a part holds (an image, a kernel, a template), or end a cell. What may go is
decided by `isolation.prune`, which knows all kinds of parts.
"""
