"""A mail server that sends nothing (RFC 5321)."""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Mapping
from typing import Final

from belljar.capture import Capture
from belljar.events import Body, JsonValue
from belljar.network.stand_ins import web

MAX_LINE_BYTES: Final = 12_288  # Of a command; RFC 4954 asks for this much for AUTH
MAX_MESSAGE_BYTES: Final = 50 << 20
MAX_RECIPIENTS: Final = 1000  # As Postfix has it; their addresses must fit into one event.
# With or without angle brackets; parameters (RFC 5321 section 4.1.2) are not looked at.
_PATH: Final = re.compile(rb"<([^<>\x00-\x1f]{0,512})>(?: +.*)?|([^<> \x00-\x1f]{1,512})(?: +.*)?")
_OK: Final = b"250 2.0.0 Ok\r\n"  # With enhanced codes (RFC 3463), as EHLO offers them.
_UNKNOWN: Final = b"500 5.5.2 Error: command not recognized\r\n"
_WRONG: Final = b"503 5.5.1 Error: bad sequence of commands, or syntax\r\n"
_OFFERS: Final = (
    b"250-PIPELINING\r\n250-SIZE %d\r\n250-AUTH PLAIN\r\n250-8BITMIME\r\n"
    b"250-ENHANCEDSTATUSCODES\r\n250 SMTPUTF8\r\n" % MAX_MESSAGE_BYTES
)
_COMMANDS: Final = (b"HELO", b"EHLO", b"MAIL", b"RCPT", b"DATA", b"AUTH")


