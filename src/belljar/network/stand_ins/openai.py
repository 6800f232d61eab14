"""The stand-in `openai`: a chat API bridged to the harness's model.

A program inside the cell uses its usual client; each question goes to the range's owner by
`context.ask("chat", body)` and comes back as one completion. There is no network in between. Bodies
are checked and bounded first; errors have the API's shape. Source: OpenAI API reference, "Chat".
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from belljar.network.gateway.context import MAX_ASKED_BYTES, StandInContext
from belljar.network.stand_ins.web import (
    Answer,
    App,
    Pairs,
    Request,
    compact,
    http_app,
    json_answer,
    parse_json,
)

MAX_MESSAGES: Final = 4096
MAX_TOOLS: Final = 128
MAX_WAITING: Final = 32  # Questions that wait for an answer at one time; more are refused with 429
DEFAULT_MODEL: Final = "gpt-4o"
_ROLES: Final = ("system", "developer", "user", "assistant", "tool", "function")
_METHODS: Final = {"/v1/models": "GET", "/v1/chat/completions": "POST"}
_DOWN: Final = "The server had an error while processing your request. Sorry about that!"


class RefusedError(Exception):
    """Answered with an error of the API's."""

    def __init__(
        self, status: int, message: str, param: str | None = None, code: str | None = None
    ) -> None:
        super().__init__(message)
        kind = "server_error" if status >= 500 else "invalid_request_error"
        error = {"message": message, "type": kind, "param": param, "code": code}
        self.status, self.body = status, {"error": error}


def make(context: StandInContext) -> App:
    """Return the application."""
    return http_app(_OpenAi(context).handle, max_body_bytes=MAX_ASKED_BYTES)


class _OpenAi:
    def __init__(self, context: StandInContext) -> None:
        settings: Mapping[str, Any] = context.settings
        self.context = context
        self.key = settings.get("api_key")
        self.model: str = settings.get("model", DEFAULT_MODEL)  # As it is shown; any is taken.
        self.waiting = 0

    async def handle(self, request: Request) -> Answer:
        headers: Pairs = (
            ("x-request-id", f"req_{self.context.random(16).hex()}"),
            ("openai-version", "2020-10-01"),
        )
        try:
            self.authorized(request)
            answer = await self.route(request)
        except RefusedError as exc:
            final = (("x-should-retry", "false"),) if exc.status >= 500 else ()
            return json_answer(exc.body, exc.status, (*headers, *final))
        return replace(answer, headers=(*answer.headers, *headers))

    def authorized(self, request: Request) -> None:
        """Any key is right, unless the policy names one."""
        scheme, _, key = request.header("authorization").partition(" ")
        if scheme.lower() != "bearer" or not key.strip():
            raise RefusedError(401, "You didn't provide an API key in an Authorization header.")
        if self.key is not None and key.strip() != self.key:
            raise RefusedError(401, "Incorrect API key provided.", code="invalid_api_key")

    async def route(self, request: Request) -> Answer:
        path = request.path.rstrip("/")
        method = "GET" if path == f"/v1/models/{self.model}" else _METHODS.get(path)
        if method is None:
            code = "model_not_found" if path.startswith("/v1/models/") else None
            message = f"There is no {request.method} {request.raw_path[:200]}"
            raise RefusedError(404, message, code=code)
        if request.method not in (method, "HEAD" if method == "GET" else method):
            message = f"Not allowed to {request.method} on {path}."
            raise RefusedError(405, message, code="method_not_supported")
        if method == "GET":
            made = int(self.context.clock()) - 30 * 86_400
            about = {"id": self.model, "object": "model", "created": made, "owned_by": "system"}
            is_list = path == "/v1/models"
            return json_answer({"object": "list", "data": [about]} if is_list else about)
        body = request.json
        if not isinstance(body, dict):
            raise RefusedError(400, "We could not parse the JSON body of your request.")
        if not isinstance(body.get("model"), str) or not 0 < len(body["model"]) <= 256:
            raise RefusedError(400, "you must provide a model parameter")
        check_chat(body)
        completion = await self.ask(body)
        if not body.get("stream"):
            return json_answer(completion)
        options = body.get("stream_options")
        usage = isinstance(options, dict) and options.get("include_usage") is True

        async def stream() -> AsyncGenerator[bytes]:
            for chunk in chunks(completion, usage=usage):
                yield f"data: {compact(chunk)}\n\n".encode("utf-8", "replace")
            yield b"data: [DONE]\n\n"

        media = ("content-type", "text/event-stream; charset=utf-8")
        return Answer(headers=(media, ("cache-control", "no-cache")), stream=stream)

    async def ask(self, body: Mapping[str, Any]) -> dict[str, Any]:
        if self.waiting >= MAX_WAITING:
            message = "Rate limit reached for requests."
            raise RefusedError(429, message, code="rate_limit_exceeded")
        hidden = ("stream", "stream_options")
        question = {name: value for name, value in body.items() if name not in hidden}
        asked = compact(question).encode("utf-8", "replace")
        if len(asked) > MAX_ASKED_BYTES:
            message = f"Maximum content size limit ({MAX_ASKED_BYTES}) exceeded."
            raise RefusedError(413, message)
        self.waiting += 1
        try:
            found = await self.context.ask("chat", asked)
        except ValueError:
            # The owner's reason is for the record, which the owner keeps; the guest learns what any
            # client of a failing API learns.
            raise RefusedError(500, _DOWN) from None
        finally:
            self.waiting -= 1
        return self.completed(found, str(body["model"]))

    def completed(self, data: bytes, model: str) -> dict[str, Any]:
        """Return the owner's answer with what a client expects of a completion."""
        try:
            found = parse_json(data)
            ends = [(each["message"]["role"], each["finish_reason"]) for each in found["choices"]]
        except (LookupError, TypeError, ValueError):
            ends = []
        if not ends:
            raise RefusedError(500, _DOWN)
        name, usage = f"chatcmpl-{self.context.random(16).hex()}", ("prompt", "completion", "total")
        none = {"usage": {f"{part}_tokens": 0 for part in usage}}
        return {"id": name, "model": model, **none, **found}


