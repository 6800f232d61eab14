"""What Azure's instance metadata service says. Pure."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping
from typing import Any, Final

from belljar.network.stand_ins.identity import Identity
from belljar.network.stand_ins.web import Answer, Pairs, Request, compact, json_answer, text_answer

VERSIONS: Final = (
    "2017-04-02",
    "2017-08-01",
    "2018-02-01",
    "2019-06-01",
    "2020-06-01",
    "2020-09-01",
    "2021-02-01",
    "2021-12-13",
    "2023-07-01",
)
_HEADERS: Final[Pairs] = (("server", "IMDS/150.870.65.1854"),)
_VERSION: Final = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)


def refusal(request: Request) -> Answer | None:
    """What keeps a request from an answer: method, the `Metadata` header, a proxy, the API's
    version.
    """
    if request.method not in ("GET", "HEAD"):
        return _error(405, "Method not allowed")
    if request.header("metadata").lower() != "true" or request.has_header("x-forwarded-for"):
        return _error(400, "Bad request. Required metadata header not specified")
    if request.path == "/metadata/versions":
        return None
    version = dict(request.query).get("api-version", "")
    if not version:
        return _error(
            400,
            "Bad request. api-version was not specified in the request. For more information "
            "refer to aka.ms/azureimds",
            versions=True,
        )
    if not _VERSION.fullmatch(version):
        return _error(
            400,
            "Bad request. api-version is invalid. For more information refer to aka.ms/azureimds",
            versions=True,
        )
    return None


def _error(status: int, message: str, *, versions: bool = False) -> Answer:
    body: dict[str, Any] = {"error": message}
    if versions:
        body["newest-versions"] = list(reversed(VERSIONS[-3:]))
    return json_answer(body, status, _HEADERS, media="application/json; charset=utf-8")


def instance(identity: Identity) -> dict[str, Any]:
    """The document below `/metadata/instance`."""
    group = f"{identity.role}-rg"
    owner = f"/subscriptions/{identity.uuid}/resourceGroups/{group}"
    resource = f"{owner}/providers/Microsoft.Compute/virtualMachines/{identity.host}"
    compute = {
        "azEnvironment": "AzurePublicCloud",
        "location": identity.region,
        "name": identity.host,
        "offer": "debian-12",
        "osType": "Linux",
        "publisher": "Debian",
        "resourceGroupName": group,
        "resourceId": resource,
        "sku": "12-gen2",
        "subscriptionId": identity.uuid,
        "tags": "",
        "version": "0.20250814.2204",
        "vmId": identity.tenant,
        "vmSize": "Standard_B2s",
        "zone": "1",
    }
    addresses = [{"privateIpAddress": identity.address, "publicIpAddress": ""}]
    interface = {
        "ipv4": {"ipAddress": addresses, "subnet": [{"address": "172.31.0.0", "prefix": "16"}]},
        "ipv6": {"ipAddress": []},
        "macAddress": identity.mac.replace(":", "").upper(),
    }
    return {"compute": compute, "network": {"interface": [interface]}}


def token(identity: Identity, resource: str, now_s: float) -> dict[str, str]:
    """A token of the managed identity. Its signature is a digest: it verifies nowhere."""
    begun = int(now_s)
    claims = {
        "aud": resource,
        "iss": f"https://sts.windows.net/{identity.tenant}/",
        "iat": begun,
        "nbf": begun,
        "exp": begun + 86_400,
        "appid": identity.uuid,
        "oid": identity.uuid,
        "tid": identity.tenant,
    }
    head = {"typ": "JWT", "alg": "RS256", "kid": identity.access_key_id}
    body = ".".join(_base64(compact(part).encode()) for part in (head, claims))
    signature = _base64(hashlib.shake_256(identity.secret_key.encode() + body.encode()).digest(256))
    return {
        "access_token": f"{body}.{signature}",
        "client_id": identity.uuid,
        "expires_in": "86400",
        "expires_on": str(begun + 86_400),
        "ext_expires_in": "86399",
        "not_before": str(begun),
        "resource": resource,
        "token_type": "Bearer",
    }


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def answer(identity: Identity, data: Mapping[str, Any], request: Request, now_s: float) -> Answer:
    """The value at the request's path."""
    query, path = dict(request.query), request.path.rstrip("/")
    media = "application/json; charset=utf-8"
    if path in data:
        value = data[path]
        return (
            text_answer(value, headers=_HEADERS)
            if isinstance(value, str)
            else json_answer(value, headers=_HEADERS, media=media)
        )
    if path == "/metadata/versions":
        return json_answer({"apiVersions": list(VERSIONS)}, headers=_HEADERS, media=media)
    if path == "/metadata/identity/oauth2/token":
        resource = query.get("resource", "")[:512]
        if not resource:
            missing = {
                "error": "invalid_request",
                "error_description": "Required query variable 'resource' is missing",
            }
            return json_answer(missing, 400, _HEADERS, media=media)
        return json_answer(token(identity, resource, now_s), headers=_HEADERS, media=media)
    if path != "/metadata/instance" and not path.startswith("/metadata/instance/"):
        return _error(404, "Not found")
    found: Any = instance(identity)
    for part in path.split("/")[3:]:
        found = _below(found, part)
    if found is None:
        return _error(404, "Not found")
    if isinstance(found, str):
        if query.get("format") != "text":
            return _error(
                400, "Bad request. The requested content type is not supported: add format=text"
            )
        return text_answer(found, headers=_HEADERS)
    return json_answer(found, headers=_HEADERS, media=media)


def _below(value: object, part: str) -> object:
    if isinstance(value, dict):
        return value.get(part)
    if isinstance(value, list) and part.isascii() and part.isdigit() and len(part) < 4:
        return value[int(part)] if int(part) < len(value) else None
    return None


def is_secret(request: Request) -> bool:
    """Whether the path's value is credentials."""
    return request.path.rstrip("/") == "/metadata/identity/oauth2/token"
