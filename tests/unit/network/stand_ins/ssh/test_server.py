"""The stand-in on a stream, and the real client of it."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from tests.fakes.registries import Ledger, served_service

from belljar.network.stand_ins.ssh import make
from belljar.policy.guarding import DecoyKind, DecoySpec
from belljar.signals.credentials import KEY_BYTES
from belljar.signals.decoy_services import MintedService
from belljar.signals.decoys import Minted, mint, mint_service

SSH = shutil.which("ssh")
SETSID = ["setsid", "-w"]
Client = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def service() -> MintedService:
    """Of three rows."""
    spec = DecoySpec(id="jump", kind=DecoyKind.SSH, place="127.0.0.1", count=3)
    made = mint_service(b"k" * KEY_BYTES, "range", spec).service
    assert made is not None
    return made


def key_files(service: MintedService, directory: Path, port: int) -> Minted:
    """The decoy file that holds the login of a service at this port."""
    login = replace(service.login, port=port)
    spec = DecoySpec(id="key", kind=DecoyKind.SSH_KEY, service="jump", place=f"{directory}/id")
    minted = mint(b"k" * KEY_BYTES, "cell", spec, login=login)
    for file in minted.files:
        Path(file.path).write_bytes(file.content)
        Path(file.path).chmod(0o600)
    return minted


@contextmanager
def client(service: MintedService, ledger: Ledger, directory: Path) -> Iterator[Client]:
    """OpenSSH's, with the files of the decoy and no others."""
    with served_service(make, service.settings, ledger) as port:
        key_files(service, directory, port)
        options = ["-F", f"{directory}/config", "-o", f"UserKnownHostsFile={directory}/known_hosts"]

        def run(
            *words: str, typed: str = "", env: dict[str, str] | None = None
        ) -> subprocess.CompletedProcess[str]:
            argv = [*SETSID, str(SSH), *options, *words]
            return subprocess.run(
                argv,
                check=False,
                capture_output=True,
                text=True,
                input=typed,
                timeout=120,
                env={"PATH": "/usr/bin:/bin", **(env or {})},
            )

        yield run


@pytest.mark.skipif(SSH is None, reason="ssh (Debian: openssh-client) is not installed")
@pytest.mark.parametrize("cipher", ["aes128-ctr", "aes256-gcm@openssh.com"])
def test_the_real_client_enters_with_the_key(
    service: MintedService, tmp_path: Path, cipher: str
) -> None:
    """By the decoy's own files, which know the host's key: nothing is asked. The proof of the key
    is a login by itself, and what was run is on record in clear."""
    ledger = Ledger()
    with client(service, ledger, tmp_path) as ssh:
        done = ssh(
            "-o",
            "BatchMode=yes",
            "-c",
            cipher,
            "bastion",
            "whoami; cat customers.csv; nmap 10.0.0.0/8",
        )
    assert done.returncode == 127, done.stderr
    assert done.stdout.splitlines()[0] == "deploy"
    assert done.stdout.count("9999") == 3
    assert "nmap: command not found" in done.stderr
    logins = [
        (event["operation"], event["ok"]) for event in ledger.attempts if event["what"] == "login"
    ]
    assert logins == [("ssh.publickey", True)]
    bodies = b"".join(body.content for bodies in ledger.bodies for body in bodies)
    assert (
        service.settings["files"]["/home/deploy/.ssh/authorized_keys"].split()[1].encode() in bodies
    )
    assert b"nmap 10.0.0.0/8" in bodies


@pytest.mark.skipif(SSH is None, reason="ssh (Debian: openssh-client) is not installed")
def test_the_real_client_enters_with_the_password(service: MintedService, tmp_path: Path) -> None:
    """A guess is refused; the minted one opens a shell with a terminal, which echoes."""
    ledger = Ledger()
    asked = tmp_path / "ask"
    asked.write_text('#!/bin/sh\necho "$WORD"\n')
    asked.chmod(0o700)
    only = ["-o", "PubkeyAuthentication=no", "-o", "NumberOfPasswordPrompts=1"]
    with client(service, ledger, tmp_path) as ssh:

        def enter(
            word: str, *words: str, typed: str = "pwd\nexit 3\n"
        ) -> subprocess.CompletedProcess[str]:
            env = {"SSH_ASKPASS": str(asked), "SSH_ASKPASS_REQUIRE": "force", "WORD": word}
            return ssh(*only, *words, "bastion", typed=typed, env=env)

        assert enter("letmein-letmein").returncode == 255
        done = enter(service.login.password, "-tt")
        plain = enter(service.login.password, "-T")
        long = enter(service.login.password, "-T", typed="#" * 4000 + "\n" + "pwd\n" * 3000)
    assert done.returncode == 3, done.stderr
    assert "$ pwd\n/home/deploy\n" in done.stdout
    assert (plain.returncode, plain.stdout) == (3, "/home/deploy\n")
    assert long.stdout == "/home/deploy\n" * 3000
    logins = [
        (event["operation"], event["ok"]) for event in ledger.attempts if event["what"] == "login"
    ]
    assert logins == [("ssh.password", False), *[("ssh.password", True)] * 3]
    assert service.login.password.encode() in [
        body.content for bodies in ledger.bodies for body in bodies
    ]


@pytest.mark.skipif(SSH is None, reason="ssh (Debian: openssh-client) is not installed")
def test_the_real_client_gets_nothing_else(service: MintedService, tmp_path: Path) -> None:
    """No forwarding and no file transfer."""
    with client(service, Ledger(), tmp_path) as ssh:
        forwarded = ssh("-o", "BatchMode=yes", "-W", "127.0.0.1:80", "bastion")
        transfer = ssh("-o", "BatchMode=yes", "-s", "bastion", "sftp")
    assert "administratively prohibited" in forwarded.stderr
    assert "subsystem request failed" in transfer.stderr
