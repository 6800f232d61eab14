"""Inspect's provider `belljar`: an OpenAI-compatible model whose server is in a cell."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final

import httpx2
from inspect_ai.model import GenerateConfig
from inspect_ai.model._model import RetryDecision
from inspect_ai.model._providers.openai_compatible import OpenAICompatibleAPI
from openai import DefaultAsyncHttpxClient
from typing_extensions import override

from belljar.errors import BelljarError
from belljar.harness.lifecycle import as_prerequisite_error
from belljar.harness.session import current_session
from belljar.model.http import Answer, Question
from belljar.model.serve import load_model
from belljar.policy import LoadedPolicy

_BASE_URL: Final = "http://model/v1"
_NO_KEY: Final = "none"


class BelljarModelAPI(OpenAICompatibleAPI):
    """`belljar/FILE`: the model of a policy with a `model` block.

    The server's cell is the session's; this object only knows the policy.
    """

    def __init__(
        self,
        model_name: str,
        base_url: str | None = None,
        api_key: str | None = None,
        config: GenerateConfig = GenerateConfig(),  # noqa: B008 - Inspect's signature
        **model_args: Any,  # noqa: ANN401 - as Inspect's
    ) -> None:
        if base_url or api_key:
            raise ValueError("a model in a cell has no address and no key: leave both out")
        try:
            # Now: Inspect changes the directory for a task.
            self.policy = load_model(Path(model_name).absolute())
        except BelljarError as error:
            raise as_prerequisite_error(error) from error
        super().__init__(
            model_name=model_name,
            base_url=_BASE_URL,
            api_key=_NO_KEY,
            config=config,
            service="belljar",
            max_retries=0,  # Inspect's own retries are enough
            **model_args,
        )

    @override
    def _create_http_client(self) -> DefaultAsyncHttpxClient:
        transport = CellTransport(self.policy)
        # Our own deadline holds: `model.request_timeout`
        return DefaultAsyncHttpxClient(transport=transport, timeout=None, trust_env=False)

    @override
    def service_model_name(self) -> str:
        """What the server calls it."""
        return self.policy.policy.name

    @override
    def max_connections(self) -> int:
        """As many as the server answers at one time."""
        return self.policy.policy.model.parallel if self.policy.policy.model else 1

    @override
    def connection_key(self) -> str:
        """A model cell has slots of its own."""
        return self.policy.source

    @override
    def should_retry(self, ex: BaseException) -> bool | RetryDecision:
        """Not when the cell or its server is gone, or broke the protocol."""
        cause: BaseException | None = ex
        while cause is not None:
            if isinstance(cause, BelljarError | TimeoutError):
                return RetryDecision.no()
            cause = cause.__cause__
        return super().should_retry(ex)


class CellTransport(httpx2.AsyncBaseTransport):
    """Sends requests through the channel of the session's model cell."""

    def __init__(self, policy: LoadedPolicy) -> None:
        self._policy = policy

    @override
    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Raises `BelljarError`, `TimeoutError`, `OSError`; the SDK keeps them as causes."""
        served = await current_session().model_cell(self._policy)
        question = Question(
            method=request.method,
            path=request.url.raw_path.decode("ascii"),
            headers=request.headers.raw,
            body=await request.aread(),
        )
        stack = AsyncExitStack()
        answer = await stack.enter_async_context(served.ask(question))
        return httpx2.Response(
            answer.status, headers=list(answer.headers), stream=_Body(stack, answer)
        )


class _Body(httpx2.AsyncByteStream):
    """The checked body; its end, however it comes, ends the request."""

    def __init__(self, stack: AsyncExitStack, answer: Answer) -> None:
        self._stack, self._answer = stack, answer

    @override
    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            while (part := await self._answer.next_part()) is not None:
                yield part
        except BaseException as error:
            # It decides what is recorded, and may raise another
            await self._stack.__aexit__(type(error), error, error.__traceback__)
            raise

    @override
    async def aclose(self) -> None:
        await self._stack.aclose()
