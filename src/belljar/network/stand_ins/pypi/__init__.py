"""A Python package index out of a directory of wheels and source archives.

Uploads are accepted, put on record, and never served.

Speaks: the simple index as HTML (PEP 503) and JSON (PEP 691, 700), metadata files (PEP 658, 714),
`/pypi/NAME/json`, the upload of twine and others (`POST /legacy/` and `/`). Not: XML-RPC, PEP 694
uploads, attestations.
"""

from belljar.network.stand_ins.pypi.app import check, make

__all__ = ["PRELOAD", "check", "make"]

PRELOAD = ("encodings.cp437",)
"""What is imported only when it is needed: to be imported before the process is confined, as it
then has no files to import from.
"""
