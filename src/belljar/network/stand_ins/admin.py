"""The admin page of a decoy of kind `http`: a form, a session, customers as a table and as CSV."""

from __future__ import annotations

import html
from collections.abc import Mapping
from typing import Any, Final

from belljar.network.gateway.context import StandInContext
from belljar.network.stand_ins.web import Answer, Request, plain_error, text_answer

_COOKIE: Final = "sid"
# A browser that kept a page would show customers after a logout.
_HEADERS: Final = (("server", "nginx/1.24.0"), ("cache-control", "no-store"))
_PAGE: Final = (
    '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
    "<title>{title} - Customer administration</title>\n</head>\n<body>\n<h1>{title}</h1>\n"
    "{content}\n</body>\n</html>\n"
)
_FORM: Final = (
    '<form method="post" action="/login">\n'
    '<label>User <input name="username" autocomplete="username"></label>\n'
    '<label>Password <input type="password" name="password" '
    'autocomplete="current-password"></label>\n'
    '<button type="submit">Sign in</button>\n</form>'
)
_LINKS: Final = '<p><a href="/customers.csv">Export</a> <a href="/logout">Sign out</a></p>'
_METHODS: Final = {"/login": ("GET", "HEAD", "POST")}
_PATHS: Final = frozenset({"/", "/login", "/customers", "/customers.csv", "/logout"})


class AdminPage:
    """`settings`: `login`, with user and password; `rows`, each a customer's fields by name; `csv`:
    the same as text."""

    def __init__(self, context: StandInContext) -> None:
        settings: Any = context.settings
        self._login: Mapping[str, str] = settings["login"]
        self._rows: list[dict[str, str]] = settings["rows"]
        self._csv: str = settings["csv"]
        self._session = context.random(16).hex()  # Of everyone who has signed in.

    async def handle(self, request: Request) -> Answer:
        """Answer a request; who isn't signed in is led to the form."""
        path = request.path
        allowed = _METHODS.get(path, ("GET", "HEAD"))
        if path not in _PATHS:
            return plain_error(404, _HEADERS)
        if request.method not in allowed:
            return plain_error(405, (("allow", ", ".join(allowed)), *_HEADERS))
        if path == "/login":
            return self._sign_in(request) if request.method == "POST" else _page("Sign in", _FORM)
        if path == "/logout":
            return _redirect("/login", ("set-cookie", f"{_COOKIE}=; Path=/; Max-Age=0"))
        if request.cookies.get(_COOKIE) != self._session:
            return _redirect("/login")
        if path == "/customers":
            return _page("Customers", f"{_LINKS}\n{self._table()}")
        if path == "/customers.csv":
            return text_answer(self._csv, 200, _HEADERS, media="text/csv; charset=utf-8")
        return _redirect("/customers")

    def _sign_in(self, request: Request) -> Answer:
        form = dict(reversed(request.form))
        given = {"user": form.get("username"), "password": form.get("password")}
        if given != dict(self._login):
            return _page("Sign in", f"<p>Wrong user or password.</p>\n{_FORM}", status=401)
        cookie = f"{_COOKIE}={self._session}; Path=/; HttpOnly; SameSite=Lax"
        return _redirect("/customers", ("set-cookie", cookie))

    def _table(self) -> str:
        head = "".join(f"<th>{name}</th>" for name in self._rows[0])
        lines = ("".join(f"<td>{html.escape(v)}</td>" for v in row.values()) for row in self._rows)
        body = "\n".join(f"<tr>{line}</tr>" for line in lines)
        return f"<table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table>"


def _page(title: str, content: str, *, status: int = 200) -> Answer:
    text = _PAGE.format(title=title, content=content)
    return text_answer(text, status, _HEADERS, media="text/html; charset=utf-8")


def _redirect(to: str, *more: tuple[str, str]) -> Answer:
    return plain_error(302, (("location", to), *more, *_HEADERS))
