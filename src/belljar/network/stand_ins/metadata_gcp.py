"""What Google's metadata server says. Pure."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from typing import Any, Final

from belljar.network.stand_ins.identity import Identity
from belljar.network.stand_ins.web import Answer, Request, compact, json_answer, phrase, text_answer

_HEADERS: Final = (
    ("metadata-flavor", "Google"),
    ("server", "Metadata Server for VM"),
    ("x-xss-protection", "0"),
    ("x-frame-options", "SAMEORIGIN"),
)
_ROOT: Final = "/computeMetadata/v1"


def text(body: str, status: int = 200, media: str = "application/text") -> Answer:
    """An answer of the server's."""
    return text_answer(body, status, _HEADERS, media=media)


def error(status: int) -> Answer:
    """An error as the server shows it."""
    page = (
        f"<!DOCTYPE html>\n<html lang=en>\n  <title>Error {status} "
        f"({phrase(status)})!!1</title>\n  <p><b>{status}.</b> <ins>That's an error.</ins>\n"
    )
    return text(page, status, "text/html; charset=UTF-8")


def _signed(identity: Identity, audience: str, now_s: float) -> str:
    """An identity token.

    Its signature is a digest of nothing anybody knows: it verifies nowhere.
    """
    head = {
        "alg": "RS256",
        "kid": hashlib.sha1(identity.uuid.encode(), usedforsecurity=False).hexdigest(),
        "typ": "JWT",
    }
    email = f"{identity.account}-compute@developer.gserviceaccount.com"
    claims = {
        "aud": audience[:512],
        "azp": identity.instance,
        "email": email,
        "email_verified": True,
        "exp": int(now_s) + 3600,
        "iat": int(now_s),
        "iss": "https://accounts.google.com",
        "sub": identity.instance,
    }
    body = ".".join(_base64(compact(part).encode()) for part in (head, claims))
    key = identity.secret_key.encode()
    return f"{body}.{_base64(hashlib.shake_256(key + body.encode()).digest(256))}"


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def tree(identity: Identity, now_s: float, query: Mapping[str, str]) -> dict[str, Any]:
    """Everything below `/computeMetadata/v1`; values keep their types."""
    email = f"{identity.account}-compute@developer.gserviceaccount.com"
    project = f"projects/{identity.account}"
    account = {
        "aliases": ["default"],
        "email": email,
        "identity": _signed(identity, query.get("audience", ""), now_s)
        if query.get("audience")
        else None,
        "scopes": ["https://www.googleapis.com/auth/cloud-platform"],
        "token": {
            "access_token": f"ya29.c.{identity.session_token.replace('+', '-').replace('/', '_')}",
            "expires_in": 3599,
            "token_type": "Bearer",
        },
    }
    interface = {
        "accessConfigs": [],
        "ip": identity.address,
        "mac": identity.mac,
        "network": f"{project}/networks/default",
    }
    instance = {
        "attributes": {},
        "cpuPlatform": "Intel Broadwell",
        "hostname": f"{identity.host}.{identity.zone}.c.{identity.role}-prod.internal",
        "id": int(identity.instance),
        "machineType": f"{project}/machineTypes/e2-medium",
        "name": identity.host,
        "networkInterfaces": [interface],
        "serviceAccounts": {"default": account, email: account},
        "tags": [],
        "zone": f"{project}/zones/{identity.zone}",
    }
    return {
        "instance": instance,
        "project": {
            "attributes": {},
            "numericProjectId": int(identity.account),
            "projectId": f"{identity.role}-prod",
        },
    }


def _camel(part: str) -> str:
    first, *rest = part.split("-")
    return first + "".join(word.capitalize() for word in rest)


def _kebab(name: str) -> str:
    return (
        "".join(f"-{char.lower()}" if char.isupper() else char for char in name)
        if "@" not in name
        else name
    )


def _find(root: object, path: str) -> Any:  # noqa: ANN401 - any JSON value
    at: Any = root
    for part in [part for part in path.split("/") if part]:
        if isinstance(at, dict):
            at = at.get(part, at.get(_camel(part)))
        elif isinstance(at, list) and part.isascii() and part.isdigit() and len(part) < 4:
            at = at[int(part)] if int(part) < len(at) else None
        else:
            return None
    return at


def answer(root: Mapping[str, Any], data: Mapping[str, Any], request: Request) -> Answer:
    """The value at the request's path: text, a listing, or JSON where `recursive=true` or
    `alt=json` asks for it.
    """
    path = request.path.rstrip("/")
    if not (path == _ROOT or path.startswith(f"{_ROOT}/")):
        return error(404)
    query = dict(request.query)
    below = path.removeprefix(_ROOT)
    found = data[path] if path in data else _find(root, below)
    if found is None:
        return error(400 if below.endswith("/identity") else 404)
    container = (
        isinstance(found, (dict, list)) and not below.endswith("/token") and path not in data
    )
    if container and not request.path.endswith("/") and below and query.get("recursive") != "true":
        return Answer(
            status=301, headers=(*_HEADERS, ("location", f"{request.url.partition('?')[0]}/"))
        )
    if (
        query.get("recursive") == "true"
        or query.get("alt") == "json"
        or (isinstance(found, (dict, list)) and not container)
    ):
        if query.get("alt") == "text":
            return text("\n".join(_lines(found, "")) + "\n")
        return json_answer(_public(found), headers=_HEADERS)
    return text(
        _listing(found) if container else found if isinstance(found, str) else compact(found)
    )


def _public(value: object) -> object:
    """What a recursive answer shows: no tokens, as the real server leaves them out."""
    if isinstance(value, dict):
        hidden = ("token", "identity") if "aliases" in value else ()
        return {name: _public(item) for name, item in value.items() if name not in hidden}
    return [_public(item) for item in value] if isinstance(value, list) else value


def _listing(value: dict[str, Any] | list[Any]) -> str:
    if isinstance(value, list):
        return "".join(
            f"{n}/\n" if isinstance(item, dict) else f"{item}\n" for n, item in enumerate(value)
        )
    folders = {
        name
        for name, item in value.items()
        if isinstance(item, (dict, list)) and name not in ("token", "aliases", "scopes", "tags")
    }
    return "".join(f"{_kebab(name)}{'/' if name in folders else ''}\n" for name in sorted(value))


def _lines(value: object, prefix: str) -> list[str]:
    items = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else None
    )
    if items is None:
        return [f"{prefix.rstrip('/')} {value if isinstance(value, str) else compact(value)}"]
    shown = _public(value)
    names = shown.keys() if isinstance(shown, dict) else None
    return [
        line
        for name, item in items
        if names is None or name in names
        for line in _lines(item, f"{prefix}{_kebab(str(name))}/")
    ]


def is_secret(request: Request) -> bool:
    """Whether the path's value is credentials."""
    return "/service-accounts/" in request.path and request.path.rstrip("/").endswith(
        ("/token", "/identity")
    )
