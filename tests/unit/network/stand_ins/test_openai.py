"""The stand-in `openai`."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fakes.web import Client, Reply, context

from belljar.network.stand_ins import openai
from belljar.network.stand_ins.web import MAX_ASKED_BYTES

KEY = {"authorization": "Bearer sk-x"}
CHAT = "/v1/chat/completions"
ASK: dict[str, Any] = {"model": "any", "messages": [{"role": "user", "content": "hi"}]}
ARGUMENTS = '{"a": 1, "b": 22222222222222222222222222}'
CALL = {"id": "c", "type": "function", "function": {"name": "add", "arguments": ARGUMENTS}}


class Owner:
    """Answers every question with one message, and keeps the questions."""

    def __init__(self, message: dict[str, Any] | None = None, **more: object) -> None:
        self.questions: list[dict[str, Any]] = []
        said = message or {"content": "Hello, world: this is a longer answer."}
        reason = "tool_calls" if "tool_calls" in said else "stop"
        choice = {"index": 0, "message": {"role": "assistant", **said}, "finish_reason": reason}
        answer = {"object": "chat.completion", "created": 1_800_000_000, "choices": [choice]}
        self.reply = json.dumps({**answer, **more}).encode()

    async def __call__(self, body: bytes) -> bytes:
        self.questions.append(json.loads(body))
        return self.reply


def client(owner: Any = None, **settings: Any) -> Client:  # noqa: ANN401 - anything that answers
    return Client(openai.make(context(settings, ask=owner or Owner())))


def asked(owner: Any = None, **how: Any) -> Reply:  # noqa: ANN401 - anything that answers
    return client(owner).ask("POST", CHAT, headers=KEY, **how)


def test_a_stream_adds_up_to_the_answer() -> None:
    """Text and tool calls are whole, and the last event is `[DONE]`."""
    text, usage = "some text that is longer than one piece", {"total_tokens": 3}
    message = {"role": "assistant", "content": text, "tool_calls": [CALL]}
    options = {"stream": True, "stream_options": {"include_usage": True}}
    reply = asked(Owner(message, usage=usage), json={**ASK, **options})
    assert reply.header("content-type").startswith("text/event-stream")
    *lines, last = [line[6:] for line in reply.text.split("\n") if line.startswith("data: ")]
    chunks = [json.loads(line) for line in lines]
    choices = [chunk["choices"][0] for chunk in chunks if chunk["choices"]]
    deltas = [choice["delta"] for choice in choices]
    calls = [delta["tool_calls"][0] for delta in deltas if "tool_calls" in delta]
    assert "".join(delta.get("content") or "" for delta in deltas) == text
    assert "".join(call["function"]["arguments"] for call in calls) == ARGUMENTS
    assert choices[-1]["finish_reason"] == "tool_calls"
    assert (chunks[-1]["choices"], chunks[-1]["usage"], last) == ([], usage, "[DONE]")


@pytest.mark.parametrize(
    "body",
    [[], {}, {"model": "m"}, {"model": "m", "messages": []}, {"model": "m", "messages": ["x"]}],
)
def test_a_wrong_question_reaches_nobody(body: Any) -> None:  # noqa: ANN401 - any JSON value
    """It is refused in the API's shape, and the owner isn't asked."""
    reply = asked(owner := Owner(), json=body)
    assert (reply.status, owner.questions) == (400, [])
    assert set(reply.json["error"]) == {"message", "type", "param", "code"}


def test_an_owner_who_fails_is_a_server_error() -> None:
    """What is no completion, and a refusal, is the API's 500 without a word of the owner's."""

    async def refuse(body: bytes) -> bytes:
        raise ValueError("budget of the harness is used up")

    owners: list[Any] = [refuse]
    nothing = [b'{"choices": %s}' % choices for choices in (b"[]", b"[3]", b'[{"message": null}]')]
    for reply in (b"", b"[]", b"{}", *nothing, b"[" * 100_000):
        owners.append(Owner())
        owners[-1].reply = reply
    for owner in owners:
        answer = asked(owner, json=ASK)
        error = (answer.status, answer.json["error"]["type"], answer.header("x-should-retry"))
        assert error == (500, "server_error", "false")
        assert "harness" not in answer.text


def test_a_question_above_the_bound_is_refused() -> None:
    """413: above what may come, and above what the owner may be asked, which can be longer."""
    assert asked(body=b"x" * (5 << 20)).status == 413
    many = b",".join([b"1e15"] * 300_000)
    long_when_written = json.dumps(ASK).encode()[:-1] + b', "bias": [%s]}' % many
    assert len(long_when_written) < MAX_ASKED_BYTES
    owner = Owner()
    assert (asked(owner, body=long_when_written).status, owner.questions) == (413, [])


NAMES = ["role", "content", "type", "text", "tools", "function", "name", "output"]
FIELDS = ["messages", "input", "tools", "tool_choice", "stream", "stream_options", "n"]
JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.integers() | st.text(max_size=5),
    lambda i: st.lists(i, max_size=3) | st.dictionaries(st.sampled_from(NAMES), i, max_size=4),
)


@given(
    st.dictionaries(st.sampled_from([*FIELDS, "instructions"]), JSON),
    st.sampled_from([CHAT, "/v1/responses"]),
)
def test_any_question_is_answered(body: dict[str, Any], path: str) -> None:
    """Whatever is asked is answered or refused as a wrong question; never a server's error."""
    reply = client().ask("POST", path, json={"model": "m", **body}, headers=KEY)
    assert reply.status in (200, 400, 404)
