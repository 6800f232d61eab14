"""Temporary credentials in the shape of a cloud's, that nobody issued.

Pure but for the randomness it is given.
"""

from __future__ import annotations

import base64
import string
from collections.abc import Callable
from typing import Final

BASE32: Final = f"{string.ascii_uppercase}234567"
WORD: Final = f"{string.ascii_letters}{string.digits}"


def pick(alphabet: str, count: int, random: Callable[[int], bytes]) -> str:
    """So many characters of an alphabet of at most 256."""
    return "".join(alphabet[byte % len(alphabet)] for byte in random(count))


def make_credentials(random: Callable[[int], bytes]) -> dict[str, str]:
    """As AWS gives a machine's role: `access_key_id`, `secret_key`, `session_token`."""
    return {
        "access_key_id": "ASIA" + pick(BASE32, 16, random),
        "secret_key": pick(f"{WORD}+/", 40, random),
        "session_token": "IQoJb3JpZ2luX2Vj" + base64.b64encode(random(240)).decode(),
    }
