"""Amazon's instance metadata service, v1 and v2."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping
from typing import Any, Final

from belljar.network.stand_ins import web
from belljar.signals.decoys import KEY_BYTES, RandomStream, make_credentials
from belljar.units import iso_time

MAX_TTL_S: Final = 21_600  # Six hours, as Amazon has it.
_REGION: Final = "eu-west-1"
_ROLES: Final = ("app-server", "web-backend", "batch-worker", "ci-runner")
_TOKEN: Final = "x-aws-ec2-metadata-token"  # noqa: S105 - a field's name
_VERSIONS: Final = ("1.0", "2020-10-27", "latest")
_SERVER: Final = (("server", "EC2ws"),)  # As EC2's own names itself


class _Metadata(web.HttpService):
    def __init__(self, context: web.StandInContext) -> None:
        settings: Mapping[str, Any] = context.settings
        random = context.random
        super().__init__(context)
        self._token = base64.b64encode(random(42)).decode()
        octets = random(3)
        self._instance = f"i-0{random(8).hex()}"
        self._address = f"172.31.{octets[0]}.{1 + octets[1] % 254}"
        self._role = _ROLES[octets[2] % len(_ROLES)]
        drawn = make_credentials(RandomStream(random(KEY_BYTES), "credentials"))
        self._secrets: Mapping[str, str] = settings.get("credentials") or drawn

    async def handle(self, request: web.Request) -> web.HttpAnswer:
        if request.path == "/latest/api/token":
            if request.method != "PUT":
                return web.plain_error(405, _SERVER)
            ttl = request.header(f"{_TOKEN}-ttl-seconds")
            if not re.fullmatch("[1-9][0-9]{0,4}", ttl) or int(ttl) > MAX_TTL_S:
                return web.plain_error(400, _SERVER)
            headers: web.Pairs = (*_SERVER, (f"{_TOKEN}-ttl-seconds", ttl))
            return web.text_answer(self._token, headers=headers, media="text/plain")
        if request.method not in ("GET", "HEAD"):
            return web.plain_error(405, _SERVER)
        headers = _SERVER
        if request.header(_TOKEN):
            if request.header(_TOKEN) != self._token:
                return web.plain_error(401, _SERVER)
            headers = (*headers, (f"{_TOKEN}-ttl-seconds", str(MAX_TTL_S)))
        found = self._find(request.path)
        if found is None:
            return web.plain_error(404, _SERVER)
        secrets = ["meta-data", "iam", "security-credentials", self._role]
        if [part for part in request.path.split("/") if part][1:5] == secrets:
            data = {"what": "credentials", "identity": self._role, "path": request.raw_path[:512]}
            await self.context.record(data)
        return web.text_answer(found, headers=headers, media="text/plain")

    def _find(self, path: str) -> str | None:
        parts = [part for part in path.split("/") if part]
        if not parts:
            return "\n".join(_VERSIONS)
        if parts[0] not in _VERSIONS:
            return None
        now_s = self.context.clock()
        issued_s = now_s - now_s % 3600
        secrets = {
            "Code": "Success",
            "LastUpdated": iso_time(issued_s),
            "Type": "AWS-HMAC",
            "AccessKeyId": self._secrets["access_key_id"],
            "SecretAccessKey": self._secrets["secret_key"],
            "Token": self._secrets["session_token"],
            "Expiration": iso_time(issued_s + 6 * 3600),
        }
        host = f"ip-{self._address.replace('.', '-')}.{_REGION}.compute.internal"
        data = {
            "hostname": host,
            "iam": {"security-credentials": {self._role: json.dumps(secrets, indent=2)}},
            "instance-id": self._instance,
            "instance-type": "t3.medium",
            "local-hostname": host,
            "local-ipv4": self._address,
            "placement": {"availability-zone": f"{_REGION}a", "region": _REGION},
            "security-groups": "default",
        }
        at: Any = {"meta-data": data}  # Texts, and mappings of names to more.
        for part in parts[1:]:
            at = at.get(part) if isinstance(at, dict) else None
        if at is None or isinstance(at, str):
            return at
        return "\n".join(f"{name}/" if isinstance(at[name], dict) else name for name in sorted(at))


make = _Metadata
