"""The stand-in on a stream, and a real client of it."""

from __future__ import annotations

import shutil
import socket
import subprocess

import pytest
from tests.fakes.registries import Ledger, served_service

from belljar.network.stand_ins.redis import make
from belljar.policy.guarding import DecoyKind, DecoySpec
from belljar.signals.credentials import KEY_BYTES
from belljar.signals.decoy_services import MintedService
from belljar.signals.decoys import mint_service

CLI = shutil.which("redis-cli")


@pytest.fixture
def service() -> MintedService:
    """Of three rows."""
    spec = DecoySpec(id="cache", kind=DecoyKind.REDIS, place="cache.example", count=3)
    made = mint_service(b"k" * KEY_BYTES, "range", spec).service
    assert made is not None
    return made


def test_all_that_comes_is_on_record(service: MintedService) -> None:
    """Each login by itself, and its words among no commands; commands together; what broke off."""
    password, ledger = service.login.password.encode(), Ledger()
    sent = b"PING\r\nAUTH guess\r\nAUTH %s\r\nDBSIZE\r\nGET x\r\n*1\r\n$9\r\nhal" % password
    with (
        served_service(make, service.settings, ledger) as port,
        socket.create_connection(("127.0.0.1", port), timeout=30) as client,
    ):
        client.sendall(sent)
        client.shutdown(socket.SHUT_WR)
        replies = b"".join(iter(lambda: client.recv(65536), b""))
    assert [line[:1] for line in replies.splitlines()] == [b"-", b"-", b"+", b":", b"$"]
    assert [(event["what"], event["operation"], event.get("ok")) for event in ledger.attempts] == [
        ("command", "redis.command", None),
        ("login", "redis.auth", False),
        ("login", "redis.auth", True),
        ("command", "redis.command", None),
        ("command", "redis.command", None),
    ]
    bodies = [body.content for [body] in ledger.bodies]
    assert bodies == [b"PING\r\n", b"guess", password, b"DBSIZE\r\nGET x\r\n", b"*1\r\n$9\r\nhal"]
    assert ledger.attempts[3]["names"] == ["dbsize", "get"]


@pytest.mark.skipif(CLI is None, reason="redis-cli (Debian: redis-tools) is not installed")
def test_the_real_client_reads_it(service: MintedService) -> None:
    """redis-cli logs in, lists and reads, in both versions of the protocol."""
    with served_service(make, service.settings, Ledger()) as port:

        def cli(*words: str) -> str:
            argv = [str(CLI), "-p", str(port), *words]
            return subprocess.run(
                argv, check=True, capture_output=True, text=True, timeout=60
            ).stdout

        password = ["--no-auth-warning", "-a", service.login.password]
        assert "NOAUTH" in cli("DBSIZE")
        for version in ("-2", "-3"):
            assert (
                cli(version, *password, "--scan").split()
                == cli(version, *password, "KEYS", "*").split()
            )
            assert "9999" in cli(version, *password, "HGETALL", "customer:1")
        assert "redis_version:7.0" in cli(*password, "INFO")
