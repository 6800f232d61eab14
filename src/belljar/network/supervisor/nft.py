"""nftables by its own program, as JSON: load a rule set in one transaction, list what the kernel
has. Blocking; in the namespace of who calls.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any, Final, Self

from belljar.errors import HostError
from belljar.units import printable

_TIMEOUT_S: Final = 20.0
_MAX_LISTING_BYTES: Final = 16 << 20
_PIPES: Final[Any] = {
    "stdout": subprocess.PIPE,
    "stderr": subprocess.PIPE,
    "env": {"LC_ALL": "C"},
    "cwd": "/",
}


class _Run:
    """nft at work, while its caller does something else.

    Ended by `_output`, or by leaving it as a context.
    """

    def __init__(self, nft: str, *words: str, stdin: int) -> None:
        """Raises `HostError`."""
        try:
            self._process = subprocess.Popen((nft, "-j", *words), stdin=stdin, **_PIPES)
        except OSError as exc:
            raise _not_run(nft, exc) from exc
        self._nft = nft

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self._process:
            self._process.kill()

    def _output(self) -> bytes:
        try:
            output, said = self._process.communicate(timeout=_TIMEOUT_S)
        except subprocess.TimeoutExpired as exc:
            raise _not_run(self._nft, exc) from exc
        return _checked(self._nft, self._process.returncode, output, said)


class Loading(_Run):
    """The rules on their way into force, all or none; `finish` waits for it."""

    def __init__(self, nft: str, rules: int) -> None:
        """`rules`: a descriptor of a file that holds them (`ipc.as_file`).

        Raises `HostError`.
        """
        os.lseek(rules, 0, os.SEEK_SET)
        super().__init__(nft, "-f", "-", stdin=rules)

    def finish(self) -> None:
        """They are in force. Raises `HostError` with nft's own word: then none is."""
        self._output()


class Listing(_Run):
    """Everything that is in force when this is made, or a little later; `read` waits for it."""

    def __init__(self, nft: str) -> None:
        """Raises `HostError`."""
        with Path(os.devnull).open("rb") as nothing:  # not DEVNULL, which is opened for writing too
            super().__init__(nft, "list", "ruleset", stdin=nothing.fileno())

    def read(self) -> dict[str, Any]:
        """The listing. Raises `HostError`."""
        output = self._output()
        try:
            document = json.loads(output)
        except ValueError as exc:
            raise HostError("nft's listing can't be read", where=self._nft) from exc
        if not isinstance(document, dict) or not isinstance(document.get("nftables"), list):
            raise HostError("nft's listing is none", where=self._nft)
        return document


def _checked(nft: str, status: int, output: bytes, errors: bytes) -> bytes:
    if status != 0 or len(output) > _MAX_LISTING_BYTES:
        raise HostError(
            f"nft refused: {printable(errors.strip() or output[:200], max_chars=500)}",
            where=nft,
            hint="this kernel may lack a part of nftables; `belljar doctor` says which",
        )
    return output


def _not_run(nft: str, exc: Exception) -> HostError:
    return HostError(f"nft can't be run: {exc}", where=nft, hint="install nftables 1.0 or newer")
