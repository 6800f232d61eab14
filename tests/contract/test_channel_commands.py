"""Commands: how they start, what they see, how they end."""

from __future__ import annotations

import anyio
import pytest
from tests.fakes.asking import sh
from tests.machine import PATIENCE_S

from belljar.channel import ExecRequest, GuestClient

pytestmark = pytest.mark.anyio


async def test_streams_are_separate_and_exact(client: GuestClient) -> None:
    """Standard output and standard error arrive apart, byte by byte as written."""
    outcome = await client.exec(sh("printf 'foo\\nbar\\n'; printf '\\303(\\0' >&2"))
    said = (outcome.returncode, outcome.code, outcome.stdout, outcome.stderr)
    assert said == (0, 0, b"foo\nbar\n", b"\xc3(\0")
    dropped = (outcome.stdout_dropped_bytes, outcome.stderr_dropped_bytes)
    assert (*dropped, outcome.timed_out) == (0, 0, False)
    assert outcome.duration_s > 0


@pytest.mark.promise("4.1")
async def test_how_a_program_ended(client: GuestClient) -> None:
    """With its own status; one that a signal kills is told from one that exits with 128 + n."""
    assert (await client.exec(sh("exit 70"))).returncode == 70
    outcome = await client.exec(sh("kill -TERM $$"))
    assert (outcome.signalled, outcome.code, outcome.returncode) == (True, 15, 143)
    assert not (await client.exec(sh("exit 143"))).signalled


async def test_what_can_not_start(client: GuestClient) -> None:
    """A command that can't start is a result that says at which stage and why, never an error."""
    for request, stage, returncode in (
        (ExecRequest(argv=["no-such-program"]), "exec", 127),
        (ExecRequest(argv=["/no/such/program"]), "exec", 127),
        (ExecRequest(argv=["/etc/passwd"]), "exec", 126),
        (ExecRequest(argv=["/etc"]), "exec", 126),
        (ExecRequest(argv=["true"], cwd="/no/such/directory"), "cwd", 127),
        (ExecRequest(argv=["true"], user="nobody-of-that-name"), "user", 127),
        (ExecRequest(argv=["true", "x" * 300_000]), "exec", 126),  # E2BIG of execve
    ):
        outcome = await client.exec(request)
        assert outcome.not_started_errno is not None
        assert (outcome.stage, outcome.returncode) == (stage, returncode), request


async def test_environment(client: GuestClient) -> None:
    """The environment is what was given, and the user's defaults; nothing of the agent's."""
    outcome = await client.exec(
        ExecRequest(argv=["env"], env={"GREETING": "grüß\n$dich", "EMPTY": "", "SHELL": "/mine"})
    )
    text = outcome.stdout.decode()
    assert {"GREETING=grüß", "$dich", "EMPTY=", "SHELL=/mine"} <= set(text.splitlines())
    names = {line.split("=")[0] for line in text.replace("\n$dich", "").splitlines()}
    assert names == {"GREETING", "EMPTY", "SHELL", "HOME", "USER", "LOGNAME", "PATH"}


@pytest.mark.promise("4.3")
async def test_hundreds_of_commands_at_once(client: GuestClient, carrier: str) -> None:
    """300 at once (100 in slow tiers) queue, each gets its own answer, and none starves."""
    # A program's start takes 50 ms in gVisor, half of that in an emulated machine: more of them
    # show no more than that they queue, at 64 at once.
    count = 100 if carrier.startswith(("gvisor", "microvm")) else 300
    answers: dict[int, bytes] = {}

    async def one(number: int) -> None:
        answers[number] = (
            await client.exec(ExecRequest(argv=["cat"]), input=str(number).encode())
        ).stdout

    with anyio.fail_after(PATIENCE_S):
        async with anyio.create_task_group() as tasks:
            for number in range(count):
                tasks.start_soon(one, number)
    assert answers == {number: str(number).encode() for number in range(count)}
