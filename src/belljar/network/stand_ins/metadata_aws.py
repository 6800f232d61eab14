"""What Amazon's instance metadata service says. Pure."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final, TypeAlias

from belljar.network.stand_ins.identity import Identity
from belljar.network.stand_ins.web import Answer, phrase, text_answer

Tree: TypeAlias = "dict[str, Tree | str]"
_CREDENTIALS_S: Final = 6 * 3600


def stamp(seconds: float) -> str:
    """A time as the service writes it."""
    return datetime.fromtimestamp(int(seconds), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def token(random: Callable[[int], bytes]) -> str:
    """A session token of IMDSv2."""
    return base64.urlsafe_b64encode(b"\0" * 4 + random(38)).decode()


def error(status: int) -> Answer:
    """An error as the service shows it."""
    title = f"{status} - {phrase(status)}"
    page = (
        '<?xml version="1.0" encoding="iso-8859-1"?>\n<!DOCTYPE html PUBLIC "-//W3C//DTD XHTML '
        '1.0 Transitional//EN"\n'
        '\t"http://www.w3.org/TR/xhtml1/DTD/xhtml1-transitional.dtd">\n<html '
        'xmlns="http://www.w3.org/1999/xhtml" xml:lang="en" lang="en">\n'
        f" <head>\n  <title>{title}</title>\n </head>\n <body>\n  <h1>{title}</h1>\n "
        f"</body>\n</html>\n"
    )
    return text_answer(page, status, (("server", "EC2ws"),), media="text/html")


def document(identity: Identity) -> str:
    """The instance identity document."""
    fields = {
        "accountId": identity.account,
        "architecture": "x86_64",
        "availabilityZone": identity.zone,
        "billingProducts": None,
        "imageId": f"ami-0{identity.uuid.replace('-', '')[:16]}",
        "instanceId": identity.instance,
        "instanceType": "t3.medium",
        "pendingTime": stamp(identity.started_s),
        "privateIp": identity.address,
        "region": identity.region,
        "version": "2017-09-30",
    }
    return json.dumps(fields, indent=2)


def credentials(identity: Identity, now_s: float) -> str:
    """Temporary credentials of the instance's role."""
    begun = now_s - now_s % 3600
    fields = {
        "Code": "Success",
        "LastUpdated": stamp(begun),
        "Type": "AWS-HMAC",
        "AccessKeyId": identity.access_key_id,
        "SecretAccessKey": identity.secret_key,
        "Token": identity.session_token,
        "Expiration": stamp(begun + _CREDENTIALS_S),
    }
    return json.dumps(fields, indent=2)


def tree(identity: Identity, now_s: float) -> Tree:
    """Everything below `/latest`."""
    name = f"{identity.host}.{identity.region}.compute.internal"
    arn = f"arn:aws:iam::{identity.account}:instance-profile/{identity.role}"
    # Of nothing that is secret: to ask for this gives no credentials out.
    profile = base64.b32encode(hashlib.sha256(arn.encode()).digest()[:10]).decode()
    info = {
        "Code": "Success",
        "LastUpdated": stamp(now_s - now_s % 3600),
        "InstanceProfileArn": arn,
        "InstanceProfileId": f"AIPA{profile}",
    }
    interface: Tree = {
        "device-number": "0",
        "interface-id": f"eni-0{identity.uuid.replace('-', '')[16:32]}",
        "local-ipv4s": identity.address,
        "mac": identity.mac,
        "owner-id": identity.account,
        "subnet-ipv4-cidr-block": "172.31.0.0/16",
    }
    data: Tree = {
        "ami-id": f"ami-0{identity.uuid.replace('-', '')[:16]}",
        "ami-launch-index": "0",
        "hostname": name,
        "iam": {
            "info": json.dumps(info, indent=2),
            "security-credentials": {identity.role: credentials(identity, now_s)},
        },
        "instance-action": "none",
        "instance-id": identity.instance,
        "instance-life-cycle": "on-demand",
        "instance-type": "t3.medium",
        "local-hostname": name,
        "local-ipv4": identity.address,
        "mac": identity.mac,
        "network": {"interfaces": {"macs": {identity.mac: interface}}},
        "placement": {"availability-zone": identity.zone, "region": identity.region},
        "profile": "default-hvm",
        "reservation-id": f"r-0{identity.tenant.replace('-', '')[:16]}",
        "security-groups": "default",
        "services": {"domain": "amazonaws.com", "partition": "aws"},
    }
    return {"dynamic": {"instance-identity": {"document": document(identity)}}, "meta-data": data}


def find(root: Tree, data: Mapping[str, Any], path: str) -> str | None:
    """The text at a path: a value, or the names below with `/` behind what goes on.

    `data` goes first.
    """
    if path in data:
        value = data[path]
        return value if isinstance(value, str) else json.dumps(value)
    parts = [part for part in path.split("/") if part]
    if not parts:
        return "1.0\n2020-10-27\nlatest"
    at: Tree | str | None = root if parts[0] in ("latest", "1.0", "2020-10-27") else None
    for part in parts[1:]:
        at = at.get(part) if isinstance(at, dict) else None
    if at is None or isinstance(at, str):
        return at
    below = {name: isinstance(value, dict) for name, value in at.items()}
    prefix = path.rstrip("/") + "/"
    for extra in data:
        if extra.startswith(prefix):
            name, more, _ = extra.removeprefix(prefix).partition("/")
            below[name] = below.get(name, False) or bool(more)
    return "\n".join(f"{name}/" if more else name for name, more in sorted(below.items()))


def is_secret(path: str, identity: Identity) -> bool:
    """Whether the path's value is credentials."""
    parts = [part for part in path.split("/") if part]
    return parts[1:4] == ["meta-data", "iam", "security-credentials"] and parts[4:5] == [
        identity.role
    ]
