"""The stand-in `openai`: questions reach the owner checked and bounded, answers have the API's
shape, and so have errors."""

from __future__ import annotations

import json
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fakes.asgi import Client, Reply, context

from belljar.network.gateway.context import MAX_ASKED_BYTES
from belljar.network.stand_ins import openai

KEY = {"authorization": "Bearer sk-x"}
ASK = {"model": "any", "messages": [{"role": "user", "content": "hi"}]}
TOOL_CALL = {
    "id": "call_1",
    "type": "function",
    "function": {"name": "add", "arguments": '{"a": 1, "b": 22222222222222222222222222}'},
}


class Owner:
    """Answers every question with one message, and keeps the questions."""

    def __init__(self, message: dict[str, Any] | None = None, **more: object) -> None:
        self.questions: list[dict[str, Any]] = []
        said = message or {"content": "Hello, world: this is a longer answer."}
        reason = "tool_calls" if "tool_calls" in said else "stop"
        choice = {"index": 0, "message": {"role": "assistant", **said}, "finish_reason": reason}
        answer = {"object": "chat.completion", "created": 1_800_000_000, "choices": [choice]}
        self.reply = json.dumps({**answer, **more}).encode()

    async def __call__(self, kind: str, body: bytes) -> bytes:
        """The same answer each time."""
        assert kind == "chat"
        self.questions.append(json.loads(body))
        return self.reply


def client(owner: Any = None, **settings: Any) -> Client:  # noqa: ANN401 - anything that answers
    """An endpoint."""
    return Client(openai.make(context(settings, ask=owner or Owner())))


def events(reply: Reply) -> list[Any]:
    """The events of a stream."""
    lines = [
        line.removeprefix("data: ") for line in reply.text.split("\n") if line.startswith("data: ")
    ]
    return [line if line == "[DONE]" else json.loads(line) for line in lines]


def test_a_stream_adds_up_to_the_answer() -> None:
    """Text and tool calls are whole, and the last event is `[DONE]`."""
    owner = Owner(
        {
            "role": "assistant",
            "content": "some text that is longer than one piece",
            "tool_calls": [TOOL_CALL],
        },
        usage={"total_tokens": 3},
    )
    reply = client(owner).ask(
        "POST",
        "/v1/chat/completions",
        json={**ASK, "stream": True, "stream_options": {"include_usage": True}},
        headers=KEY,
    )
    assert reply.header("content-type").startswith("text/event-stream")
    *chunks, last = events(reply)
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks if chunk["choices"]]
    calls = [delta["tool_calls"][0] for delta in deltas if "tool_calls" in delta]
    assert (
        "".join(delta.get("content") or "" for delta in deltas)
        == "some text that is longer than one piece"
    )
    arguments = "".join(call["function"]["arguments"] for call in calls)
    assert arguments == TOOL_CALL["function"]["arguments"]  # type: ignore[index]
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks if chunk["choices"]][
        -1
    ] == "tool_calls"
    assert (chunks[-1]["choices"], chunks[-1]["usage"], last) == ([], {"total_tokens": 3}, "[DONE]")


WRONG: list[tuple[Any, int, str]] = [
    ([], 400, "parse"),
    ({}, 400, "model"),
    ({"model": "m"}, 400, "'messages'"),
    ({"model": "m", "messages": []}, 400, "'messages'"),
    ({"model": "m", "messages": ["x"]}, 400, "messages[0]"),
    ({"model": "m", "messages": [{"role": "boss", "content": "x"}]}, 400, "messages[0]"),
    ({"model": "m", "messages": [{"role": "user"}]}, 400, "messages[0]"),
    ({"model": "m", "messages": [{"role": "user", "content": 3}]}, 400, "messages[0]"),
    ({**ASK, "tools": [{}]}, 400, "tools[0]"),
    ({**ASK, "messages": ASK["messages"] * 5000}, 400, "4096"),  # type: ignore[operator]
]


@pytest.mark.parametrize(("body", "status", "word"), WRONG)
def test_a_wrong_question_reaches_nobody(body: Any, status: int, word: str) -> None:  # noqa: ANN401 - any JSON value
    """It is refused in the API's shape, and the owner isn't asked."""
    owner = Owner()
    reply = client(owner).ask("POST", "/v1/chat/completions", json=body, headers=KEY)
    assert (reply.status, owner.questions) == (status, [])
    assert set(reply.json["error"]) == {"message", "type", "param", "code"}
    assert word in reply.json["error"]["message"]


