"""Inspect's provider `belljar`: an OpenAI-compatible model served in a cell."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path
from typing import Any, cast

import httpx2
from inspect_ai.model import GenerateConfig
from inspect_ai.model._providers.openai_compatible import OpenAICompatibleAPI
from openai import APIConnectionError, DefaultAsyncHttpxClient
from typing_extensions import override

import belljar.harness.model_boundary  # noqa: F401 - bounds a server's tool arguments
from belljar.errors import BelljarError
from belljar.harness.session import as_prerequisite_error, current_session
from belljar.model.http import BrokenOffError, Question, ServerAnswer
from belljar.model.serve import load_model
from belljar.policy.loaded import LoadedPolicy


class BelljarModelAPI(OpenAICompatibleAPI):
    """The model `belljar/FILE`; its server's cell is the session's."""

    def __init__(
        self,
        model_name: str,
        base_url: str | None = None,
        api_key: str | None = None,
        config: GenerateConfig = GenerateConfig(),  # noqa: B008 - Inspect's signature
        **model_args: Any,  # noqa: ANN401 - as Inspect's
    ) -> None:
        if base_url or api_key or "http_client" in model_args:
            raise ValueError("a model in a cell has no address, key or client: leave them out")
        try:
            # Now: Inspect changes the directory for a task.
            self.policy = load_model(Path(model_name).absolute())
        except BelljarError as error:
            raise as_prerequisite_error(error) from error
        super().__init__(
            model_name=model_name,
            # No such host is looked up: the transport takes only the path of it.
            base_url="http://model/v1",
            api_key="none",
            config=config,
            service="belljar",
            max_retries=0,  # Inspect's own retries are enough
            **model_args,
        )

    @override
    def _create_http_client(self) -> DefaultAsyncHttpxClient:
        transport = CellTransport(self.policy)  # our own deadline holds: `model.request_timeout`
        # `trust_env`: no proxy of the environment comes between.
        return DefaultAsyncHttpxClient(transport=transport, timeout=None, trust_env=False)

    @override
    def service_model_name(self) -> str:
        return self.policy.policy.name

    @override
    def max_connections(self) -> int:
        return self.policy.policy.model.parallel if self.policy.policy.model else 1

    @override
    def connection_key(self) -> str:
        return self.policy.source  # a model cell has slots of its own

    @override
    def should_retry(self, ex: BaseException) -> Any:
        # An answer that broke off in its body, which the SDK has no error of its own for
        return isinstance(ex, BrokenOffError) or super().should_retry(ex)

    @override
    async def generate(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return await super().generate(*args, **kwargs)
        except APIConnectionError as error:
            # Inspect tries again, but not when the cell is gone, was ended, or took too long
            if isinstance(error.__cause__, BelljarError | TimeoutError):
                raise error.__cause__ from error
            raise


class CellTransport(httpx2.AsyncBaseTransport):
    def __init__(self, policy: LoadedPolicy) -> None:
        self._policy = policy

    @override
    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Raises `BelljarError`, `TimeoutError`, `OSError`; the SDK keeps them as causes."""
        served = await current_session().model_cell(self._policy)
        path = request.url.raw_path.decode("ascii")
        question = Question(method=request.method, path=path, body=await request.aread())

        async def answered() -> AsyncGenerator[ServerAnswer | bytes]:
            async with served.ask(question) as answer:
                yield answer
                while (part := await answer.next_part()) is not None:
                    yield part

        parts = answered()  # the answer's head comes first, then the parts of its body
        answer = cast("ServerAnswer", await anext(parts))
        headers = {b"content-type": answer.content_type}
        return httpx2.Response(answer.status, headers=headers, stream=_Body(parts))


class _Body(httpx2.AsyncByteStream):
    def __init__(self, parts: AsyncGenerator[Any]) -> None:
        self._parts = parts

    @override
    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._parts

    @override
    async def aclose(self) -> None:
        await self._parts.aclose()
