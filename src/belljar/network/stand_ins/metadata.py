"""The stand-in `metadata`: Amazon's instance metadata service, IMDSv1 and v2.

Its identity and credentials belong to no one. Every value comes from the range's randomness, so
credentials found elsewhere name the range they were taken from. Handing credentials out is on
record as an attempt before they leave. `data` replaces or adds paths; `credentials` are a decoy's.

Source: "Use the Instance Metadata Service", Amazon EC2 user guide.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from belljar.network.gateway.context import StandInContext
from belljar.network.stand_ins.faults import Fault, Faults
from belljar.network.stand_ins.web import (
    Answer,
    App,
    Pairs,
    Request,
    http_app,
    plain_error,
    text_answer,
)
from belljar.signals.credentials import make_credentials
from belljar.units import iso_time

# A guest may ask for tokens without end; the oldest are forgotten.
MAX_TOKENS: Final = 1024
# Six hours, as Amazon has it.
MAX_TTL_S: Final = 21_600
_REGION: Final = "eu-west-1"
_ROLES: Final = ("app-server", "web-backend", "batch-worker", "ci-runner")
_TOKEN: Final = "x-aws-ec2-metadata-token"  # noqa: S105 - a field's name
_VERSIONS: Final = ("1.0", "2020-10-27", "latest")
_SERVER: Final = (("server", "EC2ws"),)  # As EC2's own names itself


def check(settings: Mapping[str, Any], _directory: Path | None) -> Faults:
    """Return what the policy's model of the fields leaves open. The kind has no files."""
    wrong = [path for path in settings.get("data", {}) if not path.startswith("/")]
    return tuple(Fault("a path begins with `/`", ("data", path)) for path in wrong)


def make(context: StandInContext) -> App:
    """Return the application."""
    return http_app(_Metadata(context).handle)


class _Metadata:
    """One machine's service. All that it claims is drawn when it is made."""

    def __init__(self, context: StandInContext) -> None:
        settings: Mapping[str, Any] = context.settings
        random = context.random
        self._context, self._data = context, settings.get("data", {})
        self._needs_token = settings.get("tokens") == "required"
        self._tokens: OrderedDict[str, float] = OrderedDict()
        octets = random(3)
        # Twelve digits, the first of them not 0.
        self._account = "".join(str(byte % 10) for byte in b"\1" + random(11))
        self._instance, self._mac = f"i-0{random(8).hex()}", "02:" + random(5).hex(":")
        self._address = f"172.31.{octets[0]}.{1 + octets[1] % 254}"
        self._role = _ROLES[octets[2] % len(_ROLES)]
        self._image = random(8).hex()
        self._secrets: Mapping[str, str] = settings.get("credentials") or make_credentials(random)

    async def handle(self, request: Request) -> Answer:
        if request.path == "/latest/api/token":
            return self._make_token(request)
        if request.method not in ("GET", "HEAD"):
            return plain_error(405, _SERVER)
        headers: Pairs = _SERVER
        if request.header(_TOKEN):
            left = self._tokens.get(request.header(_TOKEN), 0.0) - self._context.clock()
            if left < 1:
                return plain_error(401, _SERVER)
            headers = (*headers, (f"{_TOKEN}-ttl-seconds", str(int(left))))
        elif self._needs_token:
            return plain_error(401, _SERVER)
        found = self._find(request.path)
        if found is None:
            return plain_error(404, _SERVER)
        secrets = ["meta-data", "iam", "security-credentials", self._role]
        if [part for part in request.path.split("/") if part][1:5] == secrets:
            key_id, secret = self._secrets["access_key_id"], self._secrets["secret_key"]
            data = {
                "what": "credentials",
                "cloud": "aws",
                "identity": self._role,
                # The key's id, keyed by its secret: whoever has the key finds its range
                "key_digest": hmac.digest(secret.encode(), key_id.encode(), "sha256").hex(),
                "path": request.raw_path[:512],
            }
            await self._context.record("network.attempt", data)
        return text_answer(found, headers=headers, media="text/plain")

    def _make_token(self, request: Request) -> Answer:
        if request.method != "PUT":
            return plain_error(405, _SERVER)
        ttl = request.header(f"{_TOKEN}-ttl-seconds")
        if not (ttl.isascii() and ttl.isdigit() and len(ttl) <= 5 and 1 <= int(ttl) <= MAX_TTL_S):
            return plain_error(400, _SERVER)
        token = base64.urlsafe_b64encode(b"\0" * 4 + self._context.random(38)).decode()
        self._tokens[token] = self._context.clock() + int(ttl)
        if len(self._tokens) > MAX_TOKENS:
            self._tokens.popitem(last=False)
        headers = (*_SERVER, (f"{_TOKEN}-ttl-seconds", ttl))
        return text_answer(token, headers=headers, media="text/plain")

    def _find(self, path: str) -> str | None:
        """A value's text, or the names below."""
        if path in self._data:
            return str(self._data[path])
        parts = [part for part in path.split("/") if part]
        if not parts:
            return "\n".join(_VERSIONS)
        if parts[0] not in _VERSIONS:
            return None
        at: Any = self._tree()
        for part in parts[1:]:
            at = at.get(part) if isinstance(at, dict) else None
        if at is None or isinstance(at, str):
            return at
        return "\n".join(f"{name}/" if isinstance(at[name], dict) else name for name in sorted(at))

    def _tree(self) -> dict[str, Any]:
        """What is served below a version: texts, and mappings of names to more."""
        zone, address = f"{_REGION}a", self._address
        now_s = self._context.clock()
        issued_s = now_s - now_s % 3600
        profile = f"arn:aws:iam::{self._account}:instance-profile/{self._role}"
        # Of nothing that is secret: to ask for this gives no credentials out.
        number = base64.b32encode(hashlib.sha256(profile.encode()).digest()[:10]).decode()
        fresh = {"Code": "Success", "LastUpdated": iso_time(issued_s)}
        info = {**fresh, "InstanceProfileArn": profile, "InstanceProfileId": f"AIPA{number}"}
        secrets = {
            **fresh,
            "Type": "AWS-HMAC",
            "AccessKeyId": self._secrets["access_key_id"],
            "SecretAccessKey": self._secrets["secret_key"],
            "Token": self._secrets["session_token"],
            "Expiration": iso_time(issued_s + 6 * 3600),
        }
        host = f"ip-{address.replace('.', '-')}.{_REGION}.compute.internal"
        document = {
            "accountId": self._account,
            "availabilityZone": zone,
            "imageId": f"ami-0{self._image}",
            "instanceId": self._instance,
            "instanceType": "t3.medium",
            "privateIp": address,
            "region": _REGION,
        }
        data = {
            "ami-id": f"ami-0{self._image}",
            "hostname": host,
            "iam": {
                "info": json.dumps(info, indent=2),
                "security-credentials": {self._role: json.dumps(secrets, indent=2)},
            },
            "instance-id": self._instance,
            "instance-type": "t3.medium",
            "local-hostname": host,
            "local-ipv4": address,
            "mac": self._mac,
            "placement": {"availability-zone": zone, "region": _REGION},
            "security-groups": "default",
        }
        identity = {"instance-identity": {"document": json.dumps(document, indent=2)}}
        return {"dynamic": identity, "meta-data": data}
