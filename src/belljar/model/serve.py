"""The life of a model cell: weights, cell, probes, server, requests, probes, proof.

Clients of `belljar model serve` need the token, and have one request a connection.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import anyio
import anyio.to_thread
import h11
from anyio.abc import ByteStream, Listener

from belljar.capture import Capture, body_of
from belljar.cell.health import HealthWatch
from belljar.cell.open import open_cell
from belljar.errors import (
    BelljarError,
    CellError,
    ContainmentBreach,
    HostError,
    PolicyError,
    first_of,
)
from belljar.events import Actor, Body, Event, JsonValue, Kind, Recorder, Trust
from belljar.host.settings import PolicyLike, resolve_here
from belljar.image.store import MODEL_IMAGE, Store, find_images
from belljar.model.http import (
    KEEP_BYTES,
    MAX_HEAD_BYTES,
    BrokenOffError,
    Question,
    ServerAnswer,
    ServerError,
    ServerViolationError,
    ask_server,
    is_api,
)
from belljar.model.weights import StoredWeights, find_weights, verify_weights
from belljar.policy.limits import WEIGHTS_IN_CELL, Tier
from belljar.policy.loaded import LoadedPolicy
from belljar.probe.run import breach_of, probe_cell
from belljar.store.home import belljar_home
from belljar.units import format_duration, printable

if TYPE_CHECKING:
    from belljar.cell.cell import Cell
    from belljar.cell.exec import RunningCommand
    from belljar.ledger.rundir import RunDirectory
    from belljar.policy.sections import ModelBlock

LLAMA_APT: Final = ("libgomp1", "python3-pip")
LLAMA_PIP: Final = ("xllamacpp==2026.10.11549",)
HEALTH: Final = Question(method="GET", path="/health", may_be_empty=True)  # vLLM's is
# One look: a server that loads weights on an emulated processor answers late.
_HEALTH_TIMEOUT_S: Final = 10.0
# Weights load for seconds, and each look is a process in the cell, which an emulated one feels.
_HEALTH_INTERVAL_S: Final = 0.5
# Of the server's last words in an error: enough for its reason, and no page of a log.
_SHOWN_CHARS: Final = 600
_END_SHOWS_S: Final = 1.0  # a server's connections end a little before its own end is known

# llama.cpp's own server, by its Python binding: no user interface, no local file by URL, no file
# that a request could name.
_LLAMA: Final = """\
import sys, threading
import xllamacpp
path, port, context, parallel, threads, name = sys.argv[1:]
p = xllamacpp.CommonParams()
p.model.path = path
p.model_alias = {name}
p.hostnames = ["127.0.0.1"]
p.port = int(port)
p.n_parallel = int(parallel)
p.n_ctx = int(context) * p.n_parallel
p.cpuparams.n_threads = p.cpuparams_batch.n_threads = int(threads)
p.n_threads_http = 2 * p.n_parallel + 2
p.ui = False
p.use_jinja = True
p.offline = True
p.n_gpu_layers = 0
server = xllamacpp.Server(p)
threading.Event().wait()
"""


_PRESETS: Final = {
    "llama_cpp": (
        *("python3", "-c", _LLAMA),
        *("{weights}", "{port}", "{context}", "{parallel}", "{threads}", "{name}"),
    ),
    # It has no network, and looks for its own address and the weights' origin otherwise
    "vllm": (
        *("env", "HF_HUB_OFFLINE=1", "VLLM_NO_USAGE_STATS=1", "VLLM_HOST_IP=127.0.0.1"),
        *("vllm", "serve", "{weights}", "--host", "127.0.0.1", "--port", "{port}"),
        *("--served-model-name", "{name}", "--max-model-len", "{context}"),
        *("--max-num-seqs", "{parallel}"),
    ),
}


def server_argv(model: ModelBlock, *, served: str, threads: int, name: str) -> tuple[str, ...]:
    """Return the server's command. `served` is the weights' path below `/weights`, "" for all of
    it.
    """
    values = {
        "{weights}": f"{WEIGHTS_IN_CELL}/{served}".rstrip("/"),
        "{port}": str(model.port),
        "{context}": str(model.context),
        "{parallel}": str(model.parallel),
        "{threads}": str(threads),
        "{name}": name,
    }
    words = _PRESETS[model.server] if isinstance(model.server, str) else model.server
    return tuple(values.get(word, word) for word in words)


def model_of(policy: LoadedPolicy) -> ModelBlock:
    if policy.policy.model is None:
        hint = "add a `model` block; docs/model.md has an example"
        raise PolicyError("it is not the policy of a model cell", where=policy.source, hint=hint)
    return policy.policy.model


def load_model(policy: PolicyLike, *, home: Path | None = None) -> LoadedPolicy:
    """Resolve the policy of a model cell, with its weights found in the store. Starts nothing.

    Raises `PolicyError`: it has no `model` block, or is wrong. `HostError`: the store lacks the
    weights or the image, or this host a GPU.
    """
    loaded = resolve_here(policy)
    model = model_of(loaded)
    if missing := [path for path in model.devices if not Path(path).is_char_device()]:
        hint = "load NVIDIA's driver (`nvidia-modprobe -u` makes the files), or leave `gpu` out"
        where = f"{loaded.source}: model.gpu"
        raise HostError(f"this host has no {', '.join(missing)}", where=where, hint=hint)
    stored = find_weights(model.weights.sha256, home=home)
    find_images(Store(home or belljar_home()), loaded.policy.images)
    return replace(loaded, weights=stored.path)


class ModelCell:
    """A model server that answers, until it has a `problem`."""

    def __init__(
        self, cell: Cell, policy: LoadedPolicy, command: RunningCommand, recorder: Recorder
    ) -> None:
        self.cell, self.policy, self.command = cell, policy, command
        self.model = model_of(policy)
        self.connect = partial(cell.connect, self.model.port)
        self.health = HealthWatch(cell, recorder.record)
        self.problem: CellError | None = None
        self._recorder, self._requests = recorder, 0
        self._slots = anyio.Semaphore(self.model.parallel)

    async def wait_ended(self) -> CellError:
        """Return the reason of the server's or cell's end."""
        where = f"cell {self.cell.id}"
        try:
            status = (await self.command.wait()).returncode
            problem = CellError(f"the model server ended with status {status}", where=where)
        except BelljarError as error:
            problem = CellError(error.what, where=where, hint=error.hint)
        self.problem = self.problem or problem  # a violation's, which ended it
        return self.problem

    @asynccontextmanager
    async def ask(self, question: Question) -> AsyncIterator[ServerAnswer]:
        """Give an answer to read in the block; it is on record before it is sent and when it is
        over.

        At most `parallel` are asked at a time; others wait. Raises `ValueError`: it is no request
        to the model's API; `CellError`: the cell died, or broke the protocol and was ended;
        `BrokenOffError`, `TimeoutError`, `OSError`.
        """
        if not is_api(question.method, question.path):
            raise ValueError("only GET and POST of /v1/… reach the model")
        async with self._slots:
            if self.problem is not None:
                raise self.problem
            self._requests += 1
            began, answer = anyio.current_time(), None
            shown: dict[str, JsonValue] = {"request": self._requests, "path": question.path}
            body = body_of("request", question.body, KEEP_BYTES)
            self._record(Kind.MODEL_REQUEST_STARTED, shown, body)
            max_bytes, timeout_s = self.model.answer, self.model.request_timeout
            asking = ask_server(self.connect, question, max_bytes=max_bytes, timeout_s=timeout_s)
            failure = "the caller gave it up"
            try:
                async with asking as answer:
                    yield answer
            except Exception as error:
                failure = _reason(error)
                if isinstance(error, ServerViolationError):
                    raise await self.end(error) from error
                if isinstance(error, OSError | BrokenOffError):
                    with anyio.move_on_after(_END_SHOWS_S):
                        raise await self.wait_ended() from error
                    await self.health.look("call")
                raise
            finally:
                kept = Capture("answer") if answer is None else answer.kept
                shown["status"] = 0 if answer is None else answer.status
                kind = Kind.MODEL_REQUEST_FAILED
                if answer is not None and answer.is_whole:
                    kind = Kind.MODEL_REQUEST_COMPLETED
                    shown |= answer.tokens
                    shown["duration_ms"] = round((anyio.current_time() - began) * 1000, 3)
                else:
                    shown["reason"] = failure
                self._record(kind, shown, kept.body())

    def _record(self, kind: Kind, data: Mapping[str, JsonValue], body: Body) -> None:
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
        self._recorder.record(event)

    async def end(self, error: ServerViolationError) -> CellError:
        """End the cell; return the error of later requests."""
        reason = f"the model server broke the protocol: {error.what}"
        self.cell.note(Kind.PROTOCOL_VIOLATION, {"error": type(error).__name__, "reason": reason})
        hint = "look at what it sent: `belljar ledger show last --kind model`"
        what = f"{reason}; its cell was ended"
        self.problem = CellError(what, where=f"cell {self.cell.id}", hint=hint)
        with anyio.CancelScope(shield=True):
            await self.cell.destroy()
        return self.problem


def _reason(error: Exception) -> str:
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
    """Open a model cell whose server answers; leaving the block destroys it with proof.

    `policy` comes from `load_model`. No task group or cancel scope is open across the yield. Raises
    as `open_cell`; `HostError` for weights that are not what was added, `CellError` when the server
    does not become healthy, `ContainmentBreach` for a way out or something left.
    """
    home, model = home or belljar_home(), model_of(policy)
    stored = find_weights(model.weights.sha256, home=home)
    stored = await anyio.to_thread.run_sync(verify_weights, stored)
    async with open_cell(policy, run=run, home=home, actor=actor) as cell:
        await _probe(cell, run, "start")
        cpus, name = policy.policy.resources.cpus, policy.policy.name
        argv = server_argv(model, served=stored.served, threads=cpus, name=name)
        served = ModelCell(cell, policy, await cell.start(argv), run.recorder)
        failure: BaseException | None = None
        try:
            try:
                await _wait_healthy(served, stored)
                await served.health.take_baseline()
                yield served
            finally:  # also when `model serve` is interrupted
                with anyio.CancelScope(shield=True), suppress(CellError):
                    if cell.destruction is None:  # the verdict knows that a dead one has no probe
                        await served.health.look("end")
                        await _probe(cell, run, "end")
        except BaseException as error:
            failure = error
            raise
        finally:
            in_vm = cell.tier == Tier.MICROVM.value
            look = partial(verify_weights, stored, has_run=True, in_vm=in_vm)
            try:
                with anyio.CancelScope(shield=True):
                    await anyio.to_thread.run_sync(look)
            except HostError:  # a breach is the worse of both
                if failure is None or first_of(failure, ContainmentBreach) is None:
                    raise


async def _probe(cell: Cell, run: RunDirectory, phase: str) -> None:
    report = await probe_cell(cell, recorder=run.recorder, phase=phase)
    if (breach := breach_of(report, cell.id)) is not None:
        raise breach


async def _wait_healthy(served: ModelCell, stored: StoredWeights) -> None:
    timeout_s = served.model.start_timeout
    give_up = anyio.current_time() + timeout_s
    why = "it did not listen"
    while anyio.current_time() < give_up and served.command.running:
        asking = ask_server(
            served.connect, HEALTH, max_bytes=KEEP_BYTES, timeout_s=_HEALTH_TIMEOUT_S
        )
        try:
            async with asking as answer:
                while await answer.next_part() is not None:
                    pass
                if answer.status == 200:
                    return
                why = f"it answered {answer.status}"
        except ServerViolationError as error:
            raise await served.end(error) from error
        except (OSError, BrokenOffError) as error:
            why = _reason(error)
        await anyio.sleep(_HEALTH_INTERVAL_S)
    what = f"the model server did not become healthy in {format_duration(timeout_s)}: {why}"
    if not served.command.running:
        what = "the model server ended"
    output = served.command.output()
    wrote = printable((output.stderr + output.stdout)[-_SHOWN_CHARS:], max_chars=_SHOWN_CHARS)
    raise CellError(
        f"{what}: it wrote: {wrote}" if wrote else what,
        where=f"cell {served.cell.id}, weights {printable(stored.name)}",
        hint=f"check `resources.memory` and the image (`{MODEL_IMAGE}` for llama_cpp)",
    )


# ---- clients of `belljar model serve`

# A long conversation with pictures in it; more would be held in memory for each client.
MAX_BODY_BYTES: Final = 64 << 20
# Each holds a request of `MAX_BODY_BYTES` in memory at worst.
MAX_CLIENTS: Final = 64
# A client that sends nothing gives its place to others.
_CLIENT_TIMEOUT_S: Final = 60.0


class RequestRefusedError(Exception):
    """The answer's status and reason are its arguments."""


