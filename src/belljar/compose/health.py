"""A compose file's `healthcheck` in a policy's words. Pure.

As patient as Compose would be, and no more: Inspect waits for start_period, one more timeout where
there is one, and retries times interval and timeout together. But the check is asked at least once
a second: Docker's first question comes after a whole interval, half a minute by default.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from belljar.compose.words import CannotKeepError, count, mapping, seconds, switch, text
from belljar.units import printable

SETTLE_S: Final = 1.0
"""A program without a health check is ready when it has run for so long, or has ended with status
0."""
UNCHECKED: Final[Mapping[str, Any]] = {"image": False}
"""`health` of a service whose file switches its check off, the image's too."""
KEYS: Final = frozenset({"test", "interval", "timeout", "retries", "start_period", "start_interval", "disable"})
_USUAL_S: Final = 30.0
_USUAL_RETRIES: Final = 3
_LEAST_S, _MOST_INTERVAL_S, _MOST_TIMEOUT_S, _MOST_PATIENCE_S = 0.1, 1.0, 300.0, 24 * 3600.0
_MOST_TRIES: Final = 1000


def read_health(check: object, *, name: str) -> dict[str, Any] | None:
    """`health` of a target cell; None: whatever the image's own check is.

    Raises `CannotKeepError`.
    """
    if check is None:
        return None
    fields = mapping(check, f"healthcheck of {name}")
    extra = sorted(key for key in fields if key not in KEYS and not key.startswith("x-"))
    if extra:
        raise CannotKeepError(f"its compose service {printable(name)} has healthcheck.{printable(', '.join(extra))}")
    command = _command(fields.get("test"), name)
    if command is None or (fields.get("disable") is not None and switch(fields["disable"])):
        return dict(UNCHECKED)
    return {"command": command, **_times(fields)}


def _command(test: object, name: str) -> list[str] | None:
    if isinstance(test, str):
        return ["sh", "-c", test]
    if not isinstance(test, (list, tuple)) or not test:
        why = (
            "no test: the times alone of an image's own check are not changed"
            if not test
            else "a test that is no command"
        )
        raise CannotKeepError(f"its compose service {printable(name)} has a healthcheck with {why}")
    kind, *rest = (text(word) for word in test)
    if kind == "NONE":
        return None
    if kind == "CMD-SHELL" and len(rest) == 1:
        return ["sh", "-c", rest[0]]
    if kind == "CMD" and rest:
        return rest
    raise CannotKeepError(
        f"its compose service {printable(name)} has a healthcheck whose test begins with none of CMD, CMD-SHELL, NONE"
    )


def _times(fields: Mapping[str, Any]) -> dict[str, Any]:
    interval_s, timeout_s = _time(fields, "interval"), _time(fields, "timeout")
    retries = count(fields["retries"]) if fields.get("retries") else _USUAL_RETRIES
    start_s = seconds(fields["start_period"]) if fields.get("start_period") else 0.0
    patience_s = min(retries * interval_s + start_s, _MOST_PATIENCE_S)
    asked_s = min(interval_s, _time(fields, "start_interval"), _MOST_INTERVAL_S)
    every_s = max(asked_s, _LEAST_S, patience_s / _MOST_TRIES)
    within_s = start_s + (timeout_s if start_s else 0.0) + retries * (interval_s + timeout_s)
    return {
        "retries": min(max(1, math.ceil(patience_s / every_s)), _MOST_TRIES),
        "interval": f"{every_s:g}s",
        "timeout": f"{min(max(timeout_s, _LEAST_S), _MOST_TIMEOUT_S):g}s",
        "within": f"{min(max(math.ceil(within_s), 1), _MOST_PATIENCE_S):g}s",
    }


def _time(fields: Mapping[str, Any], key: str) -> float:
    """None and 0 are Docker's usual."""
    return (seconds(fields[key]) if fields.get(key) else 0.0) or _USUAL_S
