"""What runs in the default service's cell, and a cell's answer in Inspect's words."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from tests.fakes.cell import EndedProgram

from belljar.channel import ExecOutput
from belljar.errors import CellError
from belljar.harness.provider import start_program, to_result
from belljar.policy.stand_ins import ServiceProgram

pytestmark = pytest.mark.anyio


class Machine:
    """A cell that notes what is run in it."""

    def __init__(self, *, entrypoint: Sequence[str] = (), command: Sequence[str] = ()) -> None:
        self.id = "x"
        self.image_entrypoint, self.image_command = tuple(entrypoint), (*entrypoint, *command)
        self.image_health: dict[str, Any] = {}
        self.plan = SimpleNamespace()
        self.ran: list[list[str]] = []

    async def exec(self, argv: Sequence[str], **_: object) -> ExecOutput:
        self.ran.append(list(argv))
        return ExecOutput(returncode=0, code=0, stdout=b"/log\n")

    async def start(
        self, argv: Sequence[str], *, service: bool, timeout_s: float | None
    ) -> EndedProgram:
        return EndedProgram(await self.exec(argv))

    async def read_file(self, path: str, *, max_bytes: int) -> bytes:
        raise FileNotFoundError(path)


async def started(machine: Machine, words: dict[str, Any]) -> list[list[str]]:
    await start_program(machine, "agent", ServiceProgram.model_validate(words, strict=False))  # type: ignore[arg-type]
    return machine.ran


@pytest.mark.promise("1.6")
async def test_an_image_of_the_authors_runs_its_program() -> None:
    """Also without a compose file: its entrypoint and command."""
    serving = Machine(entrypoint=["/enter"], command=["serve"])
    await start_program(serving, "", None)  # type: ignore[arg-type]
    assert serving.ran == [["/enter", "serve"]]
    own, waiting = Machine(command=["/bin/bash"]), Machine(command=["tail", "-f", "/dev/null"])
    await start_program(own, "", None)  # type: ignore[arg-type]
    await start_program(waiting, "", None)  # type: ignore[arg-type]
    assert own.ran == waiting.ran == []


@pytest.mark.promise("1.6")
async def test_the_images_own_check_counts() -> None:
    """Unless the file has one or switches it off, or nothing runs."""
    check = {"command": ["own"], "interval": 0.1, "timeout": 1.0, "retries": 2, "within": 5.0}

    async def ran(words: dict[str, Any]) -> list[list[str]]:
        machine = Machine(command=["serve"])
        machine.image_health = check
        return await started(machine, words)

    assert await ran({}) == [["serve"], ["own"]]
    assert await ran({"health": {"command": ["ask"]}}) == [["serve"], ["ask"]]
    assert await ran({"health": {"image": False}}) == [["serve"]]
    assert await ran({"arguments": ["sleep", "infinity"]}) == []
    with pytest.raises(CellError, match="neither the file nor its image has a check"):
        await started(Machine(command=["serve"]), {"health": {"image": True}})


def _answered(code: int, stage: str, detail: str) -> Any:  # noqa: ANN401 - Inspect's result of text
    output = ExecOutput(
        returncode=127, code=code, not_started_errno=code, stage=stage, detail=detail
    )
    return to_result(output, ["prog"], limit_bytes=1000, timeout_s=None)


@pytest.mark.promise("1.6")
def test_what_is_missing_is_a_result_and_what_is_closed_an_error() -> None:
    """With `docker exec`'s status, and on standard error, escaped, the name of what is missing."""
    for stage, code, detail, status, named in (
        ("user", errno.ENOENT, "ann:staff", 126, "no user or group `ann:staff`"),
        ("user", errno.ENOENT, "ann", 126, "the image has no user `ann`"),
        ("cwd", errno.ENOENT, "/x\x1b[2J", 127, "/x"),
        ("cwd", errno.ENOTDIR, "/x", 126, "/x"),
        ("exec", errno.ENOENT, "prog", 127, "prog"),
    ):
        result = _answered(code, stage, detail)
        assert (result.success, result.returncode, result.stdout) == (False, status, "")
        assert named in result.stderr
        assert "\x1b" not in result.stderr
    for stage, named in (("exec", "prog"), ("cwd", "/x")):
        with pytest.raises(PermissionError, match=named):
            _answered(errno.EACCES, stage, "/x")