async def answer_client(client: ByteStream, served: ModelCell, token: str) -> None:
    http = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD_BYTES)

    async def send(*events: h11.Event) -> None:
        with anyio.fail_after(_CLIENT_TIMEOUT_S):  # a client that takes nothing gives its place up
            await client.send(b"".join(http.send(each) or b"" for each in events))

    def head(status: int, content_type: bytes) -> h11.Response:
        headers = [(b"Content-Type", content_type), (b"Connection", b"close")]
        return h11.Response(status_code=status, headers=headers)

    # What is suppressed is the client's own business
    with suppress(anyio.BrokenResourceError, anyio.EndOfStream, h11.ProtocolError, OSError):
        async with client:
            try:
                with anyio.fail_after(_CLIENT_TIMEOUT_S):
                    question = await _read_question(client, http, token)
                async with served.ask(question) as answer:
                    part = await answer.next_part()  # an error before it has a status of its own
                    await send(head(answer.status, answer.content_type))
                    while part is not None:
                        await send(h11.Data(data=part))
                        part = await answer.next_part()
                await send(h11.EndOfMessage())  # its end is on record
            except (RequestRefusedError, CellError, ServerError, OSError) as error:
                if http.our_state in (h11.IDLE, h11.SEND_RESPONSE):
                    status, why = 502, getattr(error, "what", type(error).__name__)
                    if isinstance(error, RequestRefusedError):
                        status, why = error.args
                    body = json.dumps({"error": {"message": why, "type": "belljar"}}).encode()
                    answered = head(status, b"application/json")
                    await send(answered, h11.Data(data=body), h11.EndOfMessage())


