"""The stand-in `metadata`: a cloud's instance metadata service.

Its identity and credentials belong to no one. `cloud`: `aws` (IMDSv1 and v2), `gcp`, `azure`; what
each serves is in `metadata.json`. Every value comes from the range's randomness, so credentials
found elsewhere name the range they were taken from. Handing credentials out is on record as an
attempt before they leave. `data` replaces or adds paths; `credentials` are a decoy's.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import re
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
    json_answer,
    phrase,
    text_answer,
    uuid_of,
)
from belljar.signals.credentials import make_credentials
from belljar.units import quoted

MAX_TOKENS: Final = 1024
MAX_TTL_S: Final = 21_600
_MAX_DATA: Final = 256 << 10
_REGIONS: Final = {"aws": "eu-west-1", "gcp": "europe-west1", "azure": "westeurope"}
_ROLES: Final = ("app-server", "web-backend", "batch-worker", "ci-runner")
# Read when the module is imported: a confined gateway has no files.
_CLOUDS: Final[Mapping[str, Any]] = json.loads(Path(__file__).with_suffix(".json").read_text())
_NAME: Final = re.compile(r"\{(\w+)\}", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """One machine and what it may claim to be."""

    cloud: str
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
        return f"{self.region}-b" if self.cloud == "gcp" else f"{self.region}a"

    @property
    def host(self) -> str:
        """The machine's name."""
        if self.cloud == "aws":
            return f"ip-{self.address.replace('.', '-')}"
        return f"{self.role}-{self.instance[-4:]}"

    @property
    def key_digest(self) -> str:
        """For the record: the key's id, keyed by its secret."""
        return hmac.digest(self.secret_key.encode(), self.access_key_id.encode(), "sha256").hex()

    def filled(self, name: str, now_s: float, **more: object) -> Any:  # noqa: ANN401 - JSON
        """A part of the cloud's data, its `{names}` filled in.

        One name alone becomes that value, of any type; `$json` becomes text.
        """
        issued_s, now = now_s - now_s % 3600, int(now_s)
        uuid, arn = self.uuid.replace("-", ""), f"{self.account}:instance-profile/{self.role}"
        arn = f"arn:aws:iam::{arn}"
        names = {field.name: getattr(self, field.name) for field in fields(self)} | {
            "zone": self.zone,
            "host": self.host,
            "uuid_start": uuid[:16],
            "uuid_end": uuid[16:32],
            "uuid_sha1": hashlib.sha1(self.uuid.encode(), usedforsecurity=False).hexdigest(),
            "tenant_start": self.tenant.replace("-", "")[:16],
            "profile_arn": arn,
            # Of nothing that is secret: to ask for this gives no credentials out.
            "profile_id": base64.b32encode(hashlib.sha256(arn.encode()).digest()[:10]).decode(),
            "account_number": int(self.account),
            "instance_number": int(self.instance) if self.instance.isdigit() else 0,
            "email": f"{self.account}-compute@developer.gserviceaccount.com",
            "url_safe_token": self.session_token.replace("+", "-").replace("/", "_"),
            "bare_mac": self.mac.replace(":", "").upper(),
            "started": _stamp(self.started_s),
            "issued": _stamp(issued_s),
            "expires": _stamp(issued_s + 6 * 3600),
            "now_s": now,
            "now": str(now),
            "hour_later_s": now + 3600,
            "day_later_s": now + 86_400,
            "day_later": str(now + 86_400),
            **more,
        }
        return _filled(_CLOUDS[self.cloud][name], names)

    def signed(self, audience: str, now_s: float) -> str:
        """A JSON Web Token that verifies nowhere."""
        parts = [self.filled(part, now_s, audience=audience[:512]) for part in ("head", "claims")]
        body = ".".join(_base64url(compact(part).encode()) for part in parts)
        signature = hashlib.shake_256(self.secret_key.encode() + body.encode()).digest(256)
        return f"{body}.{_base64url(signature)}"


def _filled(value: Any, names: Mapping[str, object]) -> Any:  # noqa: ANN401 - any JSON value
    if isinstance(value, dict):
        if "$json" in value:
            return json.dumps(_filled(value["$json"], names), indent=2)
        return {_filled(key, names): _filled(item, names) for key, item in value.items()}
    if isinstance(value, list):
        return [_filled(item, names) for item in value]
    if not isinstance(value, str):
        return value
    whole = _NAME.fullmatch(value)
    return names[whole[1]] if whole else value.format_map(names)


