"""Variables in a Dockerfile's words, as BuildKit fills them in. Pure.

Source: Dockerfile reference, "Environment replacement". Patterns know `*`, `?` and `\\`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from belljar.image.parser import DockerfileError

_MAX_VALUE_CHARS: Final = 32_768
_MAX_DEPTH: Final = 30
# Of a whole file: values that name each other grow with each line.
_MAX_WORK_CHARS: Final = 16 << 20
# A pattern is tried at each place of a value.
_MAX_MATCHED_CHARS: Final = 4096
_NAME: Final = re.compile(r"[0-9]+|[@*#?$!-]|[^\W\d]\w*")
_UNBROKEN: Final = re.compile(r"[^\\$'\"`}/]+")


@dataclass(slots=True)
class Budget:
    """The work left to one file. Raises `DockerfileError` when it is used up."""

    left: int = _MAX_WORK_CHARS

    def charge(self, chars: int) -> None:
        """Count work, in characters."""
        self.left -= chars
        if self.left < 0:
            raise DockerfileError("its variables grow without an end")


@dataclass(slots=True, kw_only=True)
class Expander:
    """Fills in variables of `env`.

    `escape`: the file's escape character. `has_quotes`: quotes are taken off (not in
    here-documents). `is_lenient`: not all of the environment is known, so nothing is missing.
    """

    env: Mapping[str, str]
    escape: str = "\\"
    has_quotes: bool = True
    is_lenient: bool = False
    budget: Budget = field(default_factory=Budget)
    _text: str = ""
    _at: int = 0
    _depth: int = 0

    def expand(self, text: str) -> str:
        """The word with its variables filled in. Raises `DockerfileError`."""
        self._text, self._at, self._depth = text, 0, 0
        self.budget.charge(len(text))
        value = self._until("")
        self.budget.charge(len(value))
        if len(value) > _MAX_VALUE_CHARS and self.has_quotes:
            raise DockerfileError(f"a value has more than {_MAX_VALUE_CHARS:,} characters")
        return value

    def _take(self) -> str:
        self._at += 1
        return self._text[self._at - 1 : self._at]

    def _until(self, stop: str, *, keeps_escapes: bool = False) -> str:
        """What comes before `stop`, which is taken too."""
        found: list[str] = []
        while self._at < len(self._text):
            if plain := _UNBROKEN.match(self._text, self._at):
                found.append(plain[0])
                self._at = plain.end()
                continue
            char = self._text[self._at]
            if char == stop:
                self._at += 1
                return "".join(found)
            if char == "$":
                found.append(self._variable())
            elif char in "'\"" and self.has_quotes:
                found.append(self._quoted(keeps_escapes=keeps_escapes))
            elif self._take() == self.escape:
                found.append(char * keeps_escapes + self._take())
            else:
                found.append(char)
        if stop:
            raise DockerfileError(f"a variable has no closing {stop}: {self._text[:80]}")
        return "".join(found)

    def _quoted(self, *, keeps_escapes: bool) -> str:
        quote, begin, found = self._take(), self._at, list[str]()
        if quote == "'" and (end := self._text.find("'", begin)) >= 0:
            self._at = end + 1
            return self._text[begin:end]
        while quote == '"' and self._at < len(self._text):
            if self._text[self._at] == "$":
                found.append(self._variable())
            elif (char := self._take()) == quote:
                return "".join(found)
            elif char == self.escape:
                after = self._text[self._at : self._at + 1]
                is_escape = after in {'"', "$", self.escape}
                found.append(char if keeps_escapes or (after and not is_escape) else "")
                found.append(self._take() if is_escape else "")
            else:
                found.append(char)
        raise DockerfileError(f"a quote has no end: {self._text[:80]}")

    def _variable(self) -> str:
        self._at += 1
        is_braced = self._text[self._at : self._at + 1] == "{"
        self._at += is_braced
        match = _NAME.match(self._text, self._at)
        if match is None and not is_braced:
            return "$"
        if match is None:
            raise DockerfileError(f"a variable has no name: {self._text[:80]}")
        self._at = match.end()
        value = self.env.get(match[0])
        self.budget.charge(len(value or ""))
        if not is_braced:
            return value or ""
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise DockerfileError("its variables are nested too deep")
        filled = self._modified(match[0], value)
        self._depth -= 1
        return filled

    def _modified(self, name: str, value: str | None) -> str:
        operator = self._take()
        if operator == "}":
            return value or ""
        if operator == "/":
            count = 1
            if self._text[self._at : self._at + 1] == "/":
                self._at, count = self._at + 1, 0
            pattern = self._until("/", keeps_escapes=True)
            put, end = self._until("}", keeps_escapes=True), -1

            def replaced(match: re.Match[str]) -> str:
                nonlocal end
                is_after_another = match.start() == match.end() == end  # none in Go
                end = match.end()
                return "" if is_after_another else put

            compiled = self._pattern(pattern, value or "", is_longest=True)
            return compiled.sub(replaced, value or "", count=count)
        is_strict = operator == ":"
        operator = self._take() if is_strict else operator
        if not operator or operator not in "-+?#%":
            raise DockerfileError(f"a variable has an unknown operator: {self._text[:80]}")
        word = self._until("}", keeps_escapes=operator in "#%")
        is_set = value is not None and not (is_strict and not value)
        if operator == "?" and not is_set and not self.is_lenient:
            what = "empty" if value is not None else "unset"
            raise DockerfileError(f"{name}: {word or f'it is {what}'}")
        if operator in "#%":
            return self._trimmed(operator, word, value or "")
        if operator == "+":
            return word if is_set else ""
        return word if operator == "-" and not is_set else value or ""

    def _trimmed(self, operator: str, pattern: str, value: str) -> str:
        is_longest = pattern.startswith(operator)
        pattern = pattern[1:] if is_longest else pattern
        if operator == "#":
            found = self._pattern(pattern, value, is_longest=is_longest).match(value)
            return value[found.end() :] if found else value
        # The end of a value is the beginning of the value read backwards.
        found = self._pattern(pattern, value, is_longest=is_longest, is_backwards=True).match(
            value[::-1]
        )
        return value[: len(value) - found.end()] if found else value

    def _pattern(
        self, pattern: str, value: str, *, is_longest: bool, is_backwards: bool = False
    ) -> re.Pattern[str]:
        """What lies between two `*` is taken where it comes first, which bounds the time."""
        if max(len(value), len(pattern)) > _MAX_MATCHED_CHARS:
            raise DockerfileError("a pattern or its value is too long")
        self.budget.charge(len(value) * (len(value) + len(pattern)) // 64)
        chunks: list[list[str]] = [[]]
        for piece in re.findall(r"\\.|.", pattern, re.DOTALL):
            if piece == "*":
                chunks.append([])
            elif piece == "\\" or (piece[0] == "\\" and piece[1] not in "}/*?\\"):
                raise DockerfileError(f"a pattern has an escape that is not known: {pattern[:80]}")
            else:
                chunks[-1].append("." if piece == "?" else re.escape(piece[-1]))
        ordered = [chunk[::-1] for chunk in chunks[::-1]] if is_backwards else chunks
        first, *rest = ("".join(chunk) for chunk in ordered)
        between = "".join(f"(?>.*?{chunk})" for chunk in rest[:-1])
        star = ".*" if is_longest else ".*?"
        return re.compile(first + between + (f"{star}{rest[-1]}" if rest else ""))