async def _read_question(client: ByteStream, http: h11.Connection, token: str) -> Question:
    """Raise `RequestRefusedError`, or `EndOfStream` for no request."""
    method, path, body = "", "", bytearray()
    while not isinstance(event := http.next_event(), h11.EndOfMessage):
        if event is h11.NEED_DATA:
            http.receive_data(await client.receive(MAX_HEAD_BYTES))
        elif isinstance(event, h11.Request):
            given = dict(event.headers).get(b"authorization", b"")
            if not hmac.compare_digest(given, f"Bearer {token}".encode()):
                raise RequestRefusedError(401, "give the token as `Authorization: Bearer TOKEN`")
            method, path = event.method.decode(), event.target.decode(errors="replace")
            if not is_api(method, path):
                raise RequestRefusedError(404, "only GET and POST of /v1/… reach the model")
        elif isinstance(event, h11.Data):
            body += event.data
            if len(body) > MAX_BODY_BYTES:
                raise RequestRefusedError(413, "the request is too large")
        else:
            raise anyio.EndOfStream
    return Question(method=method, path=path, body=bytes(body))


async def serve_clients(listener: Listener[Any], served: ModelCell, token: str) -> None:
    """Serve until cancelled. Raises `CellError` at the model's end."""
    clients = anyio.CapacityLimiter(MAX_CLIENTS)

    async def answer(client: ByteStream) -> None:
        if clients.available_tokens < 1:
            await client.aclose()
            return
        async with clients:
            await answer_client(client, served, token)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, answer)
        problem = await served.wait_ended()
        tasks.cancel_scope.cancel()
    raise problem
