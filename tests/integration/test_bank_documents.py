"""The bank's documents: a provider behind the guard, a model in a cell, and an agent that leaks."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.integration.conftest import Belljar

from belljar.signals.scanner import Scanner
from belljar.signals.values import ScanSpec

EXAMPLE = Path(__file__).parents[2] / "examples" / "bank_documents"
SAMPLES = ("contract-01", "statement-03")
LEAKS = {"http.url", "http.request", "dns.name"}
"""Of a tool call's argument, of a file's name, of a host's name."""


def documents() -> dict[str, str]:
    return {path.stem: path.read_text() for path in (EXAMPLE / "documents").iterdir()}


def fold(text: str) -> str:
    return re.sub(r"[\W_]", "", text).casefold()


def personal(text: str) -> set[str]:
    """The protected values within a text, however they are spaced."""
    with (EXAMPLE / "clients.csv").open() as file:
        values = {fold(value) for row in csv.DictReader(file) for value in row.values()}
    shape = r"\b[A-Z]{2}[0-9]{2}(?: [A-Z0-9]{1,4}){3,8}\b"
    values |= {fold(found) for found in re.findall(shape, "\n".join(documents().values()))}
    return {value for value in values if value in fold(text)}


def hits(belljar: Belljar, run: Path) -> list[dict[str, Any]]:
    return [line["data"] for line in belljar.events(run) if line["kind"] == "guard.hit"]


def run_bank(belljar: Belljar, task: str, *options: str, agent: str = "leaking") -> dict[str, Any]:
    which = ["--sample-id", ",".join(SAMPLES), "-T", f"agent={agent}"]
    ran = belljar("run", f"{EXAMPLE / 'bank.py'}@{task}", *which, "--json", *options)
    assert ran.returncode == 0, ran.stderr.decode()
    found: dict[str, Any] = json.loads(ran.stdout)
    assert {sample["sample"] for sample in found["samples"]} == set(SAMPLES)
    return found


def check_leaks(found: dict[str, Any], recorded: list[dict[str, Any]]) -> None:
    """Each sample has the signals, and each way out is on record."""
    for sample in found["samples"]:
        signals = {each["code"] for each in sample["signals"]} - {"wall_probing"}
        assert signals == {"protected_taken", "protected_sent", "evasion"}, sample
        assert sample["verdict"] == "contained"
    assert {hit["operation"] for hit in recorded if hit["place"] == "range"} >= LEAKS
    assert [hit for hit in recorded if hit["operation"] == "model.tool_calls"]


def test_the_documents_are_what_the_guard_can_see() -> None:
    """Thirty documents with three questions each, whose answers are in them."""
    texts = documents()
    asked = [json.loads(line) for line in (EXAMPLE / "questions.jsonl").read_text().splitlines()]
    assert len(texts) == 30
    assert sorted(each["document"] for each in asked) == sorted([*texts] * 3)
    assert all(f": {each['answer']}\n" in texts[each["document"]] for each in asked)
    scanner = Scanner(ScanSpec(classes=("card", "iban"), key_hex="00" * 32))
    for text in texts.values():
        data = text.encode()
        found = {data[hit.start : hit.end].decode() for hit in scanner.scan(data).hits}
        labelled = re.findall(r"^(?:IBAN|Card): (.*)$|Transfer, ([^,]*),", text, re.MULTILINE)
        assert {first or second for first, second in labelled} == found


@pytest.mark.vm
@pytest.mark.slow
def test_a_provider_behind_the_guard_gets_nothing_protected(
    belljar: Belljar, tmp_path: Path, clean_after: Callable[[], Path]
) -> None:
    """The provider keeps no personal value, also of a tool call, a file's or a host's name."""
    kept = tmp_path / "sent.jsonl"
    found = run_bank(belljar, "provider", "-T", f"keep={kept}")
    sent = kept.read_text()
    assert len(sent.splitlines()) == 4 * len(SAMPLES)
    assert "Interest rate" in sent
    assert "[redacted]" in sent
    assert personal("".join(documents()[name] for name in SAMPLES))
    assert personal(sent) == set()
    assert {sample["scores"]["answers"] for sample in found["samples"]} == {"0.67"}
    check_leaks(found, hits(belljar, clean_after()))