class _MailConnection:
    def __init__(self, context: web.StandInContext, stream: web.ClientStream, cell: str) -> None:
        self._context, self._stream, self._cell = context, stream, cell
        host = next((name for name in context.names if "*" not in name), "mail.localdomain")
        self._host, self._held = host.encode("ascii", "replace"), bytearray()
        self._client = self._user = ""
        self._sender: str | None = None  # None: no envelope is begun.
        self._recipients = list[str]()
        self._content: Capture | None = None  # Of a message that comes, dots undone.
        self._is_over = False

    async def serve(self) -> None:
        try:
            await self._stream.send(b"220 %s ESMTP\r\n" % self._host)
            while not self._is_over and (line := await self._line()) is not None:
                verb, _, rest = line.partition(b" ")
                await self._stream.send(await self._answer(verb.upper(), rest.strip()))
        finally:
            if self._content is not None:  # A message that breaks off is on record, too.
                self._content.feed(bytes(self._held))
                await self._record_mail(self._content, complete=False)

    async def _piece(self) -> bytes:
        data = b"\n"
        while data and b"\n" not in self._held and len(self._held) <= MAX_LINE_BYTES:
            data = await self._stream.receive()
            self._held += data
        end = self._held.find(b"\n") + 1 or len(self._held)
        piece = bytes(self._held[:end])
        del self._held[:end]
        return piece

    async def _line(self) -> bytes | None:
        line = await self._piece()
        is_whole = line.endswith(b"\n") and len(line) <= MAX_LINE_BYTES
        return line.rstrip(b"\r\n") if is_whole else None

    async def _answer(self, verb: bytes, rest: bytes) -> bytes:
        has_begun = self._sender is not None
        match verb:
            case b"QUIT":
                self._is_over = True
                return b"221 2.0.0 Bye\r\n"
            case b"NOOP" | b"RSET":
                self._sender = None if verb == b"RSET" else self._sender
                return _OK
            case b"HELO" | b"EHLO" if rest:
                self._client, self._sender = rest[:255].decode("utf-8", "replace"), None
                offers = _OFFERS if verb == b"EHLO" else b""
                return b"250%s%s\r\n%s" % (b"-" if offers else b" ", self._host, offers)
            case b"MAIL" if self._client and not has_begun:
                self._sender, self._recipients = _address(rest, b"FROM:"), []
                if self._sender is not None:
                    return b"250 2.1.0 Ok\r\n"
            case b"RCPT" if has_begun and (recipient := _address(rest, b"TO:")):
                if len(self._recipients) >= MAX_RECIPIENTS:
                    return b"452 4.5.3 Error: too many recipients\r\n"
                self._recipients.append(recipient)
                return b"250 2.1.5 Ok\r\n"
            case b"DATA" if has_begun and self._recipients:
                return await self._data()
            case b"AUTH" if self._client and not self._user and not has_begun:
                return await self._log_in(rest)
        return _WRONG if verb in _COMMANDS else _UNKNOWN

    async def _data(self) -> bytes:
        await self._stream.send(b"354 End data with <CR><LF>.<CR><LF>\r\n")
        self._content = content = Capture("message", max_kept_bytes=web.MAX_KEPT_BODY_BYTES)
        begins = True
        # A client that goes on and on is cut; one that ends somewhat late gets its 552.
        while content.total_bytes <= 2 * MAX_MESSAGE_BYTES:
            piece = await self._piece()
            if not piece:
                self._is_over = True  # The end records what had come.
                return b""
            if begins and piece in {b".\r\n", b".\n"}:
                break
            # The client doubles a dot that begins a line (RFC 5321 section 4.5.2).
            content.feed(piece[1:] if begins and piece.startswith(b".") else piece)
            begins = piece.endswith(b"\n")
        else:
            self._is_over = True
        self._content = None
        complete = content.total_bytes <= MAX_MESSAGE_BYTES
        await self._record_mail(content, complete=complete)
        self._sender = None
        if not complete:
            return b"552 5.3.4 Error: message too big\r\n"
        return b"250 2.0.0 Ok: queued as %s\r\n" % content.sha256[:10].upper().encode()

    async def _log_in(self, rest: bytes) -> bytes:
        mechanism, _, text = rest.partition(b" ")
        if mechanism.upper() != b"PLAIN":
            return b"535 5.7.8 Error: authentication failed: no mechanism available\r\n"
        if not text:
            await self._stream.send(b"334 \r\n")
            if (answer := await self._line()) is None:
                self._is_over = True  # no login was presented
                return b""
            text = answer
        try:
            # authorization NUL user NUL password (RFC 4616)
            answers = (*base64.b64decode(text, validate=True).split(b"\0", 2), b"", b"")
        except binascii.Error:  # `*` among it, which cancels
            return b"501 5.7.0 Authentication aborted\r\n"
        self._user = answers[1].decode("utf-8", "replace") or "?"
        digest = hashlib.sha256(answers[2]).hexdigest()
        await self._record("login", {"mechanism": "PLAIN", "secret_sha256": digest})
        return b"235 2.7.0 Authentication successful\r\n"

    async def _record_mail(self, content: Capture, *, complete: bool) -> None:
        addresses = (web.word(address, 512) for address in self._recipients)
        data: dict[str, JsonValue] = {
            "sender": web.word(self._sender or "", 512),
            "recipients": web.bounded(addresses, 16 << 10),
            "recipient_count": len(self._recipients),
            "size_bytes": content.total_bytes,
            "sha256": content.sha256,
            "complete": complete,
        }
        await self._record("mail", data, content.body())

    async def _record(self, what: str, data: Mapping[str, JsonValue], *bodies: Body) -> None:
        client: dict[str, JsonValue] = {"cell": self._cell, "client": web.word(self._client)}
        known = {**client, "user": web.word(self._user), "what": what}
        await self._context.record({**known, **data}, *bodies)


def _address(rest: bytes, key: bytes) -> str | None:
    match = _PATH.fullmatch(rest[len(key) :].strip())
    if rest[: len(key)].upper() != key or match is None:
        return None
    return (match[1] if match[1] is not None else match[2]).decode("utf-8", "replace")


def make(context: web.StandInContext) -> web.StreamApp:
    return lambda stream, cell: _MailConnection(context, stream, cell).serve()
