"""What a client wants to change in the registry: read with bounds, put on record, answered as if
done, and dropped.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from collections.abc import Mapping
from typing import Any, Final

from belljar.events import Body, JsonValue
from belljar.network.gateway.context import MAX_KEPT_BODY_BYTES, StandInContext, kept_body
from belljar.network.stand_ins.records import bounded, credentials, word
from belljar.network.stand_ins.web import Request

MAX_TOKENS: Final = 1000
_MAX_LISTED: Final = 20


class Changes:
    """Writes of one registry.

    Its state is the tokens that it gave out (at most `MAX_TOKENS`; then the oldest is forgotten).
    """

    def __init__(self, context: StandInContext) -> None:
        self._context = context
        self._users: dict[str, str] = {}

    def user(self, request: Request) -> str | None:
        """Who asks; `None` without credentials.

        The user of a token given out here or of basic credentials; for any other token the
        settings' `user`.
        """
        said = credentials(request.header("authorization"))
        if said["credentials"] == "none":
            return None
        known = self._users.get(str(said["secret_sha256"]))
        return known or str(said["user"]) or str(self._context.settings.get("user", "developer"))

    async def login(self, request: Request, body: bytes) -> dict[str, Any] | None:
        """Log a user in, whatever the password, and give a token; `None` when the document names
        nobody. Recorded: the user and the password's SHA-256.
        """
        document = _object(body)
        name, password = document.get("name"), document.get("password")
        if not isinstance(name, str) or not name or not isinstance(password, str):
            return None
        await self._record(
            request,
            "login",
            {
                "user": word(name),
                "email": word(str(document.get("email", ""))),
                "password_sha256": hashlib.sha256(password.encode("utf-8", "replace")).hexdigest(),
            },
        )
        token = "npm_" + self._context.random(18).hex()
        while len(self._users) >= MAX_TOKENS:
            self._users.pop(next(iter(self._users)))
        self._users[hashlib.sha256(token.encode()).hexdigest()] = word(name)
        return {"ok": True, "id": f"org.couchdb.user:{word(name)}", "token": token}

    async def publish(self, request: Request, name: str, body: bytes) -> bool:
        """A `PUT` of a package's document.

        Recorded as `publish` when it brings a package, else as `change`. False: it is no document.
        """
        document = _object(body)
        attachments = document.get("_attachments")
        versions = document.get("versions")
        data: dict[str, JsonValue] = {
            "name": word(name),
            "versions": _names(versions),
            "tags": bounded(
                [word(str(tag)), word(str(version))]
                for tag, version in _some(document.get("dist-tags"))
            ),
            "access": word(str(document.get("access", ""))),
        }
        if not document:
            await self._record(
                request,
                "publish",
                {**data, "refused": "not a JSON object"},
                [kept_body("document", body)],
            )
            return False
        if not isinstance(attachments, dict) or not attachments:
            await self._record(
                request, "change", {**data, "refused": ""}, [kept_body("document", body)]
            )
            return True
        bodies = _files(attachments)
        about = bodies[0] if bodies else kept_body("file-0", b"")
        data |= {
            "version": next(iter(_names(versions)), ""),
            "filename": word(str(next(iter(attachments)))),
            "size_bytes": about.total_bytes,
            "sha256": about.sha256,
            "refused": "",
        }
        manifest = json.dumps(versions)[:MAX_KEPT_BODY_BYTES].encode("utf-8", "replace")[
            :MAX_KEPT_BODY_BYTES
        ]
        await self._record(request, "publish", data, [*bodies, kept_body("versions", manifest)])
        return True

    async def other(
        self, request: Request, what: str, name: str, body: bytes = b"", refused: str = ""
    ) -> None:
        """Any other change: `unpublish`, `tag`, `logout`, `change`."""
        data: dict[str, JsonValue] = {
            "name": word(name),
            "path": word(request.path),
            "refused": refused,
        }
        await self._record(request, what, data, [kept_body("request", body)] if body else [])

    async def _record(
        self,
        request: Request,
        what: str,
        data: Mapping[str, JsonValue],
        bodies: list[Body] | None = None,
    ) -> None:
        common: dict[str, JsonValue] = {
            "what": what,
            "registry": "npm",
            "cell": request.cell,
            "method": request.method,
        }
        await self._context.record(
            "network.attempt",
            {**common, **credentials(request.header("authorization")), **data},
            bodies or [],
        )


def _object(body: bytes) -> dict[str, Any]:
    try:
        document = json.loads(body.decode())
    except (ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


def _some(value: object) -> list[tuple[str, Any]]:
    return list(value.items())[:_MAX_LISTED] if isinstance(value, dict) else []


def _names(value: object) -> list[JsonValue]:
    return bounded(word(name) for name, _ in _some(value))


def _files(attachments: Mapping[str, Any]) -> list[Body]:
    found: list[Body] = []
    for _name, attachment in _some(attachments)[:4]:
        data = attachment.get("data") if isinstance(attachment, dict) else None
        found.append(kept_body(f"file-{len(found)}", _decoded(data)))
    return found


def _decoded(data: object) -> bytes:
    if not isinstance(data, str):
        return b""
    try:
        return base64.b64decode(data)
    except (binascii.Error, ValueError):
        return data.encode("utf-8", "replace")
