"""Calls of Harbor's to an environment, run by the Python that has Harbor: see `test_harbor`.

`python -m tests.integration.harbor_calls DIRECTORY`, where `DIRECTORY/NAME/task` is a task for each
of `ALL`.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

import anyio

POLICY = """belljar: 1
risk: low
resources: {memory: 512MiB, disk: 64MiB}
network:
  default: simulate
  stand_ins:
    one: {kind: http, names: [one.example, other.example], routes: [{path: /, body: hi}]}
    two: {kind: http, names: [two.example], routes: [{path: /, body: hi}]}
  upstreams: [{host: real.example, ports: [443], methods: [GET], budget: 1MiB, reason: this test looks at it}]
"""
FETCH = "import urllib.request as r; print(r.urlopen('http://{}/').read().decode())"


def made(at: Path, *phases: Any, policy: str = "low", **config: Any) -> Any:  # noqa: ANN401
    """An environment as a trial makes it: the first network is the one at the start."""
    from harbor.models.task.config import EnvironmentConfig
    from harbor.models.trial.paths import TrialPaths

    from belljar.harbor import BelljarEnvironment

    return BelljarEnvironment(
        *(at / "task" / "environment", "t", "t__env", TrialPaths(at / "trial")),
        EnvironmentConfig(docker_image="default", **{"cpus": 1, "memory_mb": 256, **config}),
        network_policy=phases[0] if phases else None,
        phase_network_policies=phases[1:],
        policy=policy,
    )


async def refusal(call: Any) -> str:  # noqa: ANN401
    from belljar.errors import BelljarError

    try:
        await call
    except (BelljarError, RuntimeError) as error:
        return str(error)
    raise AssertionError("it was not refused")


async def commands(at: Path) -> None:
    """With user, directory, variables and time; a flood is bounded; a cancelled one is killed; the
    end can be repeated."""
    cell = made(at)
    await cell.start(force_build=False)
    said = await cell.exec("id -un; pwd; echo $A", cwd="/tmp", env={"A": "b"}, user="root")
    assert (said.stdout, said.return_code) == ("root\n/tmp\nb\n", 0)
    assert (await cell.exec("id -u", user=65534)).stdout == "65534\n"
    assert (await cell.exec("echo no >&2; exit 3")).return_code == 3
    assert "timed out" in await refusal(cell.exec("sleep 60", timeout_sec=1))
    flood = await cell.exec("head -c 300000000 /dev/zero")
    assert (flood.return_code, len(flood.stdout) < 300_000_000) == (0, True)
    assert "bytes of output were dropped" in flood.stderr
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(cell.exec, "touch /tmp/began; sleep 1234")
        for _ in range(3000):  # until it runs, however slow the machine is
            if await cell.is_file("/tmp/began"):
                break
            await anyio.sleep(0.1)
        tasks.cancel_scope.cancel()
    for _ in range(100):
        if "1234" not in (await cell.exec("cat /proc/[0-9]*/cmdline", user="root")).stdout:
            break
        await asyncio.sleep(0.05)
    else:
        raise AssertionError("the cancelled command lives on")
    await cell.stop(delete=False)
    await cell.stop(delete=True)
    assert "not started" in await refusal(cell.exec("true"))


async def files(at: Path) -> None:
    """In both directions; nothing is sent or written by a link that leads out."""
    cell, task = made(at), at / "task"
    await cell.start(force_build=False)
    sent = task / "sent"
    (sent / "in").mkdir(parents=True)
    (sent / "in" / "a").write_text("1")
    (task / "out").symlink_to("/etc")
    for source in (task / "out", task / "out" / "passwd"):
        assert "not sent" in await refusal(cell.upload_file(source, "/data/leak"))
    assert "not sent" in await refusal(cell.upload_dir("/etc", "/data/leak"))
    await cell.upload_dir(sent, "/data")
    await cell.upload_file(sent / "in" / "a", "/data/b")
    hostile = "ln -s /etc/passwd out; ln -s ../../.. up; mkfifo pipe; touch -- $'-r\\n\\033[2J'"
    assert (await cell.exec(f"cd /data && {hostile}", user="root")).return_code == 0
    await cell.download_dir("/data", at / "back")
    back = sorted(os.fsencode(each.relative_to(at / "back")) for each in (at / "back").rglob("*"))
    assert back == [b"-r\n\033[2J", b"b", b"in", b"in/a"], back
    await cell.download_file("/data/b", at / "one")
    assert (at / "one").read_text() == "1"
    # One that becomes a link between two downloads leads nowhere, either.
    await cell.exec("rm -r /data/in && ln -s /etc /data/in", user="root")
    await cell.download_dir("/data", at / "back")
    assert not list((at / "back").rglob("passwd"))
    await cell.stop(delete=True)


async def networks(at: Path) -> None:
    """Of the policy only what is on the task's list, the same in all phases; of a public one, which
    is Harbor's default, nothing; and no more than the policy's limits."""
    from harbor.models.task.config import NetworkPolicy

    policy = at / "policy.yaml"
    policy.write_text(POLICY)
    public, none = NetworkPolicy(), NetworkPolicy(network_mode="no-network")
    one, real, other, address = (
        NetworkPolicy(network_mode="allowlist", allowed_hosts=[name])
        for name in ("one.example", "real.example", "nobody.example", "10.0.0.0/8")
    )
    cell = made(at, one, one, policy=str(policy), memory_mb=4096, storage_mb=32, cpus=64)
    held = cell._policy("default", cell._hosts()).policy
    assert (held.resources.cpus, held.resources.memory_bytes >> 20) == (1, 512)
    assert held.resources.disk_bytes >> 20 == 32
    assert (held.network.upstreams, held.network.sink, held.network.default) == ((), False, "deny")
    await cell.start(force_build=False)
    assert (await cell.exec(f'python3 -c "{FETCH.format("one.example")}"')).stdout == "hi\n"
    for name in ("other.example", "two.example", "real.example"):
        assert (await cell.exec(f'python3 -c "{FETCH.format(name)}"')).return_code == 1, name
    await cell.stop(delete=True)
    cell = made(at, public, none, public, policy=str(policy))
    await cell.start(force_build=False)
    assert "eth" not in (await cell.exec("cat /proc/net/dev")).stdout
    await cell.set_network_policy(none)
    await cell.stop(delete=True)
    for said, phases in (
        ("different networks", (none, one)),
        ("different networks", (one, one, real)),
        ("nobody.example", (other, other)),
        ("real.example", (real, real)),
        ("10.0.0.0/8", (address, address)),
    ):
        assert said in await refusal(made(at, *phases, policy=str(policy)).start(force_build=False))
    assert "one.example" in await refusal(made(at, one, one).start(force_build=False))
    (at / "task" / "task.toml").write_text('[agent]\nnetwork_mode = "public"\n')
    assert "Internet" in await refusal(made(at, public, public).start(force_build=False))
    (at / "task" / "environment" / "docker-compose.yaml").touch()
    assert "services" in await refusal(made(at, none).start(force_build=False))
    for config in ({"gpus": 1}, {"os": "windows"}, {"tpu": {"type": "v4", "topology": "2x2"}}):
        assert "no GPU" in await refusal(made(at, none, **config).start(force_build=False))


ALL = {each.__name__: each for each in (commands, files, networks)}

if __name__ == "__main__":

    async def main() -> None:
        async with anyio.create_task_group() as tasks:
            for name, calls in ALL.items():
                tasks.start_soon(calls, Path(sys.argv[1], name))

    asyncio.run(main())
