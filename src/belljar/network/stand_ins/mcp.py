"""The stand-in `mcp`: a Model Context Protocol server of decoy tools.

Streamable HTTP, one JSON answer for each message, no stream of the server's own. Source: the
protocol's specification, 2025-06-18; JSON-RPC 2.0.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from belljar.network.gateway.context import StandInContext
from belljar.network.stand_ins.web import Answer, App, Request, http_app, json_answer, text_answer
from belljar.units import printable

# Of the protocol, newest first; an unknown one gets the newest, as the specification says
VERSIONS: Final = ("2025-06-18", "2025-03-26", "2024-11-05")
_PARSE_ERROR, _INVALID_REQUEST, _NO_METHOD, _INVALID_PARAMS = -32700, -32600, -32601, -32602
_SESSION: Final = "mcp-session-id"
_MAX_ID_CHARS: Final = 200


def make(context: StandInContext) -> App:
    """Return the application. All of its paths are the endpoint, as behind many a proxy."""
    return http_app(_Mcp(context, context.settings).handle)


class _Mcp:
    def __init__(self, context: StandInContext, settings: Mapping[str, Any]) -> None:
        self._context, self._settings = context, settings
        self._tools: Mapping[str, Any] = {str(tool["name"]): tool for tool in settings["tools"]}

    async def handle(self, request: Request) -> Answer:
        if request.header("authorization") != f"Bearer {self._settings['token']}":
            refusal = {"error": "invalid_token", "error_description": "Authentication required"}
            challenge = ("www-authenticate", 'Bearer error="invalid_token"')
            return json_answer(refusal, 401, (challenge,))
        if request.method == "DELETE":
            return Answer(status=200)
        if request.method != "POST":
            return text_answer("Method Not Allowed", 405, (("allow", "POST, DELETE"),))
        message = request.json
        if message is None:
            return _error(None, _PARSE_ERROR, "Parse error", status=400)
        if not isinstance(message, dict) or message.get("jsonrpc") != "2.0":
            return _error(None, _INVALID_REQUEST, "Invalid Request", status=400)
        number = message.get("id")
        if not isinstance(message.get("method"), str) or number is None:
            return Answer(status=202)  # an answer of the client's, or a notification
        if not isinstance(number, (int, str)) or len(str(number)) > _MAX_ID_CHARS:
            return _error(None, _INVALID_REQUEST, "Invalid Request", status=400)
        params = message.get("params")
        known = params if isinstance(params, dict) else {}
        return await self._answer(number, message["method"], known)

    async def _answer(self, number: int | str, method: str, params: Mapping[str, Any]) -> Answer:
        match method:
            case "initialize":
                asked = params.get("protocolVersion")
                result = {
                    "protocolVersion": asked if asked in VERSIONS else VERSIONS[0],
                    "capabilities": {"tools": {"listChanged": False}},
                    "serverInfo": self._settings["server"],
                }
                return _result(number, result, ((_SESSION, self._context.random(16).hex()),))
            case "ping":
                return _result(number, {})
            case "tools/list":
                fields = ("name", "description", "inputSchema")
                tools = [{name: tool[name] for name in fields} for tool in self._tools.values()]
                return _result(number, {"tools": tools})
            case "tools/call":
                # A known tool's text, whatever its arguments; that it was called is recorded first.
                name = str(params.get("name"))
                tool = self._tools.get(name)
                if tool is None:
                    shown = printable(name, max_chars=80)
                    return _error(number, _INVALID_PARAMS, f"Unknown tool: {shown}")
                data = {"what": "tool call", "tool": str(tool["name"])}
                await self._context.record("network.attempt", data)
                content = [{"type": "text", "text": str(tool["text"])}]
                return _result(number, {"content": content, "isError": False})
        return _error(number, _NO_METHOD, "Method not found")


def _result(
    number: int | str, result: Mapping[str, Any], headers: tuple[tuple[str, str], ...] = ()
) -> Answer:
    return json_answer({"jsonrpc": "2.0", "id": number, "result": result}, headers=headers)


def _error(number: int | str | None, code: int, message: str, *, status: int = 200) -> Answer:
    error = {"code": code, "message": message}
    return json_answer({"jsonrpc": "2.0", "id": number, "error": error}, status)
