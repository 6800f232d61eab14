"""What of a guest's words goes on record: credentials without their secrets, bounded texts and
lists.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from collections.abc import Iterable
from typing import Final

from belljar.events import JsonValue
from belljar.network.stand_ins.web import Request
from belljar.units import printable

MAX_WORD_CHARS: Final = 200
MAX_LIST_JSON_BYTES: Final = 8 << 10


def credentials(authorization: str) -> dict[str, JsonValue]:
    """What an `Authorization` field gave away, for the record: scheme, user and the SHA-256 of the
    secret; never the secret.
    """
    scheme, _, rest = authorization.partition(" ")
    if not scheme:
        return {"credentials": "none"}
    user, secret = "", rest.strip().encode("latin-1", "replace")
    if scheme.lower() == "basic":
        try:
            name, _, secret = base64.b64decode(rest.strip(), validate=True).partition(b":")
            user = name.decode("utf-8", "replace")
        except (binascii.Error, ValueError):
            pass
    return {
        "credentials": word(scheme.lower(), 20),
        "user": word(user),
        "secret_sha256": hashlib.sha256(secret).hexdigest(),
    }


def presents(request: Request, secret: str) -> bool:
    """Whether the `Authorization` field holds a secret: as a bearer's, or as the password of basic
    credentials.
    """
    presented = credentials(request.header("authorization")).get("secret_sha256")
    return presented == hashlib.sha256(secret.encode()).hexdigest()


def word(text: str, max_chars: int = MAX_WORD_CHARS) -> str:
    """A guest's word for the record: bounded and made visible."""
    return printable(text, max_chars=max_chars)


def bounded(
    values: Iterable[JsonValue], max_json_bytes: int = MAX_LIST_JSON_BYTES
) -> list[JsonValue]:
    """As many of the values, from the first on, as fit so many bytes of JSON: a guest decides how
    many there are, an event has a bound.
    """
    kept, size = list[JsonValue](), 0
    for value in values:
        size += len(json.dumps(value)) + 2
        if size > max_json_bytes:
            break
        kept.append(value)
    return kept
