"""A chat API, by the harness's model."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Mapping
from typing import Any, Final

from belljar.network.stand_ins import web

SHOWN_MODEL: Final = "gpt-4o"  # Any name is taken.
_DOWN: Final = "The server had an error while processing your request. Sorry about that!"


def _error(status: int, message: str) -> web.HttpAnswer:
    kind = "server_error" if status >= 500 else "invalid_request_error"
    error = {"message": message, "type": kind, "param": None, "code": None}
    final = (("x-should-retry", "false"),) if status >= 500 else ()
    return web.json_answer({"error": error}, status, final)


class _OpenAi(web.HttpService):
    max_body_bytes = web.MAX_ASKED_BYTES

    async def handle(self, request: web.Request) -> web.HttpAnswer:
        scheme, _, key = request.header("authorization").partition(" ")
        if scheme.lower() != "bearer" or not key.strip():  # Any key is right.
            return _error(401, "You didn't provide an API key in an Authorization header.")
        path = request.path.rstrip("/")
        if not web.writes(request) and path in {"/v1/models", f"/v1/models/{SHOWN_MODEL}"}:
            made = int(self.context.clock()) - 30 * 86_400
            about = {"id": SHOWN_MODEL, "object": "model", "created": made, "owned_by": "system"}
            is_list = path == "/v1/models"
            return web.json_answer({"object": "list", "data": [about]} if is_list else about)
        if request.method != "POST" or path != "/v1/chat/completions":
            return _error(404, f"There is no {request.method} {request.raw_path[:200]}")
        body = request.json if isinstance(request.json, dict) else {}
        model, messages = body.get("model"), body.get("messages")
        is_list = isinstance(messages, list) and all(isinstance(each, dict) for each in messages)
        if not (messages and is_list and isinstance(model, str) and 0 < len(model) <= 256):
            return _error(400, "Invalid body: expected JSON with 'model' and an array 'messages'.")
        completion = await self.ask(body)
        if isinstance(completion, web.HttpAnswer):
            return completion
        if not body.get("stream"):
            return web.json_answer(completion)
        options = body.get("stream_options")
        usage = isinstance(options, dict) and options.get("include_usage") is True

        async def stream() -> AsyncGenerator[bytes]:
            for chunk in chunks(completion, usage=usage):
                yield f"data: {web.compact(chunk)}\n\n".encode("utf-8", "replace")
            yield b"data: [DONE]\n\n"

        media = ("content-type", "text/event-stream; charset=utf-8")
        return web.HttpAnswer(headers=(media, ("cache-control", "no-cache")), stream=stream)

    async def ask(self, body: Mapping[str, Any]) -> dict[str, Any] | web.HttpAnswer:
        hidden = ("stream", "stream_options")
        question = {name: value for name, value in body.items() if name not in hidden}
        asked = web.compact(question).encode("utf-8", "replace")
        if len(asked) > web.MAX_ASKED_BYTES:
            return _error(413, f"Maximum content size limit ({web.MAX_ASKED_BYTES}) exceeded.")
        try:
            found = web.parse_json(await self.context.ask(asked))
            ends = [(each["message"]["role"], each["finish_reason"]) for each in found["choices"]]
        except (LookupError, TypeError, ValueError):
            ends = []
        if not ends:
            # The owner's reason is on record; the guest learns what any client learns.
            return _error(500, _DOWN)
        name = f"chatcmpl-{self.context.random(16).hex()}"
        usage = {f"{part}_tokens": 0 for part in ("prompt", "completion", "total")}
        return {"id": name, "model": str(body["model"]), "usage": usage, **found}


def chunks(completion: Mapping[str, Any], *, usage: bool) -> Iterable[dict[str, Any]]:
    base = {name: completion[name] for name in ("id", "created", "model")}
    base |= {"object": "chat.completion.chunk", "system_fingerprint": None}
    for choice in completion["choices"]:
        calls = choice["message"].get("tool_calls") or ()
        indexed = [{"index": index, **call} for index, call in enumerate(calls)]
        delta = {**choice["message"], **({"tool_calls": indexed} if indexed else {})}
        for said, reason in ((delta, None), ({}, choice["finish_reason"])):
            part = {"index": choice["index"], "delta": said, "finish_reason": reason}
            yield {**base, "choices": [{**part, "logprobs": None}]}
    if usage:
        yield {**base, "choices": [], "usage": completion["usage"]}


make = _OpenAi
