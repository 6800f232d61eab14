"""Variables in a Dockerfile's words, as BuildKit fills them in. Pure.

Source: Dockerfile reference, "Environment replacement", without its operators on patterns.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final

from belljar.image.parser import DockerfileError

_MAX_VALUE_CHARS: Final = 32_768
_MAX_DEPTH: Final = 30
# Of a whole file: values that name each other grow with each line.
_MAX_WORK_CHARS: Final = 8 << 20
_NAME: Final = re.compile(r"[0-9]+|[@*#?$!-]|[^\W\d]\w*")


@dataclass(slots=True, kw_only=True)
class Expander:
    """Fills in variables of `env`; `escape`: the file's escape character.

    `is_lenient`: not all of the environment is known, so nothing is missing.
    """

    env: dict[str, str] = field(default_factory=dict)
    escape: str = "\\"
    is_lenient: bool = False
    _left: int = _MAX_WORK_CHARS
    _text: str = ""
    _at: int = 0
    _depth: int = 0
    _escape: str = ""
    _quotes: str = ""

    def expand(self, text: str) -> str:
        """The word with its variables filled in. Raises `DockerfileError`."""
        value = self._expanded(text, self.escape, "'\"")
        if len(value) > _MAX_VALUE_CHARS:
            raise DockerfileError(f"a value has more than {_MAX_VALUE_CHARS:,} characters")
        return value

    def expand_document(self, text: str) -> str:
        """A here-document, where quotes stay and a backslash escapes. Raises `DockerfileError`."""
        return self._expanded(text, "\\", "")

    def _expanded(self, text: str, escape: str, quotes: str) -> str:
        self._text, self._at, self._depth = text, 0, 0
        self._escape, self._quotes = escape, quotes
        self.charge(len(text))
        return self._until("")

    def charge(self, chars: int) -> None:
        """Count work for the file. Raises `DockerfileError` beyond its bound."""
        self._left -= chars
        if self._left < 0:
            raise DockerfileError("its variables grow without an end")

    def _broken(self, what: str) -> DockerfileError:
        return DockerfileError(f"{what}: {self._text[:80]}")

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _take(self) -> str:
        self._at += 1
        return self._text[self._at - 1 : self._at]

    def _until(self, stop: str) -> str:
        """Return the text before `stop`, and skip both."""
        found: list[str] = []
        while char := self._peek():
            if char == "$":
                found.append(self._variable())
            elif char in self._quotes and char != stop:
                found.append(self._quoted())
            elif self._take() == stop:
                return "".join(found)
            else:
                found.append(self._take() if char == self._escape else char)
        if stop:
            raise self._broken(f"a variable has no closing {stop}")
        return "".join(found)

    def _quoted(self) -> str:
        quote, found = self._take(), list[str]()
        while char := self._peek():
            if char == "$" and quote == '"':
                found.append(self._variable())
            elif self._take() == quote:
                return "".join(found)
            elif char == self._escape and quote == '"' and self._peek() in {'"', "$", char}:
                found.append(self._take())
            else:
                found.append(char)
        raise self._broken("a quote has no end")

    def _variable(self) -> str:
        self._take()
        is_braced = self._peek() == "{"
        self._at += is_braced
        match = _NAME.match(self._text, self._at)
        if match is None and not is_braced:
            return "$"
        if match is None:
            raise self._broken("a variable has no name")
        self._at = match.end()
        value = self.env.get(match[0])
        self.charge(len(value or ""))
        if not is_braced:
            return value or ""
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise self._broken("variables are nested too deep")
        filled = self._modified(match[0], value)
        self._depth -= 1
        return filled

    def _modified(self, name: str, value: str | None) -> str:
        operator = self._take()
        is_strict = operator == ":"
        operator = self._take() if is_strict else operator
        if operator == "}" and not is_strict:
            return value or ""
        if not operator or operator not in "-+?":
            raise self._broken("a variable has an operator that is none of - + ?")
        word = self._until("}")
        is_set = value is not None and not (is_strict and not value)
        if operator == "?" and not is_set and not self.is_lenient:
            what = "empty" if value is not None else "unset"
            raise DockerfileError(f"{name}: {word or f'it is {what}'}")
        if operator == "+":
            return word if is_set else ""
        return word if operator == "-" and not is_set else value or ""
