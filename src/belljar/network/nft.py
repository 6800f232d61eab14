"""nftables by its own program, as JSON: load a rule set in one transaction, list what the kernel has. Blocking; in the namespace of who calls."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from typing import Any, Final

from belljar.errors import HostError
from belljar.units import printable

_PATIENCE_S: Final = 20.0
_MAX_LISTING_BYTES: Final = 16 << 20


def load_rules(nft: str, rules: Mapping[str, Any]) -> None:
    """Put the rules in force, all or none. Raises `HostError` with nft's own word."""
    _run((nft, "-j", "-f", "-"), json.dumps(rules).encode())


def list_rules(nft: str) -> dict[str, Any]:
    """Everything that is in force. Raises `HostError`."""
    listed = _run((nft, "-j", "list", "ruleset"), b"")
    try:
        document = json.loads(listed)
    except ValueError as exc:
        raise HostError("nft's listing can't be read", where=nft) from exc
    if not isinstance(document, dict) or not isinstance(document.get("nftables"), list):
        raise HostError("nft's listing is none", where=nft)
    return document


def _run(argv: tuple[str, ...], given: bytes) -> bytes:
    try:
        done = subprocess.run(
            argv, input=given, capture_output=True, check=False, timeout=_PATIENCE_S, env={"LC_ALL": "C"}, cwd="/"
        )
    except (OSError, subprocess.TimeoutExpired) as exc:
        raise HostError(f"nft can't be run: {exc}", where=argv[0], mend="install nftables 1.0 or newer") from exc
    if done.returncode != 0 or len(done.stdout) > _MAX_LISTING_BYTES:
        raise HostError(
            f"nft refused: {printable(done.stderr.strip() or done.stdout[:200], max_chars=500)}",
            where=argv[0],
            mend="this kernel may lack a part of nftables; `belljar doctor` says which",
        )
    return done.stdout
