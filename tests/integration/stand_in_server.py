"""A stand-in over uvicorn on loopback, as a program: `stand_in_server.py KIND SETTINGS-JSON
DIRECTORY`. Writes its port; ends when its standard input does."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
from pathlib import Path
from typing import Any

from tests.fakes.asgi import context, serve

from belljar.network.stand_ins import check, make


async def answer(kind: str, body: bytes) -> bytes:
    """The owner's answer: what was asked, in capitals; a tool call where there are tools."""
    question = json.loads(body)
    said = str(question["messages"][-1]["content"]).upper()
    call = {
        "id": "call_1",
        "type": "function",
        "function": {"name": "add", "arguments": '{"a": 1}'},
    }
    made: dict[str, Any] = {"role": "assistant", "content": said}
    if question.get("tools"):
        made |= {"content": None, "tool_calls": [call]}
    reason = "tool_calls" if question.get("tools") else "stop"
    return json.dumps(
        {
            "object": "chat.completion",
            "created": 1_800_000_000,
            "choices": [{"index": 0, "message": made, "finish_reason": reason}],
            "usage": {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3},
        }
    ).encode()


async def main(kind: str, settings: dict[str, Any], directory: Path) -> None:
    """Serve until the standard input ends."""
    problems = check(kind, settings, directory)
    if problems:
        raise SystemExit("\n".join(map(str, problems)))
    listener = socket.create_server(("127.0.0.1", 0))
    ended = asyncio.Event()
    asyncio.get_running_loop().add_reader(0, lambda: ended.set() if not os.read(0, 4096) else None)
    print(listener.getsockname()[1], flush=True)
    app = make(kind, context(settings, directory, ask=answer))
    await serve(app, listener, ended.wait)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], json.loads(sys.argv[2]), Path(sys.argv[3])))
