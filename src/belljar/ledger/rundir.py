"""The run directory: a run's files, all covered by a signature."""

from __future__ import annotations

import platform
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from pathlib import Path
from typing import Any, Final, TypeVar

from belljar.errors import HostError, LedgerError
from belljar.events import Actor, Event, JsonValue, Kind
from belljar.ledger.chain import canonical, sha256_hex
from belljar.ledger.files import MANIFEST, MANIFEST_PART, digests_of, write_file
from belljar.ledger.keys import load_or_make_key
from belljar.ledger.kinds import SCHEMA_VERSION
from belljar.ledger.writer import LedgerWriter
from belljar.package import __version__
from belljar.store.home import sync_file

_T = TypeVar("_T")
# What reads hostile bytes: a reader asks whether a version with a known hole made a run.
LIBRARIES: Final = (
    *("anyio", "asyncssh", "cryptography", "dulwich", "h11", "idna", "inspect-ai", "jinja2"),
    *("pydantic", "pydantic-core", "ruamel-yaml", "uvicorn", "wsproto", "zstandard"),
)

RUNS: Final = "runs"
INSPECT_LOGS: Final = "inspect"  # Inspect's logs in a run directory of `belljar run`

# An exception may quote what a guest sent.
_MAX_ERROR_CHARS: Final = 4096
# As the schema of `run.finished` has them.
OUTCOMES: Final = ("completed", "failed", "interrupted")


