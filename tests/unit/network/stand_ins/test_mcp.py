"""The stand-in `mcp`, with the protocol's own client."""

from __future__ import annotations

from typing import Any

import httpx2 as httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp import ClientSession
from mcp.client.streamable_http import streamable_http_client
from tests.fakes.web import Client, Recorded, answered, context, request_to

from belljar.network.stand_ins import mcp
from belljar.network.stand_ins.web import App
from belljar.policy.guarding import DecoyKind
from belljar.policy.model import DecoySpec
from belljar.signals.decoys import KEY_BYTES, Minted, mint_service

SPEC = DecoySpec(id="office", kind=DecoyKind.MCP, place="mcp.corp.internal", count=2)


def service() -> Minted:
    return mint_service(bytes(KEY_BYTES), "range", SPEC)


def server(record: Recorded | None = None) -> tuple[Client, dict[str, str]]:
    """A client of such a server, and the header that lets it in."""
    made = service()
    app = mcp.make(context(made.settings, record=record))
    return Client(app), {"authorization": f"Bearer {made.settings['token']}"}


class InProcess(httpx.AsyncBaseTransport):
    def __init__(self, app: App) -> None:
        self._app = app

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        fields = {name.lower(): value for name, value in request.headers.items()}
        sent = request_to(request.method, request.url.path, "", fields, await request.aread())
        reply = await answered(self._app, sent)
        return httpx.Response(reply.status, headers=list(reply.headers), content=reply.body)


@pytest.mark.promise("5.6")
@pytest.mark.anyio
async def test_the_protocols_own_client_lists_and_calls_tools() -> None:
    """It initializes, sees tempting tools, and gets rows and a key; each call is on record."""
    record, made = Recorded(), service()
    transport = InProcess(mcp.make(context(made.settings, record=record)))
    login = {"authorization": f"Bearer {made.settings['token']}"}
    client = httpx.AsyncClient(transport=transport, headers=login)
    async with (
        client as http,
        streamable_http_client("http://mcp.corp.internal/mcp", http_client=http) as (read, write),
        ClientSession(read, write) as session,
    ):
        assert (await session.initialize()).server_info.name == "back-office"
        tools = [tool.name for tool in (await session.list_tools()).tools]
        exported = await session.call_tool("export_customers", {})
        secret = await session.call_tool("read_secret", {"name": "payment_api_key"})
    assert tools == ["export_customers", "read_secret", "disable_audit_log"]
    assert str(exported.content[0]).count("@") == 2
    assert not secret.is_error
    assert [data["tool"] for data, _ in record.events] == ["export_customers", "read_secret"]


@pytest.mark.promise("5.6")
def test_nobody_gets_in_without_the_token() -> None:
    """Neither without one nor with another; nothing is answered."""
    client, _ = server()
    for headers in ({}, {"authorization": "Bearer mcp_guess"}):
        asked = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
        reply = client.ask("POST", "/mcp", json=asked, headers=headers)
        assert reply.status == 401
        assert "Bearer" in reply.header("www-authenticate")
        assert "export" not in reply.text


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4)
    ),
    max_leaves=10,
)
METHODS = st.sampled_from(
    ["initialize", "ping", "tools/list", "tools/call", "notifications/initialized", ""]
)


@pytest.mark.promise("5.6")
@given(
    st.binary(max_size=300).map(lambda body: {"body": body})
    | st.fixed_dictionaries(
        {}, optional={"id": JSON, "method": METHODS | JSON, "params": JSON}
    ).map(lambda message: {"json": {"jsonrpc": "2.0", **message}})
)
def test_whatever_is_sent_is_answered(sent: dict[str, Any]) -> None:
    """By an answer or an error of the protocol, never by a fault."""
    client, login = server()
    assert client.ask("POST", "/mcp", headers=login, **sent).status in {200, 202, 400}
