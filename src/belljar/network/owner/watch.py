"""The owner's ear on one range: a thread that reads what its gateway and its supervisor say,
records, acknowledges, and sees when one of them ends.

What the gateway says is checked as a guest's word is. Whatever is wrong (a violation, a rule that
changed, an end, an event that can't be recorded) ends the range once: both processes are killed
first, then it is said why.
"""

from __future__ import annotations

import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final

from belljar.errors import (
    BelljarError,
    CellError,
    ContainmentBreach,
    HostError,
    LedgerError,
    ProtocolViolation,
)
from belljar.events import Event, JsonValue, Kind, Recorder, Trust
from belljar.isolation.hold import Order, killed_error
from belljar.network import ipc
from belljar.network.capture.accounting import Accounts
from belljar.network.ipc import (
    DIAL,
    MAX_DATAGRAM_BYTES,
    EventDecoder,
    GatewayEnded,
    GatewayEvent,
    GatewayReady,
    GatewayRequest,
    Heartbeat,
    WireViolation,
    encode_ack,
    encode_end,
    encode_reply,
)
from belljar.network.owner.budget import Budget
from belljar.network.owner.dial import Dialler, NotAnUpstream
from belljar.network.owner.processes import wait_readable
from belljar.network.owner.range_state import (
    Answer,
    BoundedExecutor,
    Heard,
    HeartbeatTimeout,
    Lines,
    RangeOverError,
)
from belljar.units import format_size, printable

_MAX_DIAGNOSIS_BYTES: Final = 16 << 10
_SEND_TIMEOUT_S: Final = 10
_LISTEN_S: Final = 1.0
_TELL_S: Final = 1.0
_LAST_WORD_S: Final = 2.0
"""How long an owner waits at a range's end, and how much of it a gateway has to tell what is in
progress.
"""
_MAX_QUESTIONS: Final = 64
"""Of dials, and of all others: a gateway of ours has fewer unanswered (`gateway.bounds`)."""
_QUESTIONS_AT_ONCE: Final = 8
_FLOW_FIELDS: Final = frozenset(
    {
        "cell",
        "protocol",
        "address",
        "port",
        "verdict",
        "reason",
        "bytes",
        "count",
        "name",
        "source",
        "destinations_not_listed",
    }
)
RECORD_LIMIT: Final = "range_record"
"""The name, in `limit.hit`, of what a range may put on record whole."""
_CUT_FROM_HERE: Final = (
    "events of this range are cut down from here on: no bytes of bodies, no lists, short texts; a "
    "quarter more ends the range"
)
_RECORD_HINT: Final = (
    "its ledger tells what fills it; `network.record.events` in the policy allows more"
)
_ENDED_HINT: Final = (
    "nothing of the range runs on: start again; `belljar ledger show last` tells what came before"
)