class RunDirectory:
    """One run's directory under `home/runs` while it is written: a context manager.

    `kind`: the command. `what`: its name in lists. Entering records `run.started`; it raises
    `HostError` for an unusable store, `LedgerError` for an unusable key. Leaving records
    `run.finished` and seals the ledger, also after an exception. A failed write or a killed process
    leaves an *unfinished* run.
    """

    run_id: str
    path: Path
    recorder: LedgerWriter
    is_sealed: bool

    def __init__(self, home: Path, kind: str, argv: Sequence[str], *, what: str = "") -> None:
        self._home = home
        self._about: dict[str, JsonValue] = {"kind": kind, "argv": tuple(argv), "what": what}
        self._outcome: tuple[str, int | None, str | None] | None = None
        self._details: dict[str, JsonValue] = {}
        self.is_sealed = False
        self._stack, self.before_end = ExitStack(), ExitStack()
        self._sharing, self._shared = threading.Lock(), dict[str, Any]()

    def enter_once(
        self,
        name: str,
        make: Callable[[], AbstractContextManager[_T]],
        *,
        ends_on_record: bool = False,
    ) -> _T:
        """Enter a context shared by cells, once per `name`, until sealing. Thread-safe.

        `ends_on_record`: left by `before_end.close()`, at the latest just before sealing, so that
        its end can be recorded.
        """
        with self._sharing:
            if name not in self._shared:
                stack = self.before_end if ends_on_record else self._stack
                self._shared[name] = stack.enter_context(make())
            shared: _T = self._shared[name]
            return shared

    @property
    def inspect_log_dir(self) -> Path:
        """Return the folder of the harness's own log; it is made on first use."""
        folder = self.path / INSPECT_LOGS
        folder.mkdir(mode=0o700, exist_ok=True)
        return folder

    def write_text(self, name: str, text: str) -> Path:
        """Add a file. Raises `LedgerError`, or `ValueError` for a path."""
        if Path(name).name != name or name in {"", "..", MANIFEST, MANIFEST_PART}:
            raise ValueError(f"{name!r} is not a plain file name")
        path = self.path / name
        try:
            write_file(path, text.encode("utf-8", "backslashreplace"))
        except OSError as error:
            what, hint = f"can't be written: {error.strerror}", "check the free space"
            raise LedgerError(what, where=str(path), hint=hint) from error
        return path

    def write_json(self, name: str, value: object) -> Path:
        """Add canonical JSON. Raises as `write_text`, and `ValueError`."""
        return self.write_text(name, canonical(value).decode() + "\n")

    def finish(
        self, outcome: str, *, exit_code: int | None, error: str | None = None, **details: JsonValue
    ) -> None:
        """Set the run's outcome; default: by the context's exception."""
        if outcome not in OUTCOMES:
            raise ValueError(f"{outcome!r} is not one of {', '.join(OUTCOMES)}")
        self._outcome, self._details = (outcome, exit_code, error), details

    def __enter__(self) -> RunDirectory:
        runs = self._home / RUNS
        try:
            key = load_or_make_key(self._home)
            runs.mkdir(mode=0o700, parents=True, exist_ok=True)
            seconds, rest = divmod(time.time_ns(), 1_000_000_000)
            second = time.strftime("%Y%m%d-%H%M%S", time.gmtime(seconds))
            # It sorts by milliseconds: `20261120-215346123-4f9c2a`.
            self.run_id = f"{second}{rest // 1_000_000:03d}-{secrets.token_hex(3)}"
            self.path = runs / self.run_id
            self.path.mkdir(mode=0o700)
            sync_file(runs)
            with ExitStack() as on_failure:
                self.recorder = on_failure.enter_context(LedgerWriter(self.path, key))
                from importlib import metadata  # 20 ms, which only a command that makes a run pays

                libraries: dict[str, str] = {}
                for name in LIBRARIES:
                    with suppress(metadata.PackageNotFoundError):
                        libraries[name] = metadata.version(name)
                data = {"run_id": self.run_id, **self._about, "belljar": __version__}
                data |= {"key": self.recorder.key.fingerprint, "libraries": {**libraries}}
                self.recorder.record(Event(kind=Kind.RUN_STARTED, actor=Actor.OPERATOR, data=data))
                kernel = f"{platform.system()} {platform.release()} {platform.machine()}"
                system = {"python": platform.python_version(), "kernel": kernel}
                self.write_json("versions.json", {"belljar": __version__, **libraries, **system})
                self._stack = on_failure.pop_all()
        except OSError as error:
            what = f"the run directory can't be made: {error.strerror}"
            hint = "set BELLJAR_HOME to a directory that this user can write and that has space"
            raise HostError(what, where=str(runs), hint=hint) from error
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        self.recorder.end_if_forked()
        with self._stack:
            try:
                self.before_end.close()
                self._seal(error)
            except LedgerError:
                # When the record itself is what failed, its error is on the way already.
                if not isinstance(error, LedgerError):
                    raise

    def _seal(self, error: BaseException | None) -> None:
        outcome, exit_code, text = self._outcome or _outcome_of(error)
        data: dict[str, JsonValue] = {"outcome": outcome, "exit_code": exit_code}
        data |= {"error": text} if text else {}
        data |= {"killed": self.recorder.killed} if self.recorder.killed else {}
        data |= self._details
        self.recorder.record(Event(kind=Kind.RUN_FINISHED, data=data))
        self.recorder.end()
        try:
            key = self.recorder.key
            manifest = {"v": SCHEMA_VERSION, "run_id": self.run_id, "key": key.fingerprint}
            manifest |= {"public_key": key.public_key, "bodies": self.recorder.body_totals}
            content = canonical(manifest | {"files": digests_of(self.path)}) + b"\n"
            # Under another name until the final checkpoint is on the disk: a manifest without one
            # is a sign of a record that was cut.
            write_file(self.path / MANIFEST_PART, content)
            self.recorder.seal(sha256_hex(content))
            (self.path / MANIFEST_PART).rename(self.path / MANIFEST)
            sync_file(self.path)
            self.is_sealed = True
        except OSError as failure:
            what = f"the run can't be sealed: {failure.strerror}"
            hint = "free disk space; the run stays unfinished"
            raise LedgerError(what, where=str(self.path), hint=hint) from failure


def _outcome_of(error: BaseException | None) -> tuple[str, int | None, str | None]:
    # A task group wraps a single error, too.
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    if error is None:
        return "completed", 0, None
    exit_code = error.code if isinstance(error, SystemExit) else getattr(error, "exit_code", None)
    if not isinstance(error, Exception | SystemExit):  # KeyboardInterrupt, a cancellation
        # 128 and the number of SIGINT, as shells report it.
        return "interrupted", 130, type(error).__name__
    if exit_code == 0:
        return "completed", 0, None
    text = f"{type(error).__name__}: {error}"[:_MAX_ERROR_CHARS]
    return "failed", exit_code if isinstance(exit_code, int) else 1, text
