"""Git repositories over HTTP (the smart protocol, version 0) out of a directory of bare
repositories. A push is put on record and lives in the range's memory alone.

Who fetches after a push sees what was pushed, in the same range; the directory never changes. Not:
the dumb protocol, protocol version 2 (clients fall back), partial clones, SHA-256 repositories.
"""

from belljar.network.stand_ins.git.app import check, make

__all__ = ["PRELOAD", "check", "make"]

PRELOAD = ("dulwich.object_store", "dulwich.refs", "dulwich.midx", "mmap")
"""What is imported only when it is needed: to be imported before the process is confined, as it
then has no files to import from.
"""
