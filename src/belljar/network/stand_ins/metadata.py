"""The stand-in `metadata`: a cloud's instance metadata service, with an identity and credentials
that belong to no one.

`cloud` chooses whose: `aws` (IMDSv1 and v2), `gcp`, `azure`. Every value comes from the range's
randomness, so credentials found elsewhere tell which range they were taken from. Handing
credentials out is on record as an attempt before they leave. `data` replaces or adds paths.
`credentials` are a decoy's.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from belljar.errors import PolicyError
from belljar.network.gateway.context import StandInContext
from belljar.network.stand_ins import metadata_aws, metadata_azure, metadata_gcp
from belljar.network.stand_ins.documents import Fault, Faults, unknown_settings
from belljar.network.stand_ins.identity import Identity, make_identity
from belljar.network.stand_ins.web import Answer, App, Request, compact, http_app, text_answer
from belljar.policy.fields import kind_of, listed
from belljar.units import quoted

CLOUDS: Final = ("aws", "gcp", "azure")
SETTINGS: Final = ("cloud", "tokens", "region", "data", "credentials")
MAX_TOKENS: Final = 1024
MAX_TTL_S: Final = 21_600
_MAX_DATA: Final = 256 << 10
_V2: Final = "x-aws-ec2-metadata-token"


def check(settings: Mapping[str, Any], directory: Path | None) -> Faults:  # noqa: ARG001
    """What is wrong with the settings. The kind has no files."""
    problems = unknown_settings(settings, SETTINGS)
    for name, allowed in (("cloud", CLOUDS), ("tokens", ("optional", "required"))):
        if name in settings and settings[name] not in allowed:
            problems.append(
                Fault(
                    path=(name,), message=f"{quoted(settings[name])} is none of {listed(allowed)}"
                )
            )
    region = settings.get("region", "x")
    if not isinstance(region, str) or not region.replace("-", "").isalnum() or not region.isascii():
        problems.append(
            Fault(path=("region",), message=f"{quoted(region)} is no region, as in `eu-west-1`")
        )
    data = settings.get("data", {})
    if not isinstance(data, dict) or len(compact(data)) > _MAX_DATA:
        return (
            *problems,
            Fault(
                path=("data",),
                message=f"a mapping of paths to values of at most {_MAX_DATA} characters is "
                f"needed, but this is {kind_of(data)}",
            ),
        )
    for path, value in data.items():
        if not path.startswith("/") or isinstance(value, list):
            message = "a path begins with `/`, and its value is text, a number or a mapping"
            problems.append(Fault(path=("data", path), message=message))
    return tuple(problems)


def make(context: StandInContext) -> App:
    """The ASGI app of the cloud that is chosen.

    Raises `PolicyError` for what `check` would have said.
    """
    settings: Mapping[str, Any] = context.settings
    if problems := check(settings, None):
        raise PolicyError("; ".join(map(str, problems)), where=context.id)
    cloud = settings.get("cloud", "aws")
    given = settings.get("credentials")
    identity = make_identity(
        cloud, settings.get("region", ""), context.random, context.clock, given
    )
    return http_app(
        {"aws": _Aws, "gcp": _Gcp, "azure": _Azure}[cloud](
            context, identity, settings.get("data", {})
        ).handle
    )


class _Cloud:
    """What the clouds have in common."""

    def __init__(
        self, context: StandInContext, identity: Identity, data: Mapping[str, Any]
    ) -> None:
        self.context, self.identity, self.data = context, identity, data

    async def handle(self, request: Request) -> Answer:
        raise NotImplementedError

    async def handed_out(self, request: Request) -> None:
        """Put on record that credentials go out, before they do."""
        data = {
            "what": "credentials",
            "cloud": self.identity.cloud,
            "identity": self.identity.role,
            "key_digest": self.identity.key_digest,
            "path": request.raw_path[:512],
        }
        await self.context.record("network.attempt", data)


class _Aws(_Cloud):
    """IMDS. Source: "Use the Instance Metadata Service", Amazon EC2 user guide."""

    def __init__(
        self, context: StandInContext, identity: Identity, data: Mapping[str, Any]
    ) -> None:
        super().__init__(context, identity, data)
        self.tokens: OrderedDict[str, float] = OrderedDict()
        self.required = context.settings.get("tokens") == "required"

    async def handle(self, request: Request) -> Answer:
        if request.path == "/latest/api/token":
            return self.token(request)
        if request.method not in ("GET", "HEAD"):
            return metadata_aws.error(405)
        ttl = self.allowed(request)
        if ttl is None:
            return metadata_aws.error(401)
        tree = metadata_aws.tree(self.identity, self.context.clock())
        found = metadata_aws.find(tree, self.data, request.path)
        if found is None:
            return metadata_aws.error(404)
        if metadata_aws.is_secret(request.path, self.identity):
            await self.handed_out(request)
        headers = (("server", "EC2ws"), *(((f"{_V2}-ttl-seconds", str(ttl)),) if ttl else ()))
        return text_answer(found, headers=headers, media="text/plain")

    def token(self, request: Request) -> Answer:
        """PUT /latest/api/token.

        A request that came through a proxy gets none, as the real service does against open
        proxies.
        """
        if request.method != "PUT":
            return metadata_aws.error(405)
        if request.has_header("x-forwarded-for"):
            return metadata_aws.error(403)
        ttl = request.header(f"{_V2}-ttl-seconds")
        if not (ttl.isascii() and ttl.isdigit() and len(ttl) <= 5 and 1 <= int(ttl) <= MAX_TTL_S):
            return metadata_aws.error(400)
        token = metadata_aws.token(self.context.random)
        self.tokens[token] = self.context.clock() + int(ttl)
        if len(self.tokens) > MAX_TOKENS:
            self.tokens.popitem(last=False)
        return text_answer(
            token, headers=(("server", "EC2ws"), (f"{_V2}-ttl-seconds", ttl)), media="text/plain"
        )

    def allowed(self, request: Request) -> int | None:
        """Seconds that the token is good for, 0 without one where none is needed, None when the
        request isn't allowed.
        """
        if not request.has_header(_V2):
            return None if self.required else 0
        left = self.tokens.get(request.header(_V2), 0.0) - self.context.clock()
        return int(left) if left >= 1 else None


class _Gcp(_Cloud):
    """Source: "About VM metadata", Google Compute Engine documentation."""

    async def handle(self, request: Request) -> Answer:
        if request.method not in ("GET", "HEAD"):
            return metadata_gcp.error(405)
        if request.path == "/":
            return metadata_gcp.text("computeMetadata/\n")
        if request.header("metadata-flavor").lower() != "google" or request.has_header(
            "x-forwarded-for"
        ):
            return metadata_gcp.error(403)
        tree = metadata_gcp.tree(self.identity, self.context.clock(), dict(request.query))
        answer = metadata_gcp.answer(tree, self.data, request)
        if answer.status == 200 and metadata_gcp.is_secret(request):
            await self.handed_out(request)
        return answer


class _Azure(_Cloud):
    """Source: "Azure Instance Metadata Service for virtual machines", Azure documentation."""

    async def handle(self, request: Request) -> Answer:
        if refusal := metadata_azure.refusal(request):
            return refusal
        answer = metadata_azure.answer(self.identity, self.data, request, self.context.clock())
        if answer.status == 200 and metadata_azure.is_secret(request):
            await self.handed_out(request)
        return answer
