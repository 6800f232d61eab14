"""SELECT of one table."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from belljar.network.stand_ins.postgres.sql import (
    MAX_RESULT_CHARS,
    MAX_TOKENS,
    Result,
    SqlError,
    Table,
    select,
    statements,
)

PEOPLE = Table(
    columns=(("id", "integer"), ("name", "text"), ("card", "text")),
    rows=(("1", "Anna", "9999-1"), ("2", "Ben", "9999-2"), ("10", "Carla", "9999-3")),
)
TABLES = {
    "people": PEOPLE,
    "information_schema.tables": Table(columns=(("table_name", "name"),), rows=(("people",),)),
}
CONSTANTS = {"version()": "PostgreSQL", "current_user": "app"}


def run(query: str) -> Result:
    """Of one statement."""
    (statement,) = statements(query)
    return select(statement, TABLES, CONSTANTS)


@pytest.mark.parametrize(
    ("query", "rows"),
    [
        ("SELECT id FROM people", [("1",), ("2",), ("10",)]),
        ("select name, card from public.people where id = 2", [("Ben", "9999-2")]),
        ("select p.name as who from people p where p.id > 2", [("Carla",)]),
        ("select name from people where name ilike '%AN%' or id in (2, 3)", [("Anna",), ("Ben",)]),
        ("select name from people where not (name like 'A%' or id = '10')", [("Ben",)]),
        ("select name from people where name like '_en' and card is not null", [("Ben",)]),
        ("select id from people order by id desc limit 1", [("10",)]),
        ("select id from people order by 1 limit 1 offset 2;", [("10",)]),
        ("select count(*) from people where id <> 1", [("2",)]),
        ("select \"name\" from \"people\" where name = 'it''s'", []),
        ("select 1, 'a', version(), current_user", [("1", "a", "PostgreSQL", "app")]),
        ("select distinct current_user from people -- all", [("app",)]),
        ("select * from information_schema.tables /* x */", [("people",)]),
    ],
)
def test_what_is_asked_is_answered(query: str, rows: list[tuple[str, ...]]) -> None:
    """Numbers are compared as numbers."""
    found = run(query)
    assert list(found.rows) == rows
    assert found.tag == f"SELECT {len(rows)}"


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ("select * from accounts", "42P01"),
        ("select password from people", "42703"),
        ("select pg_read_file('/etc/passwd')", "42501"),
        ("select max(id) from people", "40001"),
        ("select * from people where", "42601"),
        ("select id from people a b", "42601"),
        ("select * from people where name = 'open", "42601"),
        ("select /* open", "42601"),
        ("select id from people order by " + "1" * 5000, "42P10"),
        ("select * from people join people b on true", "40001"),
        ("select " + "(" * 40 + "1", "42601"),
        ("select 1 from people where " + "(" * 40 + "id = 1", "54001"),
        ("select 1 from people where " + "not " * 40 + "id = 1", "54001"),
        ("select " + "1, " * MAX_TOKENS + "1", "54001"),
    ],
)
def test_what_is_wrong_has_the_servers_code(query: str, code: str) -> None:
    """SQLSTATE, as a program reads it."""
    with pytest.raises(SqlError) as raised:
        run(query)
    assert raised.value.code == code


def test_a_result_is_bounded() -> None:
    """A long literal for each row of a long table is too much."""
    text = "x" * (MAX_RESULT_CHARS // 2)
    with pytest.raises(SqlError, match="memory"):
        run(" ".join(["select", f"'{text}'", "from people"]))


WORDS = (
    *(
        "select",
        "from",
        "where",
        "order",
        "by",
        "limit",
        "offset",
        "people",
        "id",
        "name",
        "count",
        "(",
        ")",
        "*",
    ),
    *(
        ",",
        ".",
        "'",
        '"',
        "=",
        "<",
        "and",
        "or",
        "not",
        "in",
        "like",
        "is",
        "null",
        "as",
        "1",
        "--",
        "/*",
        "*/",
    ),
    *(";", "$1", "::", "'%_%'", "'a'", "distinct", "version"),
)
pieces = st.lists(st.sampled_from(WORDS) | st.text(max_size=3), max_size=25)


@given(pieces)
def test_any_words_give_rows_or_an_error(words: list[str]) -> None:
    """And nothing else."""
    with suppress(SqlError):
        for statement in statements("select " + " ".join(words)):
            found = select(statement, TABLES, CONSTANTS)
            assert all(len(row) == len(found.columns or ()) for row in found.rows)
