"""The model boundary: what `belljar run` is about to send to a model's provider is looked at first.

What a provider is told leaves this host for good, so a policy can have it redacted or the sample
stopped (`guard.action.model`). Each text is looked at once; what was found is on record.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import anyio.to_thread
from inspect_ai.hooks import BeforeModelGenerate, Hooks, hooks
from inspect_ai.model import ChatMessage, ContentReasoning, ContentText
from inspect_ai.util import LimitExceededError
from typing_extensions import override

from belljar.cell.guarded import GuardedRecorder
from belljar.harness.provider import BelljarSandboxEnvironment
from belljar.harness.session import Session
from belljar.signals.observe import model_part

STOPPED: Final = "the policy's guard found protected data in what was to be sent to the model"
_session: Session | None = None


@hooks(name="belljar_model_boundary", description="Looks at what is sent to a model's provider.")
class LookAtMessages(Hooks):
    """Called before each call of a model, with the messages that its provider will be sent."""

    @override
    def enabled(self) -> bool:
        """Only while `belljar run` is on."""
        return _session is not None

    @override
    async def on_before_model_generate(self, data: BeforeModelGenerate) -> None:
        """What may not leave is taken out, or ends the sample: whatever fails here ends it too."""
        session, environment = _session, sample_environment()
        if session is None or environment is None or environment.cell.guard is None:
            return
        try:
            cell, guard = environment.cell, environment.cell.guard
            for index, message in enumerate(data.input):
                data.input[index] = await _passed(message, guard, cell.id)
        except LimitExceededError:
            raise
        except Exception as error:  # noqa: BLE001 - what can't be looked at is not sent
            await session.end_sample(error, where="model boundary")


async def _passed(message: ChatMessage, guard: GuardedRecorder, cell_id: str) -> ChatMessage:
    """The message as it may be sent. Raises `LimitExceededError` where the sample ends."""
    if isinstance(message.content, str):
        text = await _passed_text(message.content, guard, cell_id)
        return message if text == message.content else message.model_copy(update={"content": text})
    contents = []
    for content in message.content:
        if isinstance(content, ContentText):
            text = await _passed_text(content.text, guard, cell_id)
            content = content.model_copy(update={"text": text})
        elif isinstance(content, ContentReasoning):
            text = await _passed_text(content.reasoning, guard, cell_id)
            content = content.model_copy(update={"reasoning": text})
        contents.append(content)
    same = contents == list(message.content)
    return message if same else message.model_copy(update={"content": contents})


async def _passed_text(text: str, guard: GuardedRecorder, cell_id: str) -> str:
    key = hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
    if key not in guard.passed:
        part = model_part(text.encode("utf-8", "surrogatepass"))
        let_out = await anyio.to_thread.run_sync(lambda: guard.let_out(part, cell_id=cell_id))
        if let_out.stopped:
            raise LimitExceededError("custom", value=1, limit=0, message=STOPPED)
        guard.passed[key] = None if let_out.data == part.data else let_out.data
    passed = guard.passed[key]
    return text if passed is None else passed.decode("utf-8", "replace")


def sample_environment() -> BelljarSandboxEnvironment | None:
    """Of the sample that runs here; None where none of ours does."""
    from inspect_ai.util._sandbox.context import sandbox_environments_context_var

    for environment in (sandbox_environments_context_var.get(None) or {}).values():
        ours = getattr(environment, "_sandbox", environment)
        if isinstance(ours, BelljarSandboxEnvironment):
            return ours
    return None


@contextmanager
def model_boundary(session: Session) -> Iterator[None]:
    """Look at what models are sent inside the block."""
    global _session
    _session = session
    try:
        yield
    finally:
        _session = None
