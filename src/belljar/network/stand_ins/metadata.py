"""The stand-in `metadata`: AWS's instance metadata service, IMDSv1 and v2.

Its identity and credentials belong to no one; what it serves is in `metadata.json`. Every value
comes from the range's randomness, so credentials found elsewhere name the range they were taken
from. Handing credentials out is on record as an attempt before they leave. `data` replaces or adds
paths; `credentials` are a decoy's. Source: "Use the Instance Metadata Service", Amazon EC2 user
guide.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from belljar.network.gateway.context import App, StandInContext
from belljar.network.stand_ins.documents import Fault, Faults, refuse_faults
from belljar.network.stand_ins.web import (
    Answer,
    Pairs,
    Request,
    compact,
    http_app,
    phrase,
    text_answer,
    uuid_of,
)
from belljar.signals.credentials import make_credentials
from belljar.units import quoted

MAX_TOKENS: Final = 1024
MAX_TTL_S: Final = 21_600
_MAX_DATA: Final = 256 << 10
_USUAL_REGION: Final = "eu-west-1"
_ROLES: Final = ("app-server", "web-backend", "batch-worker", "ci-runner")
# Read when the module is imported: a confined gateway has no files.
_TREE: Final[Mapping[str, Any]] = json.loads(Path(__file__).with_suffix(".json").read_text())
# The header that carries a token of version 2.
_FIELD: Final = "x-aws-ec2-metadata-token"
_SERVER: Final[Pairs] = (("server", "EC2ws"),)


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """One machine and what it may claim to be."""

    region: str
    account: str
    instance: str
    address: str
    mac: str
    role: str
    uuid: str
    tenant: str
    access_key_id: str
    secret_key: str
    session_token: str
    started_s: int

    @property
    def zone(self) -> str:
        """An availability zone of the region."""
        return f"{self.region}a"

    @property
    def key_digest(self) -> str:
        """For the record: the key's id, keyed by its secret."""
        return hmac.digest(self.secret_key.encode(), self.access_key_id.encode(), "sha256").hex()

    def tree(self, now_s: float) -> Any:  # noqa: ANN401 - JSON
        """Return the service's data of this hour, its `{names}` filled in; `$json` becomes text."""
        issued_s = now_s - now_s % 3600
        uuid = self.uuid.replace("-", "")
        arn = f"arn:aws:iam::{self.account}:instance-profile/{self.role}"
        names = {field.name: getattr(self, field.name) for field in fields(self)} | {
            "zone": self.zone,
            "host": f"ip-{self.address.replace('.', '-')}",
            "uuid_start": uuid[:16],
            "uuid_end": uuid[16:32],
            "tenant_start": self.tenant.replace("-", "")[:16],
            "profile_arn": arn,
            # Of nothing that is secret: to ask for this gives no credentials out.
            "profile_id": base64.b32encode(hashlib.sha256(arn.encode()).digest()[:10]).decode(),
            "started": _stamp(self.started_s),
            "issued": _stamp(issued_s),
            "expires": _stamp(issued_s + 6 * 3600),
        }
        return _filled(_TREE, names)


def _filled(value: Any, names: Mapping[str, object]) -> Any:  # noqa: ANN401 - any JSON value
    if isinstance(value, dict):
        if "$json" in value:
            return json.dumps(_filled(value["$json"], names), indent=2)
        return {_filled(key, names): _filled(item, names) for key, item in value.items()}
    return value.format_map(names) if isinstance(value, str) else value


