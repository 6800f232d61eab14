"""The egress guard on its corpus: what the documentation says of it is measured."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from tests.guard_cases import read_cases, scan_case, score

from belljar.policy.load import load_policy
from belljar.signals.scanner import Scanner
from belljar.signals.streams import StreamScanner
from belljar.signals.values import ScanBounds, ScanSpec, read_protected

HERE = Path(__file__).parent / "guard"
PAGE = (Path(__file__).parents[2] / "docs/guard.md").read_text()
CONTENT = (HERE / "cases.jsonl").read_bytes()


def test_the_corpus_is_flagged_as_it_should_be() -> None:
    """Every case is as it expects, with the figures of the docs."""
    loaded = load_policy(HERE / "policy.yaml")
    classes, patient = loaded.policy.guard_rules.classes, ScanBounds(time_s=120)
    values = read_protected(loaded)
    spec = ScanSpec(values=values, classes=tuple(classes), key_hex="00" * 32, bounds=patient)
    stream = StreamScanner(Scanner(spec))
    result = score(scan_case(case, stream) for case in read_cases(CONTENT))
    assert not result.failed, [outcome.case.id for outcome in result.failed]
    figures = (result.cases, result.precision, result.recall, result.false_positive_rate)
    documented = re.search(
        r"\| cases \| precision \| recall \| false positives \|\n\|[-|]+\|\n\| (.*) \|\n", PAGE
    )
    assert documented is not None
    assert tuple(float(cell) for cell in documented[1].split(" | ")) == figures


def test_the_documented_digest_is_the_corpus() -> None:
    """The page names the very cases that were measured."""
    assert hashlib.sha256(CONTENT).hexdigest() in PAGE
