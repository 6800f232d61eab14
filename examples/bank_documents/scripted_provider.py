"""A provider's model that needs no key. It keeps whatever it is sent in a file, so that anybody can look.

It answers a question by the line of the document that the question names, if it was sent that line.
"""

# ruff: noqa: ARG002, A002, ANN401 - the signatures are an interface's

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from inspect_ai.model import (
    ChatMessage,
    ChatMessageUser,
    GenerateConfig,
    ModelAPI,
    ModelOutput,
    modelapi,
)
from inspect_ai.tool import ToolChoice, ToolInfo

NAME = "bank"


@modelapi(name=NAME)
class ScriptedProvider(ModelAPI):
    """`bank/scripted`. `keep`: the file that gets a line of JSON for each call."""

    def __init__(
        self,
        model_name: str = "scripted",
        base_url: str | None = None,
        api_key: str | None = None,
        config: GenerateConfig = GenerateConfig(),  # noqa: B008 - Inspect's own signature
        keep: str = "sent.jsonl",
        **_: Any,
    ) -> None:
        super().__init__(model_name, base_url, api_key, [], config)
        self.kept = Path(keep).absolute()
        self.kept.write_bytes(b"")

    async def generate(
        self,
        input: list[ChatMessage],
        tools: list[ToolInfo],
        tool_choice: ToolChoice,
        config: GenerateConfig,
    ) -> ModelOutput:
        """The value of the line that the last question names, or "noted"."""
        sent = {
            "messages": [message.model_dump() for message in input],
            "tools": [tool.model_dump() for tool in tools],
        }
        with self.kept.open("a", encoding="utf-8") as file:
            file.write(json.dumps(sent, ensure_ascii=False) + "\n")
        last = input[-1]
        answer = read_answer(last.text) if isinstance(last, ChatMessageUser) else "noted"
        return ModelOutput.from_content(self.model_name, answer)


def read_answer(asked: str) -> str:
    """What stands on the document's line whose label is in the question, which is the last line."""
    *document, question = asked.splitlines()
    found = [line.partition(": ") for line in document if ": " in line]
    answers = [value for label, _, value in found if f"the {label}?".lower() in question.lower()]
    return answers[0] if answers else "it does not say"
