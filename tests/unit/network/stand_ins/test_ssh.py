"""A decoy SSH server, its real client, and clients that send anything."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import asyncssh
import pytest
from asyncssh.channel import SSHChannel
from asyncssh.packet import Boolean, String
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fakes.registries import Ledger, served_service

from belljar.events import JsonValue
from belljar.network.stand_ins.ssh import MAX_ATTEMPTS, make
from belljar.policy.guarding import DecoyKind
from belljar.policy.model import DecoySpec
from belljar.signals.decoys import KEY_BYTES, Minted, mint, mint_service

SSH = shutil.which("ssh")
SETSID = ["setsid", "-w"]
Client = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def service() -> Minted:
    spec = DecoySpec.model_construct(id="jump", kind=DecoyKind.SSH, place="127.0.0.1")
    return mint_service(b"k" * KEY_BYTES, "range", spec)


def key_files(service: Minted, directory: Path, port: int) -> Minted:
    """The decoy file that holds the login of a service at this port."""
    assert service.login is not None
    login = replace(service.login, port=port)
    spec = DecoySpec.model_construct(
        id="key", kind=DecoyKind.SSH_KEY, service="jump", place=f"{directory}/id"
    )
    minted = mint(b"k" * KEY_BYTES, "cell", spec, login=login)
    for file in minted.files:
        Path(file.path).write_bytes(file.content)
        Path(file.path).chmod(0o600)
    return minted


@contextmanager
def client(service: Minted, ledger: Ledger, directory: Path) -> Iterator[Client]:
    """OpenSSH's, with the files of the decoy and no others."""
    with served_service(make, service.settings, ledger) as port:
        key_files(service, directory, port)
        options = ["-F", f"{directory}/config", "-o", f"UserKnownHostsFile={directory}/known_hosts"]

        def run(*words: str, typed: str = "", **env: str) -> subprocess.CompletedProcess[str]:
            argv, env = [*SETSID, str(SSH), *options, *words], {"PATH": "/usr/bin:/bin", **env}
            how: dict[str, Any] = {"capture_output": True, "text": True, "timeout": 300}
            return subprocess.run(argv, check=False, input=typed, env=env, **how)

        yield run


NEEDS_SSH = pytest.mark.skipif(SSH is None, reason="ssh (Debian: openssh-client) is not installed")
REFUSAL = "This account is currently not available.\n"


def told(ledger: Ledger, what: str) -> list[tuple[dict[str, JsonValue], bytes]]:
    pairs = zip(ledger.attempts, ledger.bodies, strict=True)
    return [(event, body.content) for event, [body] in pairs if event["what"] == what]


def logins(ledger: Ledger) -> list[tuple[JsonValue, JsonValue, bytes]]:
    return [(each["operation"], each["ok"], sent) for each, sent in told(ledger, "login")]


def commands(ledger: Ledger) -> list[tuple[str, bytes]]:
    found = told(ledger, "command")
    return [(str(name), sent) for each, sent in found for name in each["names"]]  # type: ignore[union-attr]


@pytest.mark.promise("5.6")
@NEEDS_SSH
def test_the_real_client_enters_with_the_password(service: Minted, tmp_path: Path) -> None:
    """A guess is refused; the minted one opens a session with or without a terminal."""
    ledger = Ledger()
    asked = tmp_path / "ask"
    asked.write_text('#!/bin/sh\necho "$WORD"\n')
    asked.chmod(0o700)
    with client(service, ledger, tmp_path) as ssh:

        def enter(word: str, *words: str, prompts: int = 1) -> subprocess.CompletedProcess[str]:
            env = {"SSH_ASKPASS": str(asked), "SSH_ASKPASS_REQUIRE": "force", "WORD": word}
            only = ("PubkeyAuthentication=no", f"NumberOfPasswordPrompts={prompts}")
            options = [part for each in only for part in ("-o", each)]
            return ssh(*options, *words, "bastion", typed="pwd\n", **env)

        assert enter("letmein-letmein").returncode == 255
        for terminal in ("-tt", "-T"):
            done = enter(service.settings["password"], terminal)
            assert done.returncode == 1
            assert REFUSAL.strip() in done.stdout
        assert "Too many authentication failures" in enter("guess", prompts=9).stderr
    assert logins(ledger) == [
        ("ssh.password", False, b"letmein-letmein"),
        *[("ssh.password", True, service.settings["password"].encode())] * 2,
        *[("ssh.password", False, b"guess")] * MAX_ATTEMPTS,
    ]


@pytest.mark.promise("5.6")
@NEEDS_SSH
def test_the_real_client_gets_nothing_else(service: Minted, tmp_path: Path) -> None:
    """No forwarding, no listening and no file transfer; each is on record."""
    ledger = Ledger()
    with client(service, ledger, tmp_path) as ssh:
        batch = ("-o", "BatchMode=yes")
        forwarded = ssh(*batch, "-W", "127.0.0.1:80", "bastion")
        listened = ssh(*batch, "-o", "ExitOnForwardFailure=yes", "-N", "-R", "8080:a:80", "bastion")
        ssh(*batch, "-o", "ExitOnForwardFailure=yes", "-N", "-R", "/run/x.sock:a:80", "bastion")
        ssh(*batch, "-s", "bastion", "sftp")
    assert "administratively prohibited" in forwarded.stderr
    assert "remote port forwarding failed" in listened.stderr
    assert {("forward", b"forward to 127.0.0.1:80"), ("subsystem", b"sftp")} <= {*commands(ledger)}
    listening = [what for name, what in commands(ledger) if name == "listen"]
    assert (len(listening), listening[1:]) == (2, [b"/run/x.sock"])


