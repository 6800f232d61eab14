"""The life of a model cell: weights, cell, probes, server, requests, probes, proof."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

import anyio
import anyio.to_thread
from anyio.abc import ByteStream

from belljar.capture import Capture, body_of
from belljar.cell import open_cell
from belljar.errors import BelljarError, CellError, HostError, PolicyError
from belljar.events import Actor, Body, Event, JsonValue, Kind, Trust
from belljar.host.settings import PolicyLike, resolve_here
from belljar.image.store import MODEL_IMAGE, Store, find_images
from belljar.model.http import (
    KEEP_BYTES,
    Answer,
    Bounds,
    BrokenOffError,
    Question,
    ServerError,
    ServerViolationError,
    asked,
)
from belljar.model.presets import server_argv
from belljar.model.weights import StoredWeights, find_weights, verify_weights
from belljar.policy import LoadedPolicy, Tier, demanded_tier, with_tier
from belljar.probe.run import breach_of, probe_cell
from belljar.store.home import belljar_home
from belljar.units import format_duration, printable

if TYPE_CHECKING:
    from belljar.cell import BackgroundCommand, Cell
    from belljar.ledger import RunDirectory
    from belljar.policy.serving import ModelBlock

HEALTH_PATH: Final = "/health"
_HEALTH_TIMEOUT_S: Final = 10.0
_HEALTH_INTERVAL_S: Final = 0.2
_MAX_INTERVAL_S: Final = 2.0
"""Each look is a process in the cell, which an emulated one feels."""
_SHOWN_CHARS: Final = 600
_END_SHOWS_S: Final = 1.0
"""A server's connections end a little before its own end is known."""
Shown: TypeAlias = Mapping[str, JsonValue]


def load_model(policy: PolicyLike, *, home: Path | None = None) -> LoadedPolicy:
    """The policy of a model cell, with its weights found in the store. Starts nothing.

    Raises `PolicyError`: it has no `model` block, or is wrong. `HostError`: the store lacks the
    weights or the image.
    """
    loaded = resolve_here(policy)
    model = loaded.policy.model
    if model is None:
        hint = "add a `model` block; docs/model.md has an example"
        raise PolicyError("it is not the policy of a model cell", where=loaded.source, hint=hint)
    if model.gpu is not None:
        what = "this version passes no GPU through: it would open the host's driver to the model"
        raise HostError(what, where=f"{loaded.source}: model.gpu", hint="leave `gpu` out")
    try:
        stored = find_weights(model.weights.sha256, home=home)
    except HostError as error:
        place = model.weights.file or model.weights.directory
        if place is not None:
            error.hint = f"add them: `belljar model add {printable(place)}`"
        raise
    find_images(Store(home or belljar_home()), loaded.policy.images)
    return replace(loaded, weights=stored.data)


def at_least(loaded: LoadedPolicy, tier: Tier | None) -> LoadedPolicy:
    """The same in no lower tier than `tier`, the evaluated samples'."""
    own = demanded_tier(loaded.policy.risk, loaded.policy.tier)
    return loaded if tier is None or tier <= own else with_tier(loaded, tier)


class ModelCell:
    """A model server that answers. Made by `open_model`.

    Attributes:
        cell: where it runs, by `policy`.
        command: the server.
        problem: why it answers no more, once a violation ended it.
    """

    def __init__(
        self,
        cell: Cell,
        policy: LoadedPolicy,
        model: ModelBlock,
        run: RunDirectory,
        command: BackgroundCommand,
    ) -> None:
        self.cell, self.policy, self.model, self.command = cell, policy, model, command
        self.problem: CellError | None = None
        self._run = run
        self._requests = 0
        self._slots = anyio.Semaphore(model.parallel)

    @property
    def name(self) -> str:
        """What the model is called in requests."""
        return self.policy.policy.name

    @asynccontextmanager
    async def ask(self, question: Question) -> AsyncIterator[Answer]:
        """An answer, to be read in the block; on record before it is sent and when it is over.

        At most `parallel` at a time; others wait. Raises `CellError`: the cell died, or broke the
        protocol and was ended; `BrokenOffError`, `TimeoutError`, `OSError`.
        """
        async with self._slots:
            if self.problem is not None:
                raise self.problem
            self._requests += 1
            began, answer = anyio.current_time(), None
            shown: Shown = {"request": self._requests, "path": printable(question.path)}
            self._record(
                Kind.MODEL_REQUEST_STARTED, shown, body_of("request", question.body, KEEP_BYTES)
            )
            bounds = Bounds(answer_bytes=self.model.answer, timeout_s=self.model.request_timeout)
            try:
                async with asked(self.connect, question, bounds) as answer:
                    yield answer
            except BaseException as error:
                self._record_failed(shown, answer, _reason(error))
                if isinstance(error, ServerViolationError):
                    raise await self._ended(error) from error
                if isinstance(error, (OSError, BrokenOffError)):
                    await self._check_server(error)
                raise
            if not answer.is_whole:
                self._record_failed(shown, answer, "the caller gave it up")
                return
            completed: Shown = {
                **shown,
                "status": answer.status,
                **answer.tokens,
                "first_byte_ms": round((answer.first_s - began) * 1000, 3),
                "duration_ms": round((anyio.current_time() - began) * 1000, 3),
            }
            self._record(Kind.MODEL_REQUEST_COMPLETED, completed, answer.kept.body())

    def _record_failed(self, shown: Shown, answer: Answer | None, reason: str) -> None:
        kept = Capture("answer") if answer is None else answer.kept
        status = 0 if answer is None else answer.status
        data: Shown = {**shown, "reason": reason, "status": status}
        self._record(Kind.MODEL_REQUEST_FAILED, data, kept.body())

    def connect(self) -> AbstractAsyncContextManager[ByteStream]:
        """A stream to the server. Its bytes are kept where the guard may look at them."""
        keep_bytes = KEEP_BYTES if self.model.record == "text" else 0
        return self.cell.connect(self.model.port, keep_bytes=keep_bytes)

    def _record(self, kind: Kind, data: Shown, body: Body) -> None:
        is_asked = kind is Kind.MODEL_REQUEST_STARTED
        keeps = self.model.record == "text" and body.total_bytes
        event = Event(
            kind=kind,
            cell_id=self.cell.id,
            actor=Actor.HARNESS if is_asked else Actor.GUEST,
            # Tokens and text are the server's word; sizes and times were seen here.
            trust=Trust.HOST_OBSERVED if is_asked else Trust.GUEST_REPORTED,
            data={**data, "bytes": body.total_bytes, "sha256": body.sha256},
            bodies=(body,) if keeps else (),
        )
        self._run.recorder.record(event)

    async def _check_server(self, error: BaseException) -> None:
        """Raise, now and from now on, if the server has ended."""
        with suppress(TimeoutError):
            output = await self.command.wait(timeout_s=_END_SHOWS_S)
            what = f"the model server ended with status {output.returncode}"
            self.problem = CellError(what, where=f"cell {self.cell.id}")
            raise self.problem from error

    async def _ended(self, error: ServerViolationError) -> CellError:
        """End the cell after a violation; the error for every later request."""
        data: dict[str, JsonValue] = {"error": type(error).__name__, "reason": error.what}
        self._run.recorder.record(
            Event(kind=Kind.PROTOCOL_VIOLATION, cell_id=self.cell.id, data=data)
        )
        self.problem = CellError(
            f"the model cell was ended: {error.what}",
            where=f"cell {self.cell.id}",
            hint="look at what it sent: `belljar ledger show last --kind model`",
        )
        with anyio.CancelScope(shield=True):
            await self.cell.destroy()
        return self.problem