def _stamp(seconds: float) -> str:
    return datetime.fromtimestamp(int(seconds), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _base64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def make_identity(
    cloud: str,
    region: str,
    random: Callable[[int], bytes],
    clock: Callable[[], float],
    credentials: Mapping[str, str] | None = None,
) -> Identity:
    """`region` "": a usual one; `credentials` None: made."""
    octets, started = random(3), int(clock()) - 3600 - int.from_bytes(random(2))
    return Identity(
        cloud=cloud,
        region=region or _REGIONS[cloud],
        account="".join(str(byte % 10) for byte in b"\1" + random(11)),
        instance=f"i-0{random(8).hex()}"
        if cloud == "aws"
        else str(10**18 + int.from_bytes(random(7)) * 9),
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
    cloud = settings.get("cloud", "aws")
    region, credentials = settings.get("region", ""), settings.get("credentials")
    identity = make_identity(cloud, region, context.random, context.clock, credentials)
    server = {"aws": _Aws, "gcp": _Gcp, "azure": _Azure}[cloud]
    return http_app(server(context, identity, settings.get("data", {})).handle)


class _Cloud:
    def __init__(
        self, context: StandInContext, identity: Identity, data: Mapping[str, str]
    ) -> None:
        self.context, self.identity, self.data = context, identity, data
        self.tokens: OrderedDict[str, float] = OrderedDict()

    async def handle(self, request: Request) -> Answer:
        raise NotImplementedError

    async def record_credentials(self, request: Request) -> None:
        data = {
            "what": "credentials",
            "cloud": self.identity.cloud,
            "identity": self.identity.role,
            "key_digest": self.identity.key_digest,
            "path": request.raw_path[:512],
        }
        await self.context.record("network.attempt", data)


def _below(value: Any, part: str) -> Any:  # noqa: ANN401 - any JSON value
    if isinstance(value, dict):
        return value.get(part)
    if isinstance(value, list) and part.isascii() and part.isdigit() and len(part) < 4:
        return value[int(part)] if int(part) < len(value) else None
    return None


class _Aws(_Cloud):
    """Source: "Use the Instance Metadata Service", Amazon EC2 user guide."""

    FIELD = "x-aws-ec2-metadata-token"

    async def handle(self, request: Request) -> Answer:
        if request.path == "/latest/api/token":
            return self.token(request)
        if request.method not in ("GET", "HEAD"):
            return self.error(405)
        headers: Pairs = (("server", "EC2ws"),)
        if request.has_header(self.FIELD):
            left = self.tokens.get(request.header(self.FIELD), 0.0) - self.context.clock()
            if left < 1:
                return self.error(401)
            headers = (*headers, (f"{self.FIELD}-ttl-seconds", str(int(left))))
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
        ttl = request.header(f"{self.FIELD}-ttl-seconds")
        if not (ttl.isascii() and ttl.isdigit() and len(ttl) <= 5 and 1 <= int(ttl) <= MAX_TTL_S):
            return self.error(400)
        token = base64.urlsafe_b64encode(b"\0" * 4 + self.context.random(38)).decode()
        self.tokens[token] = self.context.clock() + int(ttl)
        if len(self.tokens) > MAX_TOKENS:
            self.tokens.popitem(last=False)
        headers = (("server", "EC2ws"), (f"{self.FIELD}-ttl-seconds", ttl))
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
        at = self.identity.filled("tree", self.context.clock())
        for part in parts[1:]:
            at = _below(at, part)
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
        return text_answer(page, status, (("server", "EC2ws"),), media="text/html")


class _Gcp(_Cloud):
    """Source: "About VM metadata", Google Compute Engine documentation."""

    ROOT = "/computeMetadata/v1"
    HEADERS: Pairs = (("metadata-flavor", "Google"), ("server", "Metadata Server for VM"))

    async def handle(self, request: Request) -> Answer:
        if request.method not in ("GET", "HEAD"):
            return self.error(405)
        if request.path == "/":
            return self.text("computeMetadata/\n")
        is_asked_right = request.header("metadata-flavor").lower() == "google"
        if not is_asked_right or request.has_header("x-forwarded-for"):
            return self.error(403)
        answer = self.answer(request)
        is_secret = request.path.rstrip("/").endswith(("/token", "/identity"))
        if answer.status == 200 and is_secret and "/service-accounts/" in request.path:
            await self.record_credentials(request)
        return answer

    def tree(self, query: Mapping[str, str]) -> Any:  # noqa: ANN401 - any JSON value
        now_s, audience = self.context.clock(), query.get("audience", "")
        token = self.identity.signed(audience, now_s) if audience else None
        account = self.identity.filled("service_account", now_s, identity_token=token)
        return self.identity.filled("tree", now_s, service_account=account)

    def answer(self, request: Request) -> Answer:
        """Text, a listing, or JSON where it is asked for."""
        path, query = request.path.rstrip("/"), dict(request.query)
        if not (path == self.ROOT or path.startswith(f"{self.ROOT}/")):
            return self.error(404)
        below = path.removeprefix(self.ROOT)
        found: Any = self.data.get(path)
        if path not in self.data:
            found = self.tree(query)
            for part in [part for part in below.split("/") if part]:
                camel = re.sub("-(.?)", lambda match: match[1].upper(), part)
                is_there = isinstance(found, dict) and part in found
                found = _below(found, part if is_there or isinstance(found, list) else camel)
        if found is None:
            return self.error(400 if below.endswith("/identity") else 404)
        is_tree = isinstance(found, (dict, list))
        listed = is_tree and not below.endswith("/token")
        is_whole = query.get("recursive") == "true"
        if listed and not request.path.endswith("/") and below and not is_whole:
            location = ("location", f"{request.url.partition('?')[0]}/")
            return Answer(status=301, headers=(*self.HEADERS, location))
        if is_whole or query.get("alt") == "json" or (is_tree and not listed):
            return json_answer(_public(found), headers=self.HEADERS)
        if listed:
            return self.text(_listing(found))
        return self.text(found if isinstance(found, str) else compact(found))

    def text(self, body: str, status: int = 200, media: str = "application/text") -> Answer:
        return text_answer(body, status, self.HEADERS, media=media)

    def error(self, status: int) -> Answer:
        return self.text(f"<b>{status}.</b> {phrase(status)}\n", status, "text/html; charset=UTF-8")


def _public(value: object) -> object:
    """Without tokens, as the real server answers recursively."""
    if isinstance(value, dict):
        hidden = ("token", "identity") if "aliases" in value else ()
        return {name: _public(item) for name, item in value.items() if name not in hidden}
    return [_public(item) for item in value] if isinstance(value, list) else value


def _kebab(name: str) -> str:
    return name if "@" in name else re.sub("[A-Z]", lambda match: f"-{match[0].lower()}", name)


def _listing(value: dict[str, Any] | list[Any]) -> str:
    if isinstance(value, list):
        return "".join(
            f"{n}/\n" if isinstance(item, dict) else f"{item}\n" for n, item in enumerate(value)
        )
    leaves = ("token", "aliases", "scopes", "tags")
    return "".join(
        f"{_kebab(name)}{'/' if isinstance(item, (dict, list)) and name not in leaves else ''}\n"
        for name, item in sorted(value.items())
    )


class _Azure(_Cloud):
    """Source: "Azure Instance Metadata Service for virtual machines", Azure documentation."""

    OAUTH_PATH = "/metadata/identity/oauth2/token"
    HEADERS: Pairs = (("server", "IMDS/150.870.65.1854"),)
    MEDIA = "application/json; charset=utf-8"

    async def handle(self, request: Request) -> Answer:
        if request.method not in ("GET", "HEAD"):
            return self.error(405, "Method not allowed")
        if request.header("metadata").lower() != "true" or request.has_header("x-forwarded-for"):
            return self.error(400, "Bad request. Required metadata header not specified")
        if request.path != "/metadata/versions":
            version = dict(request.query).get("api-version", "")
            if not re.fullmatch(r"\d{4}-\d{2}-\d{2}", version, re.ASCII):
                newest = _CLOUDS["azure"]["versions"][:-4:-1]
                message = "Bad request. api-version is invalid or was not specified in the request"
                return self.error(400, message, {"newest-versions": newest})
        answer = self.answer(request)
        if answer.status == 200 and request.path.rstrip("/") == self.OAUTH_PATH:
            await self.record_credentials(request)
        return answer

    def answer(self, request: Request) -> Answer:
        query, path, now_s = dict(request.query), request.path.rstrip("/"), self.context.clock()
        if path in self.data:
            return text_answer(self.data[path], headers=self.HEADERS)
        if path == "/metadata/versions":
            return self.json({"apiVersions": _CLOUDS["azure"]["versions"]})
        if path == self.OAUTH_PATH:
            resource = query.get("resource", "")[:512]
            if not resource:
                missing = "Required query variable 'resource' is missing"
                return self.error(400, "invalid_request", {"error_description": missing})
            token = self.identity.signed(resource, now_s)
            more = {"access_token": token, "audience": resource}
            return self.json(self.identity.filled("token", now_s, **more))
        found = None
        if path == "/metadata/instance" or path.startswith("/metadata/instance/"):
            found = self.identity.filled("tree", now_s)
            for part in path.split("/")[3:]:
                found = _below(found, part)
        if found is None:
            return self.error(404, "Not found")
        if not isinstance(found, str):
            return self.json(found)
        if query.get("format") != "text":
            unsupported = "The requested content type is not supported: add format=text"
            return self.error(400, f"Bad request. {unsupported}")
        return text_answer(found, headers=self.HEADERS)

    def json(self, value: object, status: int = 200) -> Answer:
        return json_answer(value, status, self.HEADERS, media=self.MEDIA)

    def error(self, status: int, message: str, more: Mapping[str, object] | None = None) -> Answer:
        return self.json({"error": message, **(more or {})}, status)
