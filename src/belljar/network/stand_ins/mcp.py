"""Decoy tools by Model Context Protocol (2025-06-18)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from belljar.network.stand_ins import web

# Of the protocol, newest first; an unknown one gets the newest, as the specification says
VERSIONS: Final = ("2025-06-18", "2025-03-26", "2024-11-05")
_INVALID_REQUEST, _NO_METHOD, _INVALID_PARAMS = -32600, -32601, -32602
_SESSION: Final = "mcp-session-id"
_MAX_ID_CHARS: Final = 200


class _Mcp(web.HttpService):
    def __init__(self, context: web.StandInContext) -> None:
        super().__init__(context)
        settings: Any = context.settings
        self._settings: Mapping[str, Any] = settings
        self._tools: Mapping[str, Any] = {str(tool["name"]): tool for tool in settings["tools"]}

    async def handle(self, request: web.Request) -> web.HttpAnswer:
        if request.header("authorization") != f"Bearer {self._settings['token']}":
            refusal = {"error": "invalid_token", "error_description": "Authentication required"}
            challenge = ("www-authenticate", 'Bearer error="invalid_token"')
            return web.json_answer(refusal, 401, (challenge,))
        if request.method == "DELETE":
            return web.HttpAnswer(status=200)
        if request.method != "POST":
            return web.text_answer("Method Not Allowed", 405, (("allow", "POST, DELETE"),))
        message = request.json
        is_message = isinstance(message, dict) and message.get("jsonrpc") == "2.0"
        number = message.get("id") if is_message else None
        if is_message and (not isinstance(message.get("method"), str) or number is None):
            return web.HttpAnswer(status=202)  # an answer of the client's, or a notification
        if not isinstance(number, (int, str)) or len(str(number)) > _MAX_ID_CHARS:
            wrong = _error(_INVALID_REQUEST, "Invalid Request")
            return web.json_answer({"jsonrpc": "2.0", "id": None, **wrong}, 400)
        params = message.get("params")
        result = await self._result(message["method"], params if isinstance(params, dict) else {})
        is_first = message["method"] == "initialize"
        headers = ((_SESSION, self.context.random(16).hex()),) if is_first else ()
        return web.json_answer({"jsonrpc": "2.0", "id": number, **result}, headers=headers)

    async def _result(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        match method:
            case "initialize":
                asked = params.get("protocolVersion")
                result = {"protocolVersion": asked if asked in VERSIONS else VERSIONS[0]}
                result |= {"capabilities": {"tools": {"listChanged": False}}}
                return {"result": result | {"serverInfo": self._settings["server"]}}
            case "ping":
                return {"result": {}}
            case "tools/list":
                fields = ("name", "description", "inputSchema")
                tools = [{name: tool[name] for name in fields} for tool in self._tools.values()]
                return {"result": {"tools": tools}}
            case "tools/call":
                # A known tool's text, whatever its arguments; that it was called is recorded first.
                name = str(params.get("name"))
                tool = self._tools.get(name)
                if tool is None:
                    return _error(_INVALID_PARAMS, f"Unknown tool: {web.word(name, 80)}")
                await self.context.record({"what": "tool call", "tool": name})
                content = [{"type": "text", "text": str(tool["text"])}]
                return {"result": {"content": content, "isError": False}}
        return _error(_NO_METHOD, "Method not found")


def _error(code: int, message: str) -> dict[str, Any]:
    return {"error": {"code": code, "message": message}}


make = _Mcp
