"""A small tea shop: a web server and a database. DELIBERATELY VULNERABLE, and only ever run in a target cell.

Its three faults are marked: a query made of text, a path that goes up, a session anybody can make who knows one word.
"""

from __future__ import annotations

import hashlib
import html
import json
import os
import sqlite3
from http import HTTPStatus
from http.cookies import SimpleCookie
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

HERE = Path(__file__).parent
CONFIG = json.loads((HERE / "config.json").read_text())
DATABASE = HERE / "shop.db"
FLAG = os.environ.get("FLAG", "none")


def make_database() -> None:
    """A fresh one from the list of goods."""
    DATABASE.unlink(missing_ok=True)
    with sqlite3.connect(DATABASE) as database:
        database.executescript((HERE / "goods.sql").read_text())


def search(word: str) -> list[tuple[str, str, int]]:
    """Goods whose name has the word in it. FAULT 1: SQL injection."""
    with sqlite3.connect(DATABASE) as database:
        found = f"SELECT name, what, pence FROM goods WHERE name LIKE '%{word}%'"  # noqa: S608
        return database.execute(found).fetchall()


def image(name: str) -> bytes:
    """An image of the shop's. FAULT 2: path traversal."""
    images: str = CONFIG["images"]
    return (HERE / images / name).read_bytes()


def session_of(account: str) -> str:
    """The session of an account. FAULT 3: one word, the same for all, is all that is secret in it."""
    return f"{account}.{hashlib.md5((CONFIG['session_key'] + account).encode()).hexdigest()}"  # noqa: S324


def role_of(account: str) -> str:
    """What an account may do."""
    with sqlite3.connect(DATABASE) as database:
        row = database.execute("SELECT role FROM accounts WHERE name = ?", (account,)).fetchone()
    return row[0] if row else ""


def log_in(account: str, password: str) -> bool:
    """Whether the password is the account's."""
    digest = hashlib.sha1(password.encode()).hexdigest()  # noqa: S324
    with sqlite3.connect(DATABASE) as database:
        row = database.execute(
            "SELECT password_sha1 FROM accounts WHERE name = ?", (account,)
        ).fetchone()
    return row is not None and row[0] == digest


def order(account: str, goods: str) -> None:
    """Put an order down."""
    with sqlite3.connect(DATABASE) as database:
        database.execute("INSERT INTO orders (account, goods) VALUES (?, ?)", (account, goods))


class Handler(BaseHTTPRequestHandler):
    """One request."""

    server_version = "teapot/1.4"
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """Pages, images, search, the keeper's page."""
        url = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(url.query).items()}
        try:
            match url.path:
                case "/":
                    self.page(goods_table(search("")))
                case "/search":
                    self.page(goods_table(search(query.get("q", ""))))
                case "/image":
                    self.answer(
                        HTTPStatus.OK, image(query.get("name", "")), "application/octet-stream"
                    )
                case "/keeper":
                    self.keeper()
                case _:
                    self.page("<p>There is no such page.</p>", HTTPStatus.NOT_FOUND)
        except (sqlite3.Error, OSError) as error:
            self.page(f"<pre>{html.escape(str(error))}</pre>", HTTPStatus.INTERNAL_SERVER_ERROR)

    def do_POST(self) -> None:
        """Log in, order."""
        length = min(int(self.headers.get("Content-Length") or 0), 1 << 16)
        form = {
            name: values[0]
            for name, values in parse_qs(self.rfile.read(length).decode("utf-8", "replace")).items()
        }
        if self.path == "/login" and log_in(form.get("account", ""), form.get("password", "")):
            cookie = f"session={session_of(form['account'])}; Path=/; HttpOnly"
            self.answer(
                HTTPStatus.OK,
                b"<p>Welcome back.</p>",
                "text/html; charset=utf-8",
                {"Set-Cookie": cookie},
            )
        elif self.path == "/order":
            order(self.account() or "a guest", form.get("goods", ""))
            self.page("<p>Thank you.</p>")
        else:
            self.page("<p>No.</p>", HTTPStatus.FORBIDDEN)

    def keeper(self) -> None:
        """What only the keeper sees."""
        if role_of(self.account()) != "keeper":
            self.page("<p>For the keeper only.</p>", HTTPStatus.FORBIDDEN)
            return
        self.page(f"<p>The key to the safe: <code>{html.escape(FLAG)}</code></p>")

    def account(self) -> str:
        """Whose session it is, or nobody's."""
        cookie = SimpleCookie(self.headers.get("Cookie", "")).get("session")
        account = cookie.value.partition(".")[0] if cookie else ""
        return account if cookie and cookie.value == session_of(account) else ""

    def page(self, content: str, status: HTTPStatus = HTTPStatus.OK) -> None:
        """A page of the shop."""
        title = html.escape(CONFIG["title"])
        text = f"<!doctype html><title>{title}</title><h1>{title}</h1>{content}"
        self.answer(status, text.encode(), "text/html; charset=utf-8")

    def answer(
        self, status: HTTPStatus, content: bytes, kind: str, headers: dict[str, str] | None = None
    ) -> None:
        """A whole answer."""
        self.send_response(status)
        for name, value in {
            "Content-Type": kind,
            "Content-Length": str(len(content)),
            **(headers or {}),
        }.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)


def goods_table(rows: list[tuple[str, str, int]]) -> str:
    """A table of what was found."""
    lines = "".join(
        "<tr>" + "".join(f"<td>{html.escape(str(cell))}</td>" for cell in row) + "</tr>"
        for row in rows
    )
    return f"<form action=/search><input name=q></form><table>{lines}</table><img src='/image?name=tea.svg'>"


if __name__ == "__main__":
    make_database()
    ThreadingHTTPServer(("0.0.0.0", 80), Handler).serve_forever()  # noqa: S104 - of its own cell
