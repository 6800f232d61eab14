"""Checks of `belljar run`'s command line that need no Inspect, whose import takes seconds."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from pathlib import Path

from belljar.errors import PolicyError
from belljar.units import printable


def check_early(arguments: Sequence[str]) -> None:
    """Refuse a missing or broken file, where that is certain without Inspect. Raises `PolicyError`.

    A word after an option may be its value: Inspect's own parser judges it, later.
    """
    check_files([word for word in _free_words(arguments) if not word.startswith("-")])


def _free_words(arguments: Sequence[str]) -> Iterator[str]:
    for before, word in zip(("", *arguments), arguments, strict=False):
        if word == "--":
            return
        if not before.startswith("-") or "=" in before:
            yield word


def check_policy(policy: str, tier: str) -> None:
    """Check as `belljar policy check`, whole: also what tasks' own policies would leave unused.

    Raises `PolicyError` for an invalid policy or tier, `HostError` for one refused here.
    """
    from belljar.host.settings import resolve_here
    from belljar.network.stand_ins.author import check_stand_ins
    from belljar.policy.load import resolve_policy
    from belljar.policy.loaded import with_tier

    check_stand_ins(resolve_here(with_tier(resolve_policy(policy), tier)))


def check_files(specs: Sequence[str]) -> None:
    """Raises `PolicyError` for a task's file that is missing or is no Python."""
    for spec in specs:
        file = spec.partition("@")[0]
        if not file.endswith((".py", ".ipynb")) or any(sign in file for sign in "*?["):
            continue
        if not Path(file).exists():
            hint = "name a file, file@task or package/task"
            raise PolicyError("no such file", where=printable(file), hint=hint)
        try:
            if file.endswith(".py"):
                ast.parse(Path(file).read_bytes(), filename=file)
        except SyntaxError as error:
            raise PolicyError(
                f"the task can't be loaded: {type(error).__name__}: {printable(error.msg)}",
                where=printable(f"{file}:{error.lineno}" if error.lineno else file),
                hint="try: python -m py_compile FILE",
            ) from error
        except (OSError, ValueError, RecursionError, MemoryError):
            continue  # loading it says why
