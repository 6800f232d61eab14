"""A finished run, and each place that shows its verdict: what a person or a program reads there."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from inspect_ai.log import EvalLog, EvalSample, list_eval_logs, read_eval_log

from belljar.cli.main import run as belljar
from belljar.cli.run import dropped, show_findings
from belljar.events import Kind
from belljar.harness.evaluate import RunOutcome
from belljar.harness.evidence import FINDINGS
from belljar.ledger.listing import read_events


@dataclass
class Judged:
    """A run that demanded contained samples, and the one of them that is looked at."""

    outcome: RunOutcome
    sample: str
    _said: dict[tuple[str, ...], tuple[int, Any]] = field(default_factory=dict)

    @property
    def path(self) -> Path:
        return self.outcome.path

    @cached_property
    def log(self) -> EvalLog | None:
        """Inspect's log as the run left it; None when it can't be read."""
        try:
            (info,) = list_eval_logs(str(self.path / "inspect"))
            return read_eval_log(info)
        except Exception:  # noqa: BLE001 - what a cause did to it
            return None

    @cached_property
    def logged(self) -> EvalSample | None:
        samples = self.log.samples or [] if self.log is not None else []
        return next((each for each in samples if each.id == self.sample), None)

    def said(self, *arguments: str) -> tuple[int, Any]:
        """Exit code and JSON of a command about this run, which is given once."""
        if arguments not in self._said:
            out = io.StringIO()
            with contextlib.redirect_stdout(out):
                code = belljar([*arguments, "--json"])
            self._said[arguments] = code, json.loads(out.getvalue())
        return self._said[arguments]

    def of(self, findings: Mapping[str, Any]) -> str | None:
        found = [each["verdict"] for each in findings["samples"] if each["sample"] == self.sample]
        return found[0] if found else None


def table(judged: Judged) -> str | None:
    """The line of the sample in the table that `belljar run` prints."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        show_findings(judged.outcome.findings, judged.path, dropped(judged.outcome))
    words = [
        line.split() for line in out.getvalue().splitlines() if line.startswith(f"{judged.sample} ")
    ]
    return words[0][2] if words else None


def metadata(judged: Judged) -> str | None:
    known = judged.logged.metadata.get("containment", {}) if judged.logged else {}
    return (
        str(known["verdict"])
        if known.get("run_id") == judged.outcome.path.name and "verdict" in known
        else None
    )


def score(judged: Judged) -> str | None:
    found = (judged.logged.scores or {}).get("containment") if judged.logged else None
    return found.answer if found is not None else None


def scorers_view(judged: Judged) -> str | None:
    """What a scorer that scores the log again finds at the task's own score."""
    found = (judged.logged.scores or {}).get("points") if judged.logged else None
    return (found.metadata or {}).get("containment_verdict") if found is not None else None


def required(judged: Judged) -> str | None:
    if judged.logged is None:
        return None
    return "not contained" if f"{judged.sample} #1" in judged.outcome.dropped else "contained"


SAMPLE_PLACES: Final[Mapping[str, Callable[[Judged], str | None]]] = {
    "table": table,
    "findings.json": lambda judged: judged.of(json.loads((judged.path / FINDINGS).read_text())),
    "metadata": metadata,
    "score": score,
    "scorer's view": scorers_view,
    "--require-contained": required,
    "belljar verdict": lambda judged: judged.of(
        judged.said("verdict", judged.outcome.path.name)[1]
    ),
}
"""Each gives the sample's verdict, None where it shows none."""


def listed(judged: Judged) -> dict[str, Any]:
    (found,) = [
        each
        for each in judged.said("runs", "--all")[1]
        if each["run_id"] == judged.outcome.path.name
    ]
    return dict(found)


RUN_PLACES: Final[Mapping[str, Callable[[Judged], tuple[str, int]]]] = {
    "outcome": lambda judged: (judged.outcome.findings.verdict.value, judged.outcome.exit_code),
    "findings.json": lambda judged: _both(json.loads((judged.path / FINDINGS).read_text())),
    "belljar runs": lambda judged: (listed(judged)["verdict"], listed(judged)["exit_code"]),
    "belljar verdict": lambda judged: _both(judged.said("verdict", judged.outcome.path.name)[1]),
    "exit code of belljar verdict": lambda judged: (
        judged.outcome.findings.verdict.value,
        judged.said("verdict", judged.outcome.path.name)[0],
    ),
}
"""Each gives the run's verdict and exit code."""


def _both(findings: Mapping[str, Any]) -> tuple[str, int]:
    return findings["verdict"], findings["exit_code"]


def cell_verdicts(judged: Judged) -> list[set[str]]:
    """The words by which `sample.finished`, the sample's metadata and the scorer name what they
    knew at the sample's end."""
    finished = [
        line.data["containment"]
        for line in read_events(judged.path)
        if line.kind is Kind.SAMPLE_FINISHED
    ]
    return [{key for key in each if "verdict" in key} for each in finished]
