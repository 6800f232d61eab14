"""SELECT of one table with conditions, order and limit. Pure; cost is bounded by words and rows."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, Final, TypeAlias

from belljar.dataclass import dataclass

MAX_TOKENS: Final = 500
MAX_DEPTH: Final = 20
MAX_COLUMNS: Final = 200
MAX_RESULT_CHARS: Final = 1 << 20
MAX_LIKE_CHARS: Final = 1000
Row: TypeAlias = Sequence[str]
Test: TypeAlias = Callable[[Row], bool]
_END: Final = ("sign", ";")
_TOKEN: Final = re.compile(
    r"(?P<space>\s+|--[^\n]*|/\*.*?\*/)"
    r"|(?P<text>[eE]?'(?:[^']|'')*')"
    r'|(?P<quoted>"(?:[^"]|"")+")'
    r"|(?P<open>/\*)"
    r"|(?P<number>\d+(?:\.\d+)?)"
    r"|(?P<word>[^\W\d]\w*)"
    r"|(?P<sign><>|!=|<=|>=|::|\|\||!~~?\*?|~~?\*?|\$\d+|.)",
    re.DOTALL,
)
_UNSUPPORTED: Final = frozenset(
    {"group", "having", "join", "left", "inner", "union", "with", "window", "natural"}
)
# Functions that an ordinary login may not call
_FOR_ROLES: Final = ("pg_read_", "pg_ls_", "pg_stat_file", "lo_", "pg_terminate", "pg_reload")
_CLAUSES: Final = frozenset({"from", "where", "order", "limit", "offset"})
_NO_ALIAS: Final = _UNSUPPORTED | _CLAUSES | {"as", "on"}
# What a hot standby answers now and then: here to all that this module doesn't know
UNSUPPORTED: Final = ("40001", "canceling statement due to conflict with recovery")


class SqlError(Exception):
    """`position`: characters from 1; 0: none."""

    def __init__(self, code: str, what: str, position: int = 0) -> None:
        super().__init__(what)
        self.code, self.what, self.position = code, what, position


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Columns by name and type, rows as text."""

    columns: tuple[tuple[str, str], ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """`columns` None: no rows, only the `tag`."""

    tag: str
    columns: tuple[tuple[str, str], ...] | None = None
    rows: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class Token:
    """`kind`: text, quoted, number, word or sign.

    A word is in lower case, text without its quotes.
    """

    kind: str
    value: str
    position: int
    shown: str


def tokens(query: str) -> list[Token]:
    """Raises `SqlError`."""
    found: list[Token] = []
    for match in _TOKEN.finditer(query):
        kind, shown = str(match.lastgroup), match[0]
        if kind == "space":
            continue
        value = shown
        if kind == "word":
            value = shown.lower()
        elif kind == "text":
            value = shown[shown.index("'") + 1 : -1].replace("''", "'")
        elif kind == "quoted":
            value = shown[1:-1].replace('""', '"')
        elif kind == "open" or shown in ("'", '"'):
            what = "/* comment" if kind == "open" else "quoted string"
            near = query[match.start() : match.start() + 60]
            raise SqlError("42601", f'unterminated {what} at or near "{near}"', match.start() + 1)
        found.append(Token(kind, value, match.start() + 1, shown))
        if len(found) > MAX_TOKENS:
            raise SqlError("54001", "stack depth limit exceeded")
    return found


def statements(query: str) -> Iterator[list[Token]]:
    """The tokens between semicolons. Raises `SqlError`."""
    for is_end, group in groupby(tokens(query), lambda token: (token.kind, token.value) == _END):
        if not is_end:
            yield list(group)


def select(
    statement: Sequence[Token], tables: Mapping[str, Table], constants: Mapping[str, str]
) -> Result:
    """`constants`: functions and words without a table. Raises `SqlError`."""
    return _Select(statement, tables, constants).result()


class _Select:
    def __init__(
        self, statement: Sequence[Token], tables: Mapping[str, Table], constants: Mapping[str, str]
    ) -> None:
        self._tokens, self._at = statement, 1
        self._tables, self._constants = tables, constants
        self._table = Table(columns=(), rows=((),))
        self._names: dict[str, int] = {}

    # ---- words

    def _peek(self) -> Token | None:
        return self._tokens[self._at] if self._at < len(self._tokens) else None

    def _is(self, *values: str) -> bool:
        token = self._peek()
        return token is not None and token.kind in ("word", "sign") and token.value in values

    def _skip(self, *values: str) -> bool:
        found = self._is(*values)
        self._at += found
        return found

    def _take(self) -> Token:
        token = self._peek()
        if token is None:
            raise self._wrong()
        self._at += 1
        return token

    def _need(self, value: str) -> None:
        if not self._skip(value):
            raise self._wrong()

    def _wrong(self, *, taken: bool = False) -> SqlError:
        """`taken`: the last token is the wrong one."""
        self._at -= taken
        token = self._peek()
        if token is None:
            return SqlError("42601", "syntax error at end of input")
        return SqlError("42601", f'syntax error at or near "{token.shown[:60]}"', token.position)

    def _name(self) -> Token:
        token = self._take()
        if token.kind not in ("word", "quoted"):
            raise self._wrong(taken=True)
        return token

    # ---- clauses

    def result(self) -> Result:
        distinct = self._skip("distinct")
        start, depth = self._at, 0
        # The list is read when the table is known.
        while (token := self._peek()) and (depth or not self._is(*_CLAUSES)):
            depth += (token.value == "(") - (token.value == ")") if token.kind == "sign" else 0
            self._at += 1
        if self._skip("from"):
            self._from()
        after, self._at = self._at, start
        columns, picks, is_count = self._list()
        if self._at != after and not self._is("from"):
            raise self._wrong()
        self._at = after
        rows: list[Row] = list(self._table.rows)
        if self._skip("where"):
            test = self._any(0)
            rows = [row for row in rows if test(row)]
        rows = self._order(rows)
        limit, offset = self._limits()
        if self._peek() is not None:
            raise self._wrong()
        if is_count:
            found = [tuple(str(len(rows)) for _ in columns)]
        else:
            found, size_chars = [], 0
            for row in rows:
                found.append(tuple(row[pick] if isinstance(pick, int) else pick for pick in picks))
                size_chars += sum(map(len, found[-1]))
                if size_chars > MAX_RESULT_CHARS:
                    raise SqlError("53200", "out of memory")
            found = list(dict.fromkeys(found)) if distinct else found
        found = found[offset : None if limit is None else offset + limit]
        return Result(tag=f"SELECT {len(found)}", columns=columns, rows=tuple(found))

    def _from(self) -> None:
        token = self._name()
        name = token.value
        if self._skip("."):
            name = f"{name}.{self._name().value}"
        name = name.removeprefix("public.")
        if name not in self._tables and f"pg_catalog.{name}" in self._tables:
            name = f"pg_catalog.{name}"
        if name not in self._tables:
            raise SqlError("42P01", f'relation "{name[:63]}" does not exist', token.position)
        self._table = self._tables[name]
        alias = name.rpartition(".")[2]
        alias = self._alias(alias, quoted=False)
        if self._is(",", *_UNSUPPORTED):
            raise SqlError(*UNSUPPORTED)
        for index, (column, _) in enumerate(self._table.columns):
            self._names[column] = self._names[f"{alias}.{column}"] = index

    def _list(self) -> tuple[tuple[tuple[str, str], ...], list[int | str], bool]:
        """Columns, what stands in each, and whether rows are counted."""
        columns: list[tuple[str, str]] = []
        picks: list[int | str] = []
        counts = 0
        while True:
            ahead = [token.value for token in self._tokens[self._at : self._at + 4]]
            if self._skip("*"):
                if not self._table.columns:
                    raise SqlError("42601", "SELECT * with no tables specified is not valid")
                columns += self._table.columns
                picks += range(len(self._table.columns))
            elif ahead in (["count", "(", "*", ")"], ["count", "(", "1", ")"]):
                self._at += 4
                counts += 1
                columns.append((self._alias("count"), "bigint"))
                picks.append("")
            else:
                name, kind, pick = self._item()
                columns.append((self._alias(name), kind))
                picks.append(pick)
            if len(columns) > MAX_COLUMNS:
                raise SqlError("54011", "target lists can have at most 1664 entries")
            if not self._skip(","):
                break
        if counts and counts != len(picks):
            where = "must appear in the GROUP BY clause or be used in an aggregate function"
            raise SqlError("42803", f"column {where}")
        return tuple(columns), picks, bool(counts)

    def _alias(self, name: str, *, quoted: bool = True) -> str:
        token = self._peek()
        is_alias = token is not None and (
            (quoted and token.kind == "quoted")
            or (token.kind == "word" and token.value not in _NO_ALIAS)
        )
        return self._name().value if self._skip("as") or is_alias else name

    def _item(self) -> tuple[str, str, int | str]:
        token = self._take()
        if token.kind == "number":
            return "?column?", "integer", token.value
        if token.kind == "text":
            return "?column?", "text", token.value
        if token.kind not in ("word", "quoted"):
            raise self._wrong(taken=True)
        name = token.value
        while self._skip("."):
            name = f"{name}.{self._name().value}"
        if self._skip("("):
            bare = name.removeprefix("pg_catalog.")
            if f"{bare}()" not in self._constants or not self._skip(")"):
                if bare.startswith(_FOR_ROLES):
                    raise SqlError("42501", f"permission denied for function {bare[:63]}")
                raise SqlError(*UNSUPPORTED)
            return bare, "text", self._constants[f"{bare}()"]
        if name in self._names:
            index = self._names[name]
            return *self._table.columns[index], index
        if name in self._constants:
            return name, "text", self._constants[name]
        raise SqlError("42703", f'column "{name[:63]}" does not exist', token.position)

    def _any(self, depth: int) -> Test:
        if depth > MAX_DEPTH:
            raise SqlError("54001", "stack depth limit exceeded")
        tests = [self._all(depth)]
        while self._skip("or"):
            tests.append(self._all(depth))
        return tests[0] if len(tests) == 1 else lambda row: any(test(row) for test in tests)

    def _all(self, depth: int) -> Test:
        tests = [self._one(depth)]
        while self._skip("and"):
            tests.append(self._one(depth))
        return tests[0] if len(tests) == 1 else lambda row: all(test(row) for test in tests)

    def _one(self, depth: int) -> Test:
        if self._skip("not"):
            if depth > MAX_DEPTH:
                raise SqlError("54001", "stack depth limit exceeded")
            test = self._one(depth + 1)
            return lambda row: not test(row)
        if self._skip("("):
            test = self._any(depth + 1)
            self._need(")")
            return test
        return self._comparison()

    def _comparison(self) -> Test:
        _, kind, left = self._item()
        if self._skip("is"):
            is_not = self._skip("not")
            self._need("null")
            return lambda _row: is_not
        negated = self._skip("not")
        verb = self._take()
        if verb.value == "in":
            self._need("(")
            values = [self._item()[2]]
            while self._skip(","):
                values.append(self._item()[2])
            self._need(")")
            return lambda row: (
                (_value(row, left) in [_value(row, value) for value in values]) is not negated
            )
        if verb.value in _LIKES:
            right = self._item()[2]
            if isinstance(right, int):
                raise SqlError(*UNSUPPORTED)
            pattern = like_pattern(right, folded=verb.value in ("ilike", "~~*"))
            return lambda row: matches_like(pattern, _value(row, left)) is not negated
        compare = _COMPARISONS.get(verb.value)
        if compare is None or negated:
            raise self._wrong(taken=True)
        _, other_kind, right = self._item()
        order = _number_or_text if "integer" in (kind, other_kind) else str
        return lambda row: compare(order(_value(row, left)), order(_value(row, right)))

    def _order(self, rows: list[Row]) -> list[Row]:
        if not self._skip("order"):
            return rows
        self._need("by")
        keys: list[tuple[int | str, str, bool]] = []
        while True:
            _, kind, pick = self._item()
            is_down = self._skip("desc")
            if not is_down:
                self._skip("asc")
            keys.append((pick, kind, is_down))
            if not self._skip(","):
                break
        for pick, kind, is_down in reversed(keys[:8]):
            is_place = isinstance(pick, str) and pick.isascii() and pick.isdigit()
            index = int(str(pick)[:9]) - 1 if is_place else pick
            if not isinstance(index, int):
                continue
            if not 0 <= index < max(1, len(self._table.columns)):
                raise SqlError("42P10", f"ORDER BY position {pick} is not in select list")
            order = _number_or_text if kind in ("integer", "bigint") else str
            rows = sorted(rows, key=lambda row: order(_value(row, index)), reverse=is_down)
        return rows

    def _limits(self) -> tuple[int | None, int]:
        limit, offset = None, 0
        while self._is("limit", "offset"):
            word = self._take().value
            token = self._take()
            if word == "limit" and token.value == "all":
                continue
            if token.kind != "number" or "." in token.value or len(token.value) > 18:
                raise self._wrong(taken=True)
            if word == "limit":
                limit = int(token.value)
            else:
                offset = int(token.value)
        return limit, offset


def _value(row: Row, pick: int | str) -> str:
    if isinstance(pick, int):
        return row[pick] if pick < len(row) else ""
    return pick


def _number_or_text(value: str) -> tuple[int, float, str]:
    try:
        return (0, float(value[:40]), "")
    except ValueError:
        return (1, 0.0, value)


_LIKES: Final = frozenset({"like", "ilike", "~~", "~~*"})
_COMPARISONS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "!=": operator.ne,
    "<": operator.lt,
    ">": operator.gt,
    "<=": operator.le,
    ">=": operator.ge,
}


def like_pattern(pattern: str, *, folded: bool = False) -> list[tuple[re.Pattern[str], int]]:
    """Pieces between `%`, and their lengths. They are looked for in turn: no pattern takes long."""
    flags = re.DOTALL | (re.IGNORECASE if folded else 0)
    pieces = pattern[:MAX_LIKE_CHARS].split("%")
    texts = ["".join("." if char == "_" else re.escape(char) for char in one) for one in pieces]
    return [(re.compile(text, flags), len(one)) for text, one in zip(texts, pieces, strict=True)]


def matches_like(pieces: Sequence[tuple[re.Pattern[str], int]], value: str) -> bool:
    """Whether the pieces make up the value."""
    value = value[:MAX_LIKE_CHARS]
    (first, at), *others = pieces
    if not others:
        return first.fullmatch(value) is not None
    if first.match(value) is None:
        return False
    for piece, size in others[:-1]:
        match = piece.search(value, at)
        if match is None:
            return False
        at = match.start() + size
    last, size = others[-1]
    return len(value) - size >= at and last.fullmatch(value, len(value) - size) is not None
