"""A command that runs, seen by its caller and by the record."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from signal import Signals

from belljar.capture import Capture
from belljar.cell.output import ExecOutput, output_of
from belljar.cell.record import Operation
from belljar.cell.watch import LimitWatch
from belljar.channel import RunningExec, Stream
from belljar.events import Body, Kind, Recorder


class RunningCommand:
    """A command of `Cell.open_exec`.

    Iterate it for `(stream, bytes)` until its streams end, then `wait` for its outcome.
    """

    def __init__(
        self,
        running: RunningExec,
        operation: Operation,
        recorder: Recorder,
        watch: LimitWatch,
        let_out: Callable[[bytes], bytes],
        *,
        user: str = "",
    ) -> None:
        self._running = running
        self._user = user
        self._watch = watch
        self._let_out = let_out
        self._operation = operation
        self._recorder = recorder
        self.stdin = Capture("stdin")
        self.captures = {Stream.STDOUT: Capture("stdout"), Stream.STDERR: Capture("stderr")}
        self.output: ExecOutput | None = None

    def __aiter__(self) -> AsyncIterator[tuple[Stream, bytes]]:
        return self

    async def __anext__(self) -> tuple[Stream, bytes]:
        stream, chunk = await anext(self._running)
        self.captures[stream].feed(chunk)
        self._watch.look()
        return stream, self._let_out(chunk)

    async def send_stdin(self, chunk: bytes | str) -> None:
        """Send bytes, or text as UTF-8, to its standard input; waits while its window is full."""
        chunk = chunk.encode() if isinstance(chunk, str) else chunk
        self.stdin.feed(chunk)
        await self._running.send_stdin(chunk)

    async def close_stdin(self) -> None:
        """End its standard input; its output goes on."""
        await self._running.close_stdin()

    @property
    def id(self) -> int:
        """The operation's number, which the record has too; unique in its cell."""
        return self._operation.op

    async def signal(self, number: int | str, *, whole_tree: bool = False) -> None:
        """Send a signal (15, `SIGTERM`, `"TERM"`) to its main process, or to all it started.

        Raises `ValueError` for what is no signal.
        """
        sent = signal_number(number)
        scope = "tree" if whole_tree else "main"
        event = self._operation.event(Kind.EXEC_SIGNAL, {"signal": sent.name, "scope": scope})
        self._recorder.record(event)
        await self._running.signal(sent, whole_tree=whole_tree)

    async def resize(self, rows: int, cols: int) -> None:
        """Tell its terminal the new size."""
        await self._running.resize(rows, cols)

    async def wait(self) -> ExecOutput:
        """Its outcome, when it has ended. `stdout` and `stderr` are empty: they were iterated."""
        outcome = await self._running.wait()
        self.output = output_of(outcome, user=self._user, host_limits=self._watch.hit())
        return self.output

    def bodies(self) -> list[Body]:
        """What went by so far."""
        return [
            capture.body()
            for capture in (self.stdin, *self.captures.values())
            if capture.total_bytes
        ]


def signal_number(number: int | str) -> Signals:
    """The signal of a number, a `Signals`, or a name with or without `SIG`. Raises `ValueError`."""
    if isinstance(number, str):
        name = number.upper()
        name = name if name.startswith("SIG") else f"SIG{name}"
        if name not in Signals.__members__:
            raise ValueError(f"{number!r} is no signal; write a name such as TERM, or its number")
        return Signals[name]
    try:
        return Signals(number)
    except ValueError:
        raise ValueError(f"{number!r} is no signal; write 15, SIGTERM or 'TERM'") from None


def check_argv(argv: Sequence[str]) -> None:
    """Raises `TypeError` for what is no list of words."""
    if isinstance(argv, str | bytes):
        raise TypeError(
            'argv is a list of strings, one for each word; for a line of shell: ["sh", "-c", line]'
        )
    for word in argv:
        if not isinstance(word, str | bytes):
            raise TypeError(f"argv holds {type(word).__name__}: each word must be a string")
