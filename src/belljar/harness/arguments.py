"""Checks of `belljar run`'s command line that need no Inspect, whose import takes seconds."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import click

from belljar.errors import PolicyError
from belljar.units import printable

_QUOTED_OPTION: Final = re.compile(r'["/](--[a-z][a-z0-9-]*)(?=["/])')


def check_early(arguments: Sequence[str], context: click.Context) -> None:
    """Refuse a missing or broken file and an unknown option, where that is certain without Inspect.

    A word after an option may be its value: Inspect's own parser judges it, later. Raises
    `PolicyError`, `click.NoSuchOption`.
    """
    words = list(_free_words(arguments))
    typed = [word.partition("=")[0] for word in words if word.startswith("--")]
    spec = find_spec("inspect_ai") if typed else None
    if spec is not None and spec.origin is not None:
        # An option that Inspect's command line accepts is written in its source
        sources = [path.read_text() for path in (Path(spec.origin).parent / "_cli").glob("*.py")]
        known = {name for text in sources for name in _QUOTED_OPTION.findall(text)}
        for name in typed if known else ():
            if name not in known:
                known |= {each for param in context.command.params for each in param.opts}
                raise click.NoSuchOption(name, possibilities=sorted(known), ctx=context)
    check_files([word for word in words if not word.startswith("-")])


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
    from belljar.policy import resolve_policy, with_tier

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