def _stamp(seconds: float) -> str:
    return datetime.fromtimestamp(int(seconds), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def make_identity(
    region: str,
    random: Callable[[int], bytes],
    clock: Callable[[], float],
    credentials: Mapping[str, str] | None = None,
) -> Identity:
    """`region` "": a usual one; `credentials` None: made."""
    octets, started = random(3), int(clock()) - 3600 - int.from_bytes(random(2))
    return Identity(
        region=region or _USUAL_REGION,
        account="".join(str(byte % 10) for byte in b"\1" + random(11)),
        instance=f"i-0{random(8).hex()}",
        address=f"172.31.{octets[0]}.{1 + octets[1] % 254}",
        mac="02:" + random(5).hex(":"),
        role=_ROLES[octets[2] % len(_ROLES)],
        uuid=uuid_of(random(16)),
        tenant=uuid_of(random(16)),
        started_s=started,
        **(credentials or make_credentials(random)),
    )


def check(settings: Mapping[str, Any], _directory: Path | None) -> Faults:
    """What the policy's model of the fields leaves open. The kind has no files."""
    problems: list[Fault] = []
    region, data = settings.get("region", "x"), settings.get("data", {})
    if not region.replace("-", "").isalnum() or not region.isascii():
        problems.append(Fault(f"{quoted(region)} is no region, as in `eu-west-1`", ("region",)))
    if len(compact(data)) > _MAX_DATA:
        problems.append(Fault(f"longer than {_MAX_DATA} characters in all", ("data",)))
    wrong = [path for path in data if not path.startswith("/")]
    problems += [Fault("a path begins with `/`", ("data", path)) for path in wrong]
    return tuple(problems)


def make(context: StandInContext) -> App:
    """The ASGI app. Raises `PolicyError` as `check` finds."""
    settings: Mapping[str, Any] = context.settings
    refuse_faults(check(settings, None), context.id)
    region, credentials = settings.get("region", ""), settings.get("credentials")
    identity = make_identity(region, context.random, context.clock, credentials)
    return http_app(_Metadata(context, identity, settings.get("data", {})).handle)


class _Metadata:
    def __init__(
        self, context: StandInContext, identity: Identity, data: Mapping[str, str]
    ) -> None:
        self.context, self.identity, self.data = context, identity, data
        self.tokens: OrderedDict[str, float] = OrderedDict()

    async def record_credentials(self, request: Request) -> None:
        data = {
            "what": "credentials",
            "cloud": "aws",
            "identity": self.identity.role,
            "key_digest": self.identity.key_digest,
            "path": request.raw_path[:512],
        }
        await self.context.record("network.attempt", data)

    async def handle(self, request: Request) -> Answer:
        if request.path == "/latest/api/token":
            return self.token(request)
        if request.method not in ("GET", "HEAD"):
            return self.error(405)
        headers = _SERVER
        if request.has_header(_FIELD):
            left = self.tokens.get(request.header(_FIELD), 0.0) - self.context.clock()
            if left < 1:
                return self.error(401)
            headers = (*headers, (f"{_FIELD}-ttl-seconds", str(int(left))))
        elif self.context.settings.get("tokens") == "required":
            return self.error(401)
        found = self.find(request.path)
        if found is None:
            return self.error(404)
        secrets = ["meta-data", "iam", "security-credentials", self.identity.role]
        if [part for part in request.path.split("/") if part][1:5] == secrets:
            await self.record_credentials(request)
        return text_answer(found, headers=headers, media="text/plain")

    def token(self, request: Request) -> Answer:
        # Refused through a proxy, as the real service does against open proxies.
        if request.method != "PUT":
            return self.error(405)
        if request.has_header("x-forwarded-for"):
            return self.error(403)
        ttl = request.header(f"{_FIELD}-ttl-seconds")
        if not (ttl.isascii() and ttl.isdigit() and len(ttl) <= 5 and 1 <= int(ttl) <= MAX_TTL_S):
            return self.error(400)
        token = base64.urlsafe_b64encode(b"\0" * 4 + self.context.random(38)).decode()
        self.tokens[token] = self.context.clock() + int(ttl)
        if len(self.tokens) > MAX_TOKENS:
            self.tokens.popitem(last=False)
        headers = (*_SERVER, (f"{_FIELD}-ttl-seconds", ttl))
        return text_answer(token, headers=headers, media="text/plain")

    def find(self, path: str) -> str | None:
        """A value's text, or the names below."""
        if path in self.data:
            return self.data[path]
        parts = [part for part in path.split("/") if part]
        if not parts:
            return "1.0\n2020-10-27\nlatest"
        if parts[0] not in ("latest", "1.0", "2020-10-27"):
            return None
        at = self.identity.tree(self.context.clock())
        for part in parts[1:]:
            at = at.get(part) if isinstance(at, dict) else None
        if at is None or isinstance(at, str):
            return at
        below = {name: isinstance(value, dict) for name, value in at.items()}
        prefix = path.rstrip("/") + "/"
        for extra in self.data:
            if extra.startswith(prefix):
                name, more, _ = extra.removeprefix(prefix).partition("/")
                below[name] = below.get(name, False) or bool(more)
        return "\n".join(f"{name}/" if more else name for name, more in sorted(below.items()))

    def error(self, status: int) -> Answer:
        page = f"<html><body><h1>{status} - {phrase(status)}</h1></body></html>\n"
        return text_answer(page, status, _SERVER, media="text/html")
