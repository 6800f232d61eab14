"""A Debian package repository: out of a directory of `.deb` files, or an existing repository tree
(`dists/`, `pool/`) as it is.

Whatever suite and component apt asks for, the packages are in its `main`. The repository is signed
by a key of the range's own (`/key.asc`). Uploads by PUT or POST are put on record and never served.
Not: source packages, Contents and Translation indexes, diffs.
"""

from belljar.network.stand_ins.debian.app import check, make

__all__ = ["PRELOAD", "check", "make"]

PRELOAD = ("cryptography.hazmat.primitives.asymmetric.ed25519",)
"""What is imported only when it is needed: for before the process is confined, as it then has no
files. `zstandard` besides, where it is there.
"""
