"""Variables in a Dockerfile's words, as BuildKit fills them in. Pure.

Source: Dockerfile reference, "Environment replacement", without its operators on patterns and
without braces in braces.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

from belljar.image.parser import DockerfileError

# Half of the longest line that buildah reads (`parser.MAX_LINE_BYTES`).
_MAX_VALUE_CHARS: Final = 32_768
# Of a whole file: values that name each other grow with each line.
_MAX_WORK_CHARS: Final = 8 << 20
_NAME: Final = r"(?:[0-9]+|[@*#?$!-]|[^\W\d]\w*)"
_QUOTES: Final = r"""|'(?P<raw>[^']*)'|"(?P<quoted>(?:[^"\\]|\\.)*)"|(?P<open>['"])"""


@lru_cache(maxsize=3)
def _tokens(escaped: str, *, has_quotes: bool) -> re.Pattern[str]:
    """Match what is no plain text; `escaped`: the characters that a backslash may precede."""
    quotes = _QUOTES if has_quotes else ""
    braced = rf"(?P<name>{_NAME})(?:(?P<operator>:?[-+?])(?P<word>[^{{}}\\]*))?\}}"
    references = rf"|\$(?P<plain>{_NAME})|\$\{{{braced}|(?P<odd>\$\{{)"
    return re.compile(rf"\\(?P<escaped>{escaped}){quotes}{references}", re.DOTALL)


@dataclass(slots=True, kw_only=True)
class Expander:
    """Fills in variables of `env`.

    `is_lenient`: not all of the environment is known, so nothing is missing.
    """

    env: Mapping[str, str] = field(default_factory=dict)
    is_lenient: bool = False
    _left: int = _MAX_WORK_CHARS

    def expand(self, text: str) -> str:
        """The word with its variables filled in. Raises `DockerfileError`."""
        value = self._filled(text, _tokens(".?", has_quotes=True))
        if len(value) > _MAX_VALUE_CHARS:
            raise DockerfileError(f"a value has more than {_MAX_VALUE_CHARS:,} characters")
        return value

    def expand_document(self, text: str) -> str:
        """A here-document, where quotes stay and a backslash escapes. Raises `DockerfileError`."""
        return self._filled(text, _tokens(".?", has_quotes=False))

    def charge(self, chars: int) -> None:
        """Count work for the file. Raises `DockerfileError` beyond its bound."""
        self._left -= chars
        if self._left < 0:
            raise DockerfileError("its variables grow without an end")

    def _filled(self, text: str, tokens: re.Pattern[str]) -> str:
        self.charge(len(text))

        def fill(found: re.Match[str]) -> str:
            given = found.groupdict()
            if given.get("open"):
                raise DockerfileError(f"a quote has no end: {text[:80]}")
            if given["odd"]:
                why = "write $NAME, ${NAME} or ${NAME:-word}, with - + or ? as the operator"
                raise DockerfileError(f"a variable is not read here: {text[:80]}; {why}")
            if (quoted := given.get("quoted")) is not None:
                # Between double quotes, a backslash counts before these characters alone.
                return self._filled(quoted, _tokens(r'["$\\]', has_quotes=False))
            if name := given["plain"] or given["name"]:
                word = given["word"]
                return self._value(
                    name, given["operator"], self._filled(word, tokens) if word else ""
                )
            return given.get("raw") or given["escaped"] or ""

        return tokens.sub(fill, text)

    def _value(self, name: str, operator: str | None, word: str) -> str:
        value = self.env.get(name)
        self.charge(len(value or ""))
        is_set = value is not None and not (operator and operator[0] == ":" and not value)
        match (operator or "")[-1:]:
            case "+":
                return word if is_set else ""
            case "-" if not is_set:
                return word
            case "?" if not is_set and not self.is_lenient:
                what = "empty" if value is not None else "unset"
                raise DockerfileError(f"{name}: {word or f'it is {what}'}")
        return value or ""
