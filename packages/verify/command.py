"""`belljar-verify`: checks a run directory, with Belljar's own code."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from belljar.ledger.keys import parse_fingerprint
from belljar.ledger.verification import HINT_KEY, verification_json, verification_text, verify
from belljar.units import printable

_ENDING = """\
exit codes: 0 nothing is wrong; 1 something is, or --strict has no key; 2 wrong usage
"""


def _fingerprint(text: str) -> str:
    try:
        return parse_fingerprint(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def run(argv: list[str] | None = None) -> int:
    """Return the exit code."""
    parser = argparse.ArgumentParser(
        prog="belljar-verify",
        description="Check the signed record of a Belljar run, offline.",
        epilog=_ENDING,
    )
    parser.add_argument("run", metavar="RUN", type=Path, help="a run directory")
    parser.add_argument(
        "--key",
        metavar="FINGERPRINT",
        type=_fingerprint,
        help="the key that must have signed, as `belljar ledger verify` prints it on its host",
    )
    parser.add_argument("--run-id", metavar="ID", help="the run that it must be")
    parser.add_argument("--strict", action="store_true", help="the run is finished, the key known")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    given = parser.parse_args(argv)
    origin = "the key given" if given.key else ""
    try:
        result = verify(given.run, expected_key=given.key, expected_run=given.run_id)
    except OSError as error:
        print(f"belljar-verify: {printable(str(error))}", file=sys.stderr)
        return 1
    if given.json:
        print(json.dumps(verification_json(result, strict=given.strict), sort_keys=True))
    else:
        print(verification_text(result, given.run, origin))
        if given.strict and not result.key_checked:
            print(f"  hint: {HINT_KEY}", file=sys.stderr)
    return 0 if result.passes(strict=given.strict) else 1


def main() -> None:
    """The console script."""
    sys.exit(run())
