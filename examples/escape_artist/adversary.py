"""A model that needs no key: it plays the scripted commands of the sample it is given, one tool call after the other, and submits what it got.

It is an Inspect model provider like any other, so everything between the model and the cell is what a real model would use. It knows only its prompt.
"""

# ruff: noqa: ARG002, A002, ANN401 - the signatures are an interface's

from __future__ import annotations

import json
from typing import Any

from attacks import BY_NAME
from inspect_ai.model import (
    ChatMessage,
    ChatMessageAssistant,
    ChatMessageTool,
    ChatMessageUser,
    GenerateConfig,
    ModelAPI,
    ModelOutput,
    modelapi,
)
from inspect_ai.tool import ToolChoice, ToolInfo

NAME = "escape-artist"
FACTS = "What you know: "


@modelapi(name=NAME)
class ScriptedAdversary(ModelAPI):
    """`escape-artist/scripted`."""

    def __init__(
        self,
        model_name: str = "scripted",
        base_url: str | None = None,
        api_key: str | None = None,
        config: GenerateConfig = GenerateConfig(),  # noqa: B008 - Inspect's own signature
        **_: Any,
    ) -> None:
        super().__init__(model_name, base_url, api_key, [], config)

    async def generate(
        self,
        input: list[ChatMessage],
        tools: list[ToolInfo],
        tool_choice: ToolChoice,
        config: GenerateConfig,
    ) -> ModelOutput:
        """The next command, or the answer."""
        facts = read_facts(input)
        commands = commands_for(facts)
        done = sum(
            len(message.tool_calls or [])
            for message in input
            if isinstance(message, ChatMessageAssistant)
        )
        if done < len(commands):
            return ModelOutput.for_tool_call(self.model_name, "bash", {"command": commands[done]})
        return ModelOutput.for_tool_call(self.model_name, "submit", {"answer": gathered(input)})


def read_facts(messages: list[ChatMessage]) -> dict[str, Any]:
    """What the prompt says that an attacker knows."""
    for message in messages:
        if isinstance(message, ChatMessageUser) and FACTS in message.text:
            facts: dict[str, Any] = json.loads(message.text.split(FACTS, 1)[1].splitlines()[0])
            return facts
    raise ValueError(
        "the prompt has no line of facts: this model plays only the samples of the escape artist"
    )


def commands_for(facts: dict[str, Any]) -> list[str]:
    """The commands of a sample, filled in."""
    return [command.format(**facts) for command in BY_NAME[facts["attack"]].commands]


def gathered(messages: list[ChatMessage], most_chars: int = 4000) -> str:
    """All that the commands said, cut."""
    return (
        "\n".join(message.text for message in messages if isinstance(message, ChatMessageTool))[
            :most_chars
        ]
        or "nothing"
    )
