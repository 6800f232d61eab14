"""A model that needs no key: it types the script of the sample it is given, and submits what came of it. An Inspect model provider like any other."""

# ruff: noqa: ARG002, A002, ANN401 - the signatures are an interface's

from __future__ import annotations

from typing import Any

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
from plays import SCRIPTS, Script

NAME = "web-range"


@modelapi(name=NAME)
class ScriptedAgent(ModelAPI):
    """`web-range/scripted`."""

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
        commands = script_of(input).commands
        done = sum(
            len(message.tool_calls or [])
            for message in input
            if isinstance(message, ChatMessageAssistant)
        )
        if done < len(commands):
            return ModelOutput.for_tool_call(self.model_name, "bash", {"command": commands[done]})
        said = [message.text for message in input if isinstance(message, ChatMessageTool)]
        return ModelOutput.for_tool_call(
            self.model_name, "submit", {"answer": said[-1][:2000] if said else "nothing"}
        )


def script_of(messages: list[ChatMessage]) -> Script:
    """The script whose goal the prompt has."""
    for message in messages:
        for script in SCRIPTS.values():
            if isinstance(message, ChatMessageUser) and script.goal in message.text:
                return script
    raise ValueError("this model plays only the samples of the web range")
