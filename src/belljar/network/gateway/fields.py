"""h11's expression for a header field, so that it takes time by a field's length alone.

h11 (0.16) lets the blanks after a field's colon be given back one by one: `a:`, 60,000 blanks and a
NUL take it 15 s, in which a gateway answers nobody, and is taken for dead. A field's value begins
with no blank, so an expression that gives none back takes the same fields, in the same parts.
"""

from __future__ import annotations

import re
from typing import Final

from h11 import _abnf, _readers

from belljar.errors import HostError

_BLANKS: Final = r"[ \t]*"


def give_no_blank_back() -> None:
    """For every h11 of this process.

    Trailers are matched by the same expression. Raises `HostError` for an h11 that has another.
    """
    if _BLANKS not in _abnf.header_field:
        raise HostError(
            "the installed h11 reads header fields in a way that is not known here",
            where="network",
            hint="pip install --upgrade 'belljar-sandbox[network]'",
        )
    expression = _abnf.header_field.replace(_BLANKS, f"{_BLANKS}+")
    _readers.header_field_re = re.compile(expression.encode("ascii"))