@pytest.mark.promise("5.6")
@NEEDS_SSH
def test_nothing_is_answered_that_is_not_on_record(service: Minted, tmp_path: Path) -> None:
    """With a full record the right key opens nothing."""
    with client(service, Ledger(full=True), tmp_path) as ssh:
        done = ssh("-o", "BatchMode=yes", "bastion", "id")
    assert done.returncode == 255
    assert REFUSAL not in done.stdout


@pytest.mark.promise("5.6")
@given(st.sampled_from([b"", b"SSH-2.0-x\r\n"]), st.binary(max_size=300))
@settings(deadline=None, max_examples=30)
def test_any_bytes_end_within_bounds(head: bytes, data: bytes) -> None:
    """Before there are keys, whatever is sent: the server closes once the client does."""
    spec = DecoySpec.model_construct(id="jump", kind=DecoyKind.SSH, place="127.0.0.1")
    made = mint_service(b"k" * KEY_BYTES, "range", spec)
    with (
        served_service(make, made.settings, Ledger()) as port,
        socket.create_connection(("127.0.0.1", port), timeout=30) as connection,
    ):
        connection.sendall(head + data)
        connection.shutdown(socket.SHUT_WR)
        with contextlib.suppress(ConnectionError):
            received = b"".join(iter(lambda: connection.recv(65536), b""))
            assert received.startswith(b"SSH-2.0-OpenSSH_")


class Hasty(asyncssh.SSHClient):
    """A client that does not wait for the answer to a login before it sends the next one."""

    def connection_made(self, conn: asyncssh.SSHClientConnection) -> None:
        self._connection = conn

    async def password_auth_requested(self) -> str:
        """Two passwords, one of them in a change, and then the usual one."""
        send = self._connection.send_userauth_request
        await send(b"password", Boolean(False), String(b"first"))
        await send(b"password", Boolean(True), String(b"second"), String(b"new"))
        return "third"


def test_logins_without_a_wait_between_are_all_on_record(service: Minted) -> None:
    """One that is overtaken is not answered, but recorded."""
    ledger = Ledger()

    async def attack(port: int) -> None:
        with contextlib.suppress(asyncssh.Error):
            only: dict[str, Any] = {"known_hosts": None, "client_keys": [], "config": []}
            only |= {"client_factory": Hasty, "preferred_auth": "password"}
            await asyncssh.connect("127.0.0.1", port, username="deploy", **only)

    with served_service(make, service.settings, ledger) as port:
        asyncio.run(attack(port))
    presented = {credential for _, _, credential in logins(ledger)}
    assert presented >= {b"first", b"second\nnew", b"third"}


def test_what_a_session_is_given_before_its_command_is_on_record(service: Minted) -> None:
    """The packet record can't be decrypted: a terminal's name, a signal's and variables of a
    session without a command would be nowhere."""
    ledger = Ledger()

    async def attack(port: int) -> None:
        only: dict[str, Any] = {"known_hosts": None, "client_keys": [], "config": []}
        login = {"username": service.settings["user"], "password": service.settings["password"]}
        async with asyncssh.connect("127.0.0.1", port, **login, **only) as connection:
            process = await connection.create_process(term_type="name-of-a-terminal")
            process.send_signal("ODDSIG")
            await process.wait()
            channel = SSHChannel(
                connection, asyncio.get_running_loop(), None, "strict", 1 << 16, 1 << 15
            )
            await channel._open(b"session")
            channel._send_request(b"env", String("WORD"), String("a-variable"))
            channel.close()

    with served_service(make, service.settings, ledger) as port:
        asyncio.run(attack(port))
    expected = {("terminal", b"name-of-a-terminal"), ("signal", b"ODDSIG")}
    assert expected | {("variables", b"WORD=a-variable")} <= {*commands(ledger)}


class Late(Ledger):
    async def record(self, *event: Any) -> None:  # noqa: ANN401 - as a ledger has it
        await asyncio.sleep(0.3)
        await super().record(*event)


def test_a_command_is_on_record_before_it_is_accepted(service: Minted) -> None:
    """asyncssh itself says so, and goes on."""
    ledger = Late()

    async def attack(port: int) -> list[tuple[str, bytes]]:
        only: dict[str, Any] = {"known_hosts": None, "client_keys": [], "config": []}
        login = {"username": service.settings["user"], "password": service.settings["password"]}
        async with asyncssh.connect("127.0.0.1", port, **login, **only) as connection:
            await connection.create_process("id")
            return commands(ledger)

    with served_service(make, service.settings, ledger) as port:
        assert asyncio.run(attack(port)) == [("exec", b"id")]