def _reason(error: BaseException) -> str:
    what = error.what if isinstance(error, BelljarError | ServerError) else str(error)
    return printable(f"{type(error).__name__}: {what}", max_chars=300)


@asynccontextmanager
async def open_model(
    policy: LoadedPolicy,
    *,
    run: RunDirectory,
    home: Path | None = None,
    actor: Actor = Actor.HARNESS,
) -> AsyncIterator[ModelCell]:
    """A model cell whose server answers; destroyed with proof when the block is left.

    `policy`: of `load_model`. No task group or cancel scope is open across the yield.

    Raises:
        HostError, PolicyError: the weights are not what was added, or as `open_cell`.
        CellError: the server does not become healthy. ContainmentBreach: a probe found a way out,
            or the destruction something left.
    """
    home = home or belljar_home()
    model = policy.policy.model
    if model is None:
        raise PolicyError("it is not the policy of a model cell", where=policy.source)
    stored = find_weights(model.weights.sha256, home=home)
    await anyio.to_thread.run_sync(verify_weights, stored)
    async with open_cell(policy, run=run, home=home, actor=actor) as cell:
        await _probe(cell, run, "start")
        cpus, name = policy.policy.resources.cpus, policy.policy.name
        argv = server_argv(model, served=stored.served, threads=cpus, name=name)
        try:
            served = ModelCell(cell, policy, model, run, await cell.start(argv))
            await _wait_healthy(served, stored)
            yield served
        finally:
            if cell.destruction is None:
                # Those that a dead cell lacks are the verdict's business
                with anyio.CancelScope(shield=True), suppress(CellError):
                    await _probe(cell, run, "end")
        await anyio.to_thread.run_sync(verify_weights, stored)


async def _probe(cell: Cell, run: RunDirectory, phase: str) -> None:
    report = await probe_cell(cell, recorder=run.recorder, phase=phase)
    if (breach := breach_of(report, cell.id)) is not None:
        raise breach


async def _wait_healthy(served: ModelCell, stored: StoredWeights) -> None:
    """Until the server says that it is ready. Raises `CellError`."""
    timeout_s = served.model.start_timeout
    give_up = anyio.current_time() + timeout_s
    question = Question(method="GET", path=HEALTH_PATH)
    bounds = Bounds(answer_bytes=1 << 20, timeout_s=_HEALTH_TIMEOUT_S)
    why, interval_s = "it did not listen", _HEALTH_INTERVAL_S
    while anyio.current_time() < give_up:
        if not served.command.running:
            raise _not_started("the model server ended", served, stored)
        try:
            async with asked(served.connect, question, bounds) as answer:
                while await answer.next_part() is not None:
                    pass
                if answer.status == 200:
                    return
                why = f"it answered {answer.status}"
        except ServerViolationError as error:
            raise _not_started(error.what, served, stored) from error
        except (OSError, TimeoutError, BrokenOffError) as error:
            why = _reason(error)
        await anyio.sleep(interval_s)
        interval_s = min(1.5 * interval_s, _MAX_INTERVAL_S)
    within = format_duration(timeout_s)
    what = f"the model server did not become healthy in {within}: {why}"
    raise _not_started(what, served, stored)


def _not_started(what: str, served: ModelCell, stored: StoredWeights) -> CellError:
    output = served.command.output()
    shown = printable((output.stderr + output.stdout)[-_SHOWN_CHARS:], max_chars=_SHOWN_CHARS)
    words = f"; it wrote: {shown}" if shown else ""
    return CellError(
        f"{what}{words}",
        where=f"cell {served.cell.id}, weights {printable(stored.name)}",
        hint=f"check `resources.memory` and the image (`{MODEL_IMAGE}` for llama_cpp)",
    )