def check_chat(body: Mapping[str, Any]) -> None:
    """Refuse what is no question of the chat endpoint. Raises `RefusedError`."""
    messages, tools = body.get("messages"), body.get("tools") or []
    if not isinstance(messages, list) or not 0 < len(messages) <= MAX_MESSAGES:
        raise _invalid("messages", f"expected an array of 1 to {MAX_MESSAGES} objects")
    for index, message in enumerate(messages):
        known = message if isinstance(message, dict) else {}
        content = known.get("content", None if known.get("role") == "assistant" else 0)
        is_parts = isinstance(content, list) and all(isinstance(part, dict) for part in content)
        if known.get("role") not in _ROLES or not (isinstance(content, str | None) or is_parts):
            raise _invalid(f"messages[{index}]", "expected an object with a role and content")
    if body.get("n") not in (None, 1):
        raise _invalid("n", "expected 1")
    is_list = isinstance(tools, list) and len(tools) <= MAX_TOOLS
    functions = (
        [tool.get("function") for tool in tools if isinstance(tool, dict)] if is_list else []
    )
    names = [each.get("name") for each in functions if isinstance(each, dict)]
    if not is_list or len(tools) != len([name for name in names if isinstance(name, str)]):
        raise _invalid("tools", f"expected at most {MAX_TOOLS} functions with a name")


def _invalid(where: str, what: str) -> RefusedError:
    return RefusedError(400, f"Invalid value for '{where}': {what}.", where, "invalid_value")


def chunks(completion: Mapping[str, Any], *, usage: bool) -> Iterable[dict[str, Any]]:
    """A completion as the chunks of a stream; `usage` adds the last one, which has no choice."""
    base = {name: completion[name] for name in ("id", "created", "model")}
    base |= {"object": "chat.completion.chunk", "system_fingerprint": None}
    for choice in completion["choices"]:
        deltas = [*_deltas(choice["message"]), {}]
        for number, delta in enumerate(deltas, 1):
            reason = choice["finish_reason"] if number == len(deltas) else None
            part = {"index": choice["index"], "delta": delta, "logprobs": None}
            yield {**base, "choices": [{**part, "finish_reason": reason}]}
    if usage:
        yield {**base, "choices": [], "usage": completion["usage"]}


def _deltas(message: Mapping[str, Any]) -> Iterable[dict[str, Any]]:
    content, calls = message.get("content"), message.get("tool_calls")
    yield {"role": "assistant", "content": content if isinstance(content, str) else None}
    for index, call in enumerate(calls if isinstance(calls, list) else ()):
        yield {"tool_calls": [{"index": index, **call}]}
