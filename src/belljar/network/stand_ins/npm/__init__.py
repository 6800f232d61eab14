"""An npm registry out of a directory of packed packages (`npm pack`).

What is published, changed or logged in to is put on record and changes nothing that is served.

Speaks: packuments, whole and abbreviated, tarballs, dist-tags, search, ping, whoami, login by user
and password, audit. Not: web login, organisations, two-factor, provenance.
"""

from belljar.network.stand_ins.npm.app import check, make

__all__ = ["check", "make"]