class Watch:
    """One range's thread.

    `closing`: the range is being destroyed, so the ends of its processes are no deaths.
    """

    def __init__(
        self,
        range_id: str,
        lines: Lines,
        recorder: Recorder,
        *,
        on_death: Callable[[BelljarError], None],
        answer: Answer | None,
        dialler: Dialler,
        budget: Budget,
        timeout_s: float,
        killed: Callable[[], Order | None] = lambda: None,
    ) -> None:
        """`killed`: the kill order over the range, which explains why its processes end."""
        self.heard = Heard()
        self.error: BelljarError | None = None
        self.closing = False
        self._range, self._lines, self._recorder = range_id, lines, recorder
        self._on_death, self._answer, self._dialler = on_death, answer, dialler
        self._decoder = EventDecoder()
        self._open = {lines.control, lines.events}
        self._is_ending = self._has_ended = False
        self._killed = killed
        self._unreported = 0
        self._next_look_s = 0.0
        self._last_word = threading.Event()
        self._said = b""
        self._budget = budget
        self._accounts = Accounts()
        self._send_lock, self._dying, self._recording = (
            threading.Lock(),
            threading.Lock(),
            threading.Lock(),
        )
        self._heartbeats = {who: HeartbeatTimeout(timeout_s) for who in ("supervisor", "gateway")}
        self._questions, self._dials = (
            BoundedExecutor(
                f"range-{range_id}-{name}", workers=_QUESTIONS_AT_ONCE, queue_size=_MAX_QUESTIONS
            )
            for name in ("answers", "dials")
        )
        self._thread = threading.Thread(target=self._run, name=f"range-{range_id}", daemon=True)
        os.set_blocking(lines.words, False)

    def start(self) -> None:
        """Begin to listen."""
        # A gateway that reads nothing must not hold whoever watches the rules.
        self._lines.events.setsockopt(
            socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("@ll", _SEND_TIMEOUT_S, 0)
        )
        self._thread.start()

    def join(self) -> None:
        """Until all that was said is taken in and both processes have ended: kill them first."""
        self._thread.join()
        for executor in (self._questions, self._dials):
            executor.close()
        self._dialler.close()

    def counters(self) -> Mapping[str, int]:
        """The supervisor's, as of its last word, and what was put on record until now."""
        budget = self._budget
        mine = {
            "events_recorded": budget.events,
            "events_cut": budget.cut_events,
            "recorded_bytes": budget.spent_bytes,
        }
        counters = dict(self.heard.counters)
        unaccounted = self._accounts.unaccounted + counters.pop("evidence_dropped", 0)
        return {
            **counters,
            "packets_unaccounted": unaccounted,
            **mine,
            "unreported_at_end": self._unreported,
        }

    def diagnosis(self) -> str:
        """What supervisor and gateway wrote on standard error, escaped and bounded."""
        self._drain_words()
        return printable(self._said.strip(), max_chars=2000)

    def end_gateway(self) -> None:
        """Have the gateway tell what is in progress, and wait for its last word: for two seconds at
        most, and not at all for one that is gone.

        What is in no event is counted (`unreported_at_end`): what it says, what the record has no
        room for, and at least one where it says nothing in time.
        """
        give_up = time.monotonic() + _LAST_WORD_S
        self._is_ending = True
        if self._send_lock.acquire(timeout=_LAST_WORD_S):
            try:
                self._lines.events.send(encode_end(_TELL_S), socket.MSG_DONTWAIT)
            except OSError:
                self._last_word.set()  # it is gone, or reads nothing
            finally:
                self._send_lock.release()
        self._last_word.wait(max(0.0, give_up - time.monotonic()))
        if not self._has_ended:
            self._unreported += 1

    def die(self, error: BelljarError) -> None:
        """End the range, once: its processes are killed, and then it is told. From any thread."""
        with self._dying:
            if self.error is not None:
                return
            if type(error) is CellError:
                error = killed_error(self._killed(), where=self._where()) or error
            self.error = error
        self._kill()
        self._last_word.set()
        try:
            data = {
                "range": self._range,
                "error": type(error).__name__,
                "reason": printable(error.what, max_chars=2000),
            }
            self._recorder.record(Event(kind=Kind.RANGE_FAILED, data=data))
        except Exception as exc:  # noqa: BLE001 - whoever is told hears of this too
            error.add_note(f"this could not be recorded: {exc}")
        self._on_death(error)

    def _run(self) -> None:
        ends = {self._lines.supervisor.pidfd: "supervisor", self._lines.gateway.pidfd: "gateway"}
        while ends or self._open:
            # Its end is looked at when everything that it has said is taken in.
            silent = [fd for fd, who in ends.items() if not self._still_speaks(who)]
            ready = self._listen([*(end.fileno() for end in self._open), *silent])
            for end in [end for end in self._open if end.fileno() in ready]:
                self._hear(end)
            for fd in [fd for fd in silent if fd in ready]:
                self._ended(ends.pop(fd))
            self._drain_words()
            self._end_if_hung()
            self._look_at_upstreams()
        self._dialler.close()
        self.heard.answers.put(None)
        self.heard.milestones.put(None)

    def _listen(self, fds: Sequence[int]) -> set[int]:
        began = time.monotonic()
        ready = wait_readable(fds, _LISTEN_S)
        for heartbeat in self._heartbeats.values():
            heartbeat.waited(min(time.monotonic() - began, _LISTEN_S))
        return ready

    def _end_if_hung(self) -> None:
        """One that is stopped, or runs in circles, watches nothing and answers nobody."""
        if self.closing or self.error is not None:
            return
        for who, heartbeat in self._heartbeats.items():
            if heartbeat.expired:
                what = (
                    f"the range's {who} hangs: it has said nothing for {heartbeat.timeout_s:.0f} s"
                )
                self.die(CellError(what, where=self._where(), hint=_ENDED_HINT))

    def _look_at_upstreams(self) -> None:
        if time.monotonic() < self._next_look_s:
            return
        self._next_look_s = time.monotonic() + _LISTEN_S
        try:
            self._dialler.look(self._say_dialled)
        except RangeOverError:  # its connections are ended next
            pass
        except BelljarError as exc:  # it can't be recorded
            self.die(exc)
        except (OSError, ValueError) as exc:
            what = f"the range's upstream connections can't be measured: {exc}"
            self.die(CellError(what, where=self._where(), hint=_ENDED_HINT))

    def _still_speaks(self, who: str) -> bool:
        return (self._lines.control if who == "supervisor" else self._lines.events) in self._open

    def _hear(self, source: socket.socket) -> None:
        try:
            if source is self._lines.control:
                self._hear_supervisor()
            else:
                self._hear_gateway()
        except (ipc.Closed, ConnectionError):
            self._open.discard(source)
            if source is self._lines.events:
                self._last_word.set()
        except BelljarError as exc:
            self.die(exc)
        except (ValueError, KeyError, TypeError) as exc:
            self.die(
                ProtocolViolation(
                    f"a part of the range said what it can't mean: {exc}", where=self._where()
                )
            )
        except Exception as exc:  # noqa: BLE001 - nothing may go on that isn't watched
            self.die(
                CellError(
                    f"an event of the range could not be taken in: {exc!r}", where=self._where()
                )
            )

    def _hear_supervisor(self) -> None:
        message, fds = ipc.receive(self._lines.control)
        for fd in fds:
            os.close(fd)
        match message:
            case {"flow": flow}:
                self._record(Kind.NETWORK_FLOW, _checked_flow(flow))
            case {"counters": counters}:  # it has looked at the rules
                self._heartbeats["supervisor"].message_received()
                self.heard.counters = {str(name): int(count) for name, count in counters.items()}
            case {"at_risk": at_risk}:
                self._accounts.settle(at_risk)
            case {"done": _} | {"refused": _}:
                self.heard.answers.put(message)
            case {"unshared": True} | {"started": True}:
                self.heard.milestones.put(next(iter(message)))
            case {"breach": differences}:
                what = "; ".join(str(difference) for difference in differences)
                self.die(
                    ContainmentBreach(
                        f"the range's network was changed: {printable(what)}", where=self._where()
                    )
                )
            case {"failed": _}:
                self.die(self._gave_up(message))
            case _:
                raise ValueError("the supervisor's message")

    def _gave_up(self, message: Mapping[str, Any]) -> BelljarError:
        """As the supervisor has it: this host's, or ours."""
        kind = HostError if message.get("host") else CellError
        what = (
            f"the range's supervisor gave up: {printable(str(message['failed']), max_chars=2000)}"
        )
        return kind(
            what, where=self._where(), hint=printable(str(message.get("hint", "")), max_chars=500)
        )

    def _hear_gateway(self) -> None:
        datagram = ipc.receive_bytes(self._lines.events, MAX_DATAGRAM_BYTES + 1)
        self._heartbeats["gateway"].message_received()
        if self.error is not None:
            return
        try:
            said = self._decoder.feed(datagram)
        except WireViolation as exc:
            raise ProtocolViolation(
                f"the gateway broke its protocol: {exc}", where=self._where()
            ) from exc
        match said:
            case GatewayEvent():
                self._record(said.kind, said.data, said.bodies)
                self._send(encode_ack(said.id))
            case GatewayReady():
                self.heard.certificate = str(said.data.get("certificate", "")).encode()
                self._send(encode_ack(said.id))
                self.heard.milestones.put("ready")
            case Heartbeat():
                self._send(encode_ack(said.id))
            case GatewayEnded():
                if not self._is_ending:
                    raise ProtocolViolation(
                        "the gateway broke its protocol: it has ended unasked", where=self._where()
                    )
                self._has_ended = True
                self._unreported += said.unreported
                self._last_word.set()
            case GatewayRequest():
                self._ask(said)

    def _record(self, kind: Kind, data: Mapping[str, Any], bodies: tuple[Any, ...] = ()) -> None:
        # The range's name stands first: what is cut down keeps the first fields.
        named = {"range": "", **data} | {"range": self._range}
        event = Event(kind=kind, data=named, bodies=bodies, trust=Trust.HOST_OBSERVED)
        try:
            with self._recording:
                self._spend(event)
        except ValueError as exc:  # data that the kind doesn't allow
            raise ProtocolViolation(
                f"the gateway said what can't be recorded: {exc}", where=self._where()
            ) from exc
        except OSError as exc:
            raise LedgerError(
                f"an event of the range can't be recorded: {exc}", where=self._where()
            ) from exc

    def _spend(self, event: Event) -> None:
        """Records it, as much of it as the range's budget has room for.

        Raises `CellError` when there is none.
        """
        before = self._budget
        after, taken = before.take(event)
        if taken is None and self._is_ending:
            self._unreported += 1
            return
        if taken is None:
            what = (
                f"the range has put {format_size(before.most_bytes)} on record, which is all that "
                f"it may"
            )
            raise CellError(what, where=self._where(), hint=_RECORD_HINT)
        if after.cut_events and not before.cut_events:
            data: dict[str, JsonValue] = {
                "limit": RECORD_LIMIT,
                "value": before.whole_bytes,
                "effect": _CUT_FROM_HERE,
            }
            self._recorder.record(Event(kind=Kind.LIMIT_HIT, data={**data, "range": self._range}))
        self._budget = after
        self._recorder.record(taken)
        self._accounts.report(event, taken)

    def _ask(self, asked: GatewayRequest) -> None:
        """Whoever answers may take long: nobody waits for it here."""
        is_dial = asked.what == DIAL
        executor, answer = (self._dials, self._dial) if is_dial else (self._questions, self._reply)
        if not executor.try_submit(partial(answer, asked)):
            raise ProtocolViolation(
                f"more than {_MAX_QUESTIONS} questions at once", where=self._where()
            )

    def _reply(self, asked: GatewayRequest) -> None:
        try:
            if self._answer is None:
                raise ValueError("nobody answers questions here")
            words = encode_reply(asked.id, self._answer(asked.what, asked.body))
        except Exception as exc:  # noqa: BLE001 - the gateway is told; the range goes on
            words = encode_reply(asked.id, printable(str(exc), max_chars=500).encode(), ok=False)
        self._send(*words)

    def _dial(self, asked: GatewayRequest) -> None:
        """Hands the gateway a connected socket, or says why not.

        It may not ask for what the plan does not have: then it is not ours any more.
        """
        try:
            with self._dialler.dial(asked.body, self._say_dialled) as end:
                self._send(encode_reply(asked.id, b"")[0], fds=(end.fileno(),))
                return
        except NotAnUpstream as exc:
            self.die(
                ProtocolViolation(f"the gateway broke its protocol: {exc}", where=self._where())
            )
        # It can't be recorded: then nothing is dialled, and nothing goes on
        except BelljarError as exc:
            self.die(exc)
        except Exception as exc:  # noqa: BLE001 - the gateway is told; the range goes on
            self._send(
                *encode_reply(asked.id, printable(str(exc), max_chars=500).encode(), ok=False)
            )

    def _say_dialled(self, data: Mapping[str, Any]) -> None:
        """Raises `LedgerError`; and `RangeOverError` when the range is over: what is not on record
        is not dialled.
        """
        if self.closing or self.error is not None:
            raise RangeOverError("the range is over")
        self._record(Kind.NETWORK_UPSTREAM, data)

    def _send(self, *words: bytes, fds: Sequence[int] = ()) -> None:
        try:
            with self._send_lock:
                for word in words:
                    socket.send_fds(self._lines.events, [word], list(fds))
        except BlockingIOError:
            what = "the gateway does not read what it is sent"
            self.die(ProtocolViolation(what, where=self._where()))
        except OSError:  # one that is gone is seen elsewhere
            pass

    def _ended(self, who: str) -> None:
        """One ends by itself only when something is wrong; the other may not go on alone."""
        child = self._lines.supervisor if who == "supervisor" else self._lines.gateway
        if not self.closing and self.error is None:
            how = self._lines.fork_server.how_ended(child)
            said = self.diagnosis()
            detail = f"{' (' + how + ')' if how else ''}{': ' + said if said else ''}"
            what = f"the range's {who} ended{detail}"
            self.die(CellError(what, where=self._where(), hint=_ENDED_HINT))

    def _kill(self) -> None:
        self._lines.supervisor.kill()
        self._lines.gateway.kill()

    def _drain_words(self) -> None:
        with suppress(BlockingIOError):
            while piece := os.read(self._lines.words, 4096):
                self._said = (self._said + piece)[:_MAX_DIAGNOSIS_BYTES]

    def _where(self) -> str:
        return f"range {self._range}"


def _checked_flow(flow: Mapping[str, Any]) -> Mapping[str, Any]:
    """The supervisor reads a guest's headers, so it is not believed blindly either."""
    if not isinstance(flow, dict) or not set(flow) <= _FLOW_FIELDS:
        raise ValueError("a flow's fields")
    if any(isinstance(value, str) and len(value) > 256 for value in flow.values()):
        raise ValueError("a flow's text")
    return flow
