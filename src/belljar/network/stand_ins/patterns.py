"""Makes a text for a regular expression, as Python reads it: the usual parts of a schema's
`pattern`. Pure; the text is tried before it is given.
"""

from __future__ import annotations

import re
import warnings
from functools import lru_cache
from importlib import import_module
from typing import Any, Final

MAX_TEXT: Final = 4096
_MAX_REPEATS: Final = 256
_CLASSES: Final = {
    "CATEGORY_DIGIT": "0123456789",
    "CATEGORY_WORD": "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_",
    "CATEGORY_SPACE": " ",
}
_USUAL: Final = (
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.:/@ "
    "!#$%&'*+,;=?~()[]{}<>|^`\"\\"
)


class _UnsolvedError(Exception):
    """A part that isn't made from: a look around, a reference back."""


@lru_cache(maxsize=4096)
def compiled(pattern: str) -> re.Pattern[str]:
    """The expression.

    Python's doubts about what `[[` may mean one day are no mistake of the author's.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return re.compile(pattern)


def problem(pattern: object) -> str:
    """What is wrong with a pattern, or "": it can't be read, or would take exponential time on a
    hostile text (a repetition without bound inside another).
    """
    if not isinstance(pattern, str):
        return "a pattern is text"
    try:
        compiled(pattern)
        if _nested(_parsed(pattern), inside=False):
            return "a repetition without a bound inside another can take for ever on a hostile text"
    except (re.error, RecursionError, OverflowError) as exc:
        return f"can't be read: {exc}"
    return ""


def _parsed(pattern: str) -> Any:  # noqa: ANN401 - the parser's own types are private
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return import_module("re._parser").parse(pattern)


def _nested(items: Any, *, inside: bool) -> bool:  # noqa: ANN401 - the parser's
    for operator, argument in items:
        name = str(operator)
        if name in ("MAX_REPEAT", "MIN_REPEAT"):
            endless = argument[1] > _MAX_REPEATS
            if (endless and inside) or _nested(argument[2], inside=inside or endless):
                return True
        elif any(_nested(part, inside=inside) for part in _inner(name, argument)):
            return True
    return False


def _inner(name: str, argument: Any) -> list[Any]:  # noqa: ANN401 - the parser's
    if name == "SUBPATTERN":
        return [argument[-1]]
    if name == "BRANCH":
        return list(argument[1])
    return (
        [argument[1]]
        if name in ("ASSERT", "ASSERT_NOT")
        else [argument]
        if name == "ATOMIC_GROUP"
        else []
    )


def text_for(pattern: str, least: int, most: int, index: int) -> str | None:
    """A text that the pattern finds something in, of a length between the two; `index` varies it
    where it can. None when none is found.
    """
    try:
        expression, parsed = compiled(pattern), _parsed(pattern)
    except (re.error, RecursionError, OverflowError):
        return None
    for more in (0, 1, 2, 4, 8, 16, 32, 64, least, most):
        for turn in (index, 0):
            try:
                text = _text(parsed, min(more, _MAX_REPEATS), turn)
            except _UnsolvedError:
                return None
            if not pattern.endswith("$") and len(text) < least:
                text += "a" * (least - len(text))
            if least <= len(text) <= min(most, MAX_TEXT) and expression.search(text):
                return text
    return None


def _text(items: Any, more: int, turn: int) -> str:  # noqa: ANN401 - the parser's
    out: list[str] = []
    for operator, argument in items:
        out.append(_piece(str(operator), argument, more, turn))
        if sum(map(len, out)) > MAX_TEXT:
            raise _UnsolvedError
    return "".join(out)


def _piece(name: str, argument: Any, more: int, turn: int) -> str:  # noqa: ANN401 - the parser's
    match name:
        case "LITERAL":
            return chr(argument)
        case "AT":
            return ""
        case "ANY":
            return chr(97 + turn % 26)
        case "IN" | "NOT_LITERAL" | "CATEGORY":
            allowed = _allowed(name, argument)
            return allowed[turn % len(allowed)]
        case "SUBPATTERN" | "ATOMIC_GROUP":
            return _text(argument[-1] if name == "SUBPATTERN" else argument, more, turn)
        case "BRANCH":
            return _text(argument[1][turn % len(argument[1])], more, turn)
        case "MAX_REPEAT" | "MIN_REPEAT" | "POSSESSIVE_REPEAT":
            count = min(max(argument[0], min(more, argument[1])), _MAX_REPEATS)
            return "".join(_text(argument[2], more, turn + at) for at in range(count))
    raise _UnsolvedError


def _allowed(name: str, argument: Any) -> str:  # noqa: ANN401 - the parser's
    if name == "NOT_LITERAL":
        return _USUAL.replace(chr(argument), "")
    items = (
        [(name, argument)]
        if name == "CATEGORY"
        else [(str(operator), value) for operator, value in argument]
    )
    negated = items[0][0] == "NEGATE"
    chosen = "".join(_members(kind, value) for kind, value in items if kind != "NEGATE")
    allowed = "".join(char for char in _USUAL if char not in chosen) if negated else chosen
    if not allowed:
        raise _UnsolvedError
    return allowed


def _members(kind: str, value: Any) -> str:  # noqa: ANN401 - the parser's
    if kind == "LITERAL":
        return chr(value)
    if kind == "RANGE":
        return "".join(map(chr, range(value[0], min(value[1], value[0] + 127) + 1)))
    word = str(value)
    if word in _CLASSES:
        return _CLASSES[word]
    opposite = _CLASSES.get(word.replace("NOT_", ""))
    if opposite is None:
        raise _UnsolvedError
    return "".join(char for char in _USUAL if char not in opposite)
