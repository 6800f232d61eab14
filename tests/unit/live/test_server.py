"""Who may look at the live page, and who may act."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("starlette", reason="the extra `web` is not installed")
import httpx2 as httpx

from belljar.live.server import LiveServer, load_token

HOST = "127.0.0.1:7462"


def client(server: LiveServer, **headers: str) -> httpx.AsyncClient:
    """A browser at the server's address."""
    transport = httpx.ASGITransport(app=server.app())
    return httpx.AsyncClient(transport=transport, base_url=f"http://{HOST}", headers=headers)


def server_of(home: Path, *, operator: bool = False) -> LiveServer:
    """A server with the token T."""
    return LiveServer(home, "T", hosts=frozenset({HOST}), operator=operator)


@pytest.mark.anyio
async def test_only_the_token_opens_a_session(tmp_path: Path) -> None:
    """Without cookie or token nothing of a run is sent; the cookie is for this site and no script."""
    async with client(server_of(tmp_path)) as browser:
        assert (await browser.get("/events")).status_code == 401
        assert (await browser.get("/reports/x")).status_code == 401
        assert (await browser.post("/session", json={"token": "U"})).status_code == 401
        assert (await browser.post("/session", content=b"[" * 4000)).status_code == 401
        answer = await browser.post("/session", json={"token": "T"})
        assert answer.json() == {"operator": False, "secret": ""}
        cookie = answer.headers["set-cookie"].lower()
        assert "httponly" in cookie
        assert "samesite=strict" in cookie
        assert (await browser.post("/session", json={})).status_code == 200
        assert (await browser.get("/reports/x")).status_code == 404


@pytest.mark.anyio
async def test_another_name_for_the_address_is_refused(tmp_path: Path) -> None:
    """A foreign Host (DNS rebinding) and a foreign Origin get no answer, the page neither."""
    server = server_of(tmp_path, operator=True)
    for headers in (
        {"host": "evil.example"},
        {"origin": "http://evil.example"},
        {"origin": "null"},
    ):
        async with client(server, **headers) as browser:
            assert (await browser.get("/")).status_code == 421
            assert (await browser.post("/session", json={"token": "T"})).status_code == 421


@pytest.mark.anyio
async def test_an_action_needs_operator_cookie_and_secret(tmp_path: Path) -> None:
    """Each of the three alone, and any two, is refused; all together hold the store and release it."""
    for operator, cookie, secret in ((False, True, True), (True, False, True), (True, True, False)):
        server = server_of(tmp_path, operator=operator)
        known = server_of(tmp_path, operator=True)
        async with client(known) as browser:
            good = (await browser.post("/session", json={"token": "T"})).json()["secret"]
        async with client(server) as browser:
            if cookie:
                await browser.post("/session", json={"token": "T"})
            headers = {"x-belljar-secret": good} if secret else {}
            answer = await browser.post("/actions/hold", json={"name": ""}, headers=headers)
            assert answer.status_code == 403
            assert server.feed.state()["held"] == ""
    async with client(server_of(tmp_path, operator=True)) as browser:
        good = (await browser.post("/session", json={"token": "T"})).json()["secret"]
        headers = {"x-belljar-secret": good}
        assert (await browser.post("/actions/hold", json={}, headers=headers)).json()["ok"]
        assert server.feed.state()["held"]
        assert (await browser.post("/actions/release", json={}, headers=headers)).json()["ok"]
        assert server.feed.state()["held"] == ""
        nobody = await browser.post("/actions/stop", json={"name": ""}, headers=headers)
        assert nobody.status_code == 404
        unknown = await browser.post("/actions/stop", json={"name": "no"}, headers=headers)
        assert unknown.status_code == 404


@pytest.mark.anyio
async def test_a_report_has_another_origin(tmp_path: Path) -> None:
    """A report is sent sandboxed, and no other file by that way."""
    (tmp_path / "reports").mkdir()
    (tmp_path / "reports" / "r-1.html").write_text("page")
    (tmp_path / "reports" / "r-2.html").symlink_to("/etc/passwd")
    async with client(server_of(tmp_path)) as browser:
        await browser.post("/session", json={"token": "T"})
        answer = await browser.get("/reports/r-1")
        assert answer.text == "page"
        assert answer.headers["content-security-policy"].startswith("sandbox allow-scripts;")
        for name in ("r-2", "..%2fkeys%2flive-token", "r-3"):
            assert (await browser.get(f"/reports/{name}")).status_code == 404


def test_the_token_is_kept_and_private(tmp_path: Path) -> None:
    """A restarted server has the same one; nobody else can read it."""
    token = load_token(tmp_path)
    assert load_token(tmp_path) == token
    assert (tmp_path / "keys" / "live-token").stat().st_mode & 0o077 == 0
