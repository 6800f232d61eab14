"""The live page: who may look and act, and what it is fed with."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from belljar.cell.parts import start_run
from belljar.cli.main import run as belljar
from belljar.events import Event, Kind
from belljar.ledger.rundir import RunDirectory
from belljar.live.feed import Feed

pytest.importorskip("starlette", reason="the extra `web` is not installed")
import httpx2 as httpx
from starlette.datastructures import URL
from starlette.requests import Request

from belljar.errors import HostError
from belljar.live.server import OPERATOR, VIEWER, LiveServer, load_token

HOST = "127.0.0.1:7462"


def client(server: LiveServer, **headers: str) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(app=server.app())
    return httpx.AsyncClient(transport=transport, base_url=f"http://{HOST}", headers=headers)


def server_of(home: Path, *, operator: bool = False) -> LiveServer:
    stops = "O" if operator else None
    return LiveServer(home, "V", stops, origins=frozenset({f"http://{HOST}"}))


async def secret_of(browser: httpx.AsyncClient, token: str) -> dict[str, str]:
    answer = await browser.post("/session", json={"token": token})
    return {"x-belljar-secret": answer.json()["secret"]}


@pytest.mark.anyio
async def test_only_a_token_opens_a_session(tmp_path: Path) -> None:
    """Without the secret that a token gives nothing of a run is sent, and none is in a cookie."""
    async with client(server_of(tmp_path)) as browser:
        assert (await browser.get("/events")).status_code == 401
        for token in ("U", "", "O", None):
            assert (await browser.post("/session", json={"token": token})).status_code == 401
        assert (await browser.post("/session", content=b"[" * 4000)).status_code == 401
        answer = await browser.post("/session", json={"token": "V"})
        assert not answer.json()["operator"]
        assert "set-cookie" not in answer.headers
        header = {"x-belljar-secret": answer.json()["secret"]}
        assert (await browser.post("/session", json={}, headers=header)).status_code == 200


@pytest.mark.anyio
async def test_another_site_cannot_act(tmp_path: Path) -> None:
    """A foreign Host (DNS rebinding), Origin or port gets no page, no preflight and no action."""
    server = server_of(tmp_path, operator=True)
    async with client(server) as browser:
        secret = await secret_of(browser, "O")
        for foreign in (
            {"host": "evil.example"},
            *(
                {"origin": each}
                for each in ("http://evil.example", "null", "http://127.0.0.1:8000")
            ),
        ):
            headers = {**secret, **foreign}
            asked = {**foreign, "access-control-request-headers": "x-belljar-secret"}
            preflight = await browser.options("/actions/hold", headers=asked)
            for answer in (
                await browser.get("/", headers=foreign),
                await browser.post("/session", json={"token": "O"}, headers=foreign),
                await browser.post("/actions/hold", json={}, headers=headers),
                preflight,
            ):
                assert answer.status_code == 421
            assert not any(name.startswith("access-control") for name in preflight.headers)
        assert server.feed.state()["held"] == ""


@pytest.mark.anyio
async def test_no_host_name_leads_to_another_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some versions of Starlette take a request's URL from its Host, which a socket's client may
    choose.
    """
    (tmp_path / "f").write_text("of this host")
    monkeypatch.setattr(Request, "url", URL(f"http://x/{tmp_path}/f?"))
    async with client(server_of(tmp_path)) as browser:
        for path, kind in (("/", "text/html"), ("/live.js", "text/javascript")):
            answer = await browser.get(path)
            assert (answer.status_code, answer.headers["content-type"]) == (
                200,
                f"{kind}; charset=utf-8",
            )
            assert "of this host" not in answer.text


@pytest.mark.anyio
async def test_an_action_needs_the_operators_token(tmp_path: Path) -> None:
    """Neither a viewer's secret nor an operator's elsewhere acts; the right one does."""
    server = server_of(tmp_path, operator=True)
    async with client(server) as browser, client(server_of(tmp_path)) as other:
        operator, viewer = await secret_of(browser, "O"), await secret_of(browser, "V")
        for at, headers in ((browser, viewer), (browser, {}), (other, operator)):
            answer = await at.post("/actions/hold", json={"name": ""}, headers=headers)
            assert answer.status_code == 403
            assert server.feed.state()["held"] == ""
        assert (await browser.post("/actions/hold", json={}, headers=operator)).json()["ok"]
        assert server.feed.state()["held"]
        assert (await browser.post("/actions/release", json={}, headers=operator)).json()["ok"]
        assert server.feed.state()["held"] == ""
        for name in ("", "no"):
            answer = await browser.post("/actions/stop", json={"name": name}, headers=operator)
            assert answer.status_code == 404


def test_a_token_is_kept_and_private(tmp_path: Path) -> None:
    """A restarted server has the same one; an empty or a readable file is refused."""
    token = load_token(tmp_path, VIEWER)
    assert load_token(tmp_path, VIEWER) == token != load_token(tmp_path, OPERATOR)
    path = tmp_path / "keys" / VIEWER
    assert path.stat().st_mode & 0o077 == 0
    path.chmod(0o644)
    with pytest.raises(HostError):
        load_token(tmp_path, VIEWER)
    path.chmod(0o600)
    path.write_text("")
    with pytest.raises(HostError):
        load_token(tmp_path, VIEWER)


CELL = "c-0123456789ab"


@pytest.fixture
def run(tmp_path: Path) -> Iterator[RunDirectory]:
    with start_run("exec", "test", ["test"], home=tmp_path) as made:
        yield made


def test_one_that_falls_behind_is_told_what_it_missed(
    run: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ring is all that is kept of a flood; its text acts on no terminal and hides nothing."""
    monkeypatch.setattr("belljar.live.feed.RING_LINES", 10)
    with Feed(tmp_path) as feed:
        for number in range(30):
            data = {"reason": f"\x1b]0;x\x07\u202e<script>{number}"}
            run.recorder.record(Event(kind=Kind.PROTOCOL_VIOLATION, data=data))
        feed.look()
        lines, cursor, missed = feed.since(0)
    texts = [json.loads(each)["text"] for each in lines]
    assert (len(texts), cursor, missed) == (10, feed.last, feed.last - 10)
    assert texts[-1].endswith("<script>29")
    assert all(text.isprintable() for text in texts)


def test_watch_shows_what_runs_now(
    run: RunDirectory,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Each cell of a run that lasts, with its last command as text; a run that is over has none."""
    monkeypatch.setenv("BELLJAR_HOME", str(tmp_path))
    planned = {"policy_sha256": "", "tier": "gvisor", "emulated": False, "layers": []}
    started = {"op": 1, "argv": ["ls", "\x1b[2J"], "cwd": "/", "user": "", "env_names": []}
    for kind, data in (
        (Kind.CELL_PLANNED, planned),
        (Kind.EXEC_STARTED, {**started, "stdin": False, "timeout_s": None}),
    ):
        run.recorder.record(Event(kind=kind, data=data, cell_id=CELL))  # type: ignore[arg-type]
    assert belljar(["watch"]) == 0
    shown = capsys.readouterr().out
    assert "1 runs, 1 cells" in shown
    assert CELL in shown
    assert "gvisor" in shown
    assert "\x1b[2J" not in shown