def test_keys_and_models() -> None:
    """Any key will do unless the policy names one; any model is taken, and one is shown."""
    assert client().get("/v1/models").status == 401
    for settings, name in (({}, "gpt-4o"), ({"model": "shown"}, "shown")):
        listed = client(**settings).ask("GET", "/v1/models", headers=KEY)
        assert [each["id"] for each in listed.json["data"]] == [name]
    named = client(model="m2", api_key="sk-right")
    wrong = named.ask("GET", "/v1/models", headers={"authorization": "Bearer sk-secret-and-wrong"})
    assert (wrong.status, wrong.json["error"]["code"]) == (401, "invalid_api_key")
    assert "secret" not in wrong.text
    right = {"authorization": "Bearer sk-right"}
    assert named.ask("GET", "/v1/models/m2", headers=right).json["id"] == "m2"
    lost = named.ask("GET", "/v1/models/m3", headers=right)
    assert (lost.status, lost.json["error"]["code"]) == (404, "model_not_found")
    assert named.ask("POST", "/v1/chat/completions", json=ASK, headers=right).status == 200


@pytest.mark.parametrize(
    "reply",
    [
        b"",
        b"[]",
        b"{}",
        b'{"choices": []}',
        b'{"choices": [3]}',
        b'{"choices": [{"message": null}]}',
        b"[" * 100_000,
    ],
)
def test_an_owner_who_fails_is_a_server_error(reply: bytes) -> None:
    """What is no completion, and a refusal, is the API's 500 without a word of the owner's; the
    client is asked not to try again."""
    owner = Owner()
    owner.reply = reply

    async def refuse(kind: str, body: bytes) -> bytes:
        raise ValueError("budget of the harness is used up")

    for asked in (owner, refuse):
        answer = client(asked).ask("POST", "/v1/chat/completions", json=ASK, headers=KEY)
        assert (answer.status, answer.json["error"]["type"], answer.header("x-should-retry")) == (
            500,
            "server_error",
            "false",
        )
        assert "harness" not in answer.text


def test_a_question_above_the_bound_is_refused() -> None:
    """413: above what may come, and above what the owner may be asked, which can be longer than
    what came."""
    reply = client().ask("POST", "/v1/chat/completions", chunks=[b"x" * (1 << 20)] * 5, headers=KEY)
    assert reply.status == 413
    owner = Owner()
    long_when_written = json.dumps(ASK).encode()[:-1] + b', "bias": [%s]}' % b",".join(
        [b"1e15"] * 300_000
    )
    assert len(long_when_written) < MAX_ASKED_BYTES
    reply = client(owner).ask(
        "POST", "/v1/chat/completions", chunks=[long_when_written], headers=KEY
    )
    assert (reply.status, owner.questions) == (413, [])


def test_questions_that_wait_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """More than the bound at one time are refused with 429; afterwards there is room again."""
    monkeypatch.setattr(openai, "MAX_WAITING", 1)

    async def run() -> list[int]:
        release, asked, statuses = anyio.Event(), anyio.Event(), []

        async def owner(kind: str, body: bytes) -> bytes:
            asked.set()
            await release.wait()
            return Owner().reply

        app = client(owner)

        async def first() -> None:
            statuses.append(
                (await app.send("POST", "/v1/chat/completions", json=ASK, headers=KEY)).status
            )

        async with anyio.create_task_group() as group:
            group.start_soon(first)
            await asked.wait()
            await first()
            release.set()
        await first()
        return statuses

    assert anyio.run(run) == [429, 200, 200]


JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.integers() | st.text(max_size=5),
    lambda i: (
        st.lists(i, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["role", "content", "type", "text", "tools", "function", "name", "output"]
            ),
            i,
            max_size=4,
        )
    ),
)


@given(
    st.dictionaries(
        st.sampled_from(
            [
                "messages",
                "input",
                "tools",
                "tool_choice",
                "stream",
                "stream_options",
                "n",
                "instructions",
            ]
        ),
        JSON,
    ),
    st.sampled_from(["/v1/chat/completions", "/v1/responses"]),
)
def test_any_question_is_answered(body: dict[str, Any], path: str) -> None:
    """Whatever is asked is answered or refused as a wrong question; never a server's error."""
    assert client().ask("POST", path, json={"model": "m", **body}, headers=KEY).status in (
        200,
        400,
        404,
    )
