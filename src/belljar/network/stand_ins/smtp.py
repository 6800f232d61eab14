"""A mail server that accepts everything and sends nothing.

Each message, login and recipient is put on record.

Speaks SMTP (RFC 5321) with SIZE, 8BITMIME, SMTPUTF8, PIPELINING, and AUTH PLAIN and LOGIN (RFC
4954). Not: STARTTLS (a port of the protocol `smtps` has TLS from the start), CHUNKING, delivery
reports.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import re
from dataclasses import dataclass, field
from typing import Final

from belljar.capture import Capture
from belljar.events import JsonValue
from belljar.network.gateway.context import MAX_KEPT_BODY_BYTES, StandInContext, StreamApp
from belljar.network.stand_ins.conversation import unread
from belljar.network.stand_ins.web import bounded, word

MAX_LINE_BYTES: Final = 12_288  # Of a command; RFC 4954 asks for this much for AUTH
MAX_MESSAGE_BYTES: Final = 50 << 20
MAX_RECIPIENTS: Final = 1000
MAX_MESSAGES: Final = 1000
MAX_ERRORS: Final = 50  # Of one connection; then it is closed, as mail servers do
_PATH: Final = re.compile(
    rb"<([^<>\x00-\x1f]{0,512})>(?:[ ]+(.*))?|([^<> \x00-\x1f]{1,512})(?:[ ]+(.*))?", re.DOTALL
)


@dataclass(kw_only=True)
class Mail:
    """A message and its envelope, so far; dots undone."""

    sender: str
    recipients: list[str] = field(default_factory=list)
    content: Capture = field(
        default_factory=lambda: Capture("message", max_kept_bytes=MAX_KEPT_BODY_BYTES)
    )
    complete: bool = False


@dataclass(frozen=True, slots=True)
class Login:
    """What a client presented; never the secret itself."""

    mechanism: str
    user: str
    secret_sha256: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """A reply, and what is on record before it is sent."""

    reply: bytes = b""
    done: Mail | Login | None = None
    close: bool = False


class Session:
    """One connection's state."""

    def __init__(self, host: str) -> None:
        self._host = host.encode("ascii", "replace")
        self.client = self.user = self._auth = ""
        self.mail: Mail | None = None
        self.in_data = False  # A message's content comes, of any length, in any pieces
        self._auth_user = b""
        self._errors = self._messages = 0
        self._line_begins = True

    @property
    def greeting(self) -> bytes:
        """What the server says first."""
        return b"220 %s ESMTP\r\n" % self._host

    def line(self, line: bytes) -> Outcome:
        """One line with its end, or a piece of a content's."""
        if self.in_data:
            return self._content(line)
        text = line.rstrip(b"\r\n")
        if self._auth:
            return self._counted(self._auth_answer(text))
        verb, _, rest = text.partition(b" ")
        method = self._COMMANDS.get(verb.upper())
        if method is None:
            return self._counted(Outcome(b"500 5.5.2 Error: command not recognized\r\n"))
        return self._counted(method(self, rest.strip()))

    def too_long(self) -> Outcome:
        """A command line went beyond its bound."""
        return self._counted(Outcome(b"500 5.5.6 Error: line too long\r\n"))

    def _counted(self, outcome: Outcome) -> Outcome:
        self._errors += outcome.reply[:1] in {b"4", b"5"}
        if self._errors >= MAX_ERRORS:
            reply = b"421 4.7.0 %s Error: too many errors\r\n" % self._host
            return Outcome(reply, outcome.done, close=True)
        return outcome

    def _content(self, piece: bytes) -> Outcome:
        begins, self._line_begins = self._line_begins, piece.endswith(b"\n")
        mail = self.mail
        if mail is None:
            return Outcome(b"451 4.3.0 Error\r\n", close=True)
        if begins and piece in {b".\r\n", b".\n"}:
            self.in_data, self.mail = False, None
            self._messages += 1
            if mail.content.total_bytes > MAX_MESSAGE_BYTES:
                return Outcome(b"552 5.3.4 Error: message too big\r\n", mail)
            mail.complete = True
            queued = mail.content.sha256[:10].upper().encode()
            return Outcome(b"250 2.0.0 Ok: queued as %s\r\n" % queued, mail)
        mail.content.feed(piece[1:] if begins and piece.startswith(b".") else piece)
        # A client that goes on and on is cut; one that ends somewhat late gets its 552.
        if mail.content.total_bytes > 2 * MAX_MESSAGE_BYTES:
            return Outcome(b"552 5.3.4 Error: message too big\r\n", mail, close=True)
        return Outcome()

    def _helo(self, rest: bytes) -> Outcome:
        self.client, self.mail = rest[:255].decode("utf-8", "replace"), None
        known = b"250 %s\r\n" % self._host
        return Outcome(known if rest else b"501 5.5.4 Syntax: HELO hostname\r\n")

    def _ehlo(self, rest: bytes) -> Outcome:
        self._helo(rest)
        if not rest:
            return Outcome(b"501 5.5.4 Syntax: EHLO hostname\r\n")
        size = b"SIZE %d" % MAX_MESSAGE_BYTES
        offers = (self._host, b"PIPELINING", size, b"AUTH PLAIN LOGIN", b"ENHANCEDSTATUSCODES")
        lines = [b"250-%s\r\n" % offer for offer in (*offers, b"8BITMIME")]
        return Outcome(b"".join((*lines, b"250 SMTPUTF8\r\n")))

    def _mail(self, rest: bytes) -> Outcome:
        if not self.client:
            return Outcome(b"503 5.5.1 Error: send HELO/EHLO first\r\n")
        if self.mail is not None:
            return Outcome(b"503 5.5.1 Error: nested MAIL command\r\n")
        if self._messages >= MAX_MESSAGES:
            return Outcome(b"421 4.7.0 %s Error: too many messages\r\n" % self._host, close=True)
        path = _path(rest, b"FROM:")
        if path is None:
            return Outcome(b"501 5.5.4 Syntax: MAIL FROM:<address>\r\n")
        size = re.search(rb"(?:^| )SIZE=(\d{1,20})(?: |$)", path[1].upper())
        if size and int(size[1]) > MAX_MESSAGE_BYTES:
            return Outcome(b"552 5.3.4 Message size exceeds fixed limit\r\n")
        self.mail = Mail(sender=path[0])
        return Outcome(b"250 2.1.0 Ok\r\n")

    def _rcpt(self, rest: bytes) -> Outcome:
        if self.mail is None:
            return Outcome(b"503 5.5.1 Error: need MAIL command\r\n")
        path = _path(rest, b"TO:")
        if path is None or not path[0]:
            return Outcome(b"501 5.5.4 Syntax: RCPT TO:<address>\r\n")
        if len(self.mail.recipients) >= MAX_RECIPIENTS:
            return Outcome(b"452 4.5.3 Error: too many recipients\r\n")
        self.mail.recipients.append(path[0])
        return Outcome(b"250 2.1.5 Ok\r\n")

    def _data(self, _rest: bytes) -> Outcome:
        if self.mail is None or not self.mail.recipients:
            return Outcome(b"503 5.5.1 Error: need RCPT command\r\n")
        self.in_data = self._line_begins = True
        return Outcome(b"354 End data with <CR><LF>.<CR><LF>\r\n")

    def _rset(self, _rest: bytes) -> Outcome:
        self.mail = None
        return Outcome(b"250 2.0.0 Ok\r\n")

    def _vrfy(self, rest: bytes) -> Outcome:
        known = b"252 2.0.0 Cannot VRFY user, but will accept message\r\n"
        return Outcome(known if rest else b"501 5.5.4 Syntax: VRFY address\r\n")

    def _auth_command(self, rest: bytes) -> Outcome:
        mechanism, _, first = rest.partition(b" ")
        if not self.client or self.user or self.mail is not None:
            return Outcome(b"503 5.5.1 Error: AUTH is not possible now\r\n")
        if mechanism.upper() not in {b"PLAIN", b"LOGIN"}:
            return Outcome(b"535 5.7.8 Error: authentication failed: no mechanism available\r\n")
        self._auth, self._auth_user = mechanism.upper().decode(), b""
        if first:
            return self._auth_answer(first)
        return Outcome(b"334 \r\n" if self._auth == "PLAIN" else b"334 VXNlcm5hbWU6\r\n")

    def _auth_answer(self, text: bytes) -> Outcome:
        try:
            decoded = b"" if text == b"=" else base64.b64decode(text, validate=True)
        except binascii.Error:  # `*` among it, which cancels
            self._auth = ""
            return Outcome(b"501 5.7.0 Authentication aborted\r\n")
        if self._auth == "LOGIN" and not self._auth_user:
            # A user without a name gets a mark, so that the next line is taken for the password.
            self._auth_user = decoded or b"?"
            return Outcome(b"334 UGFzc3dvcmQ6\r\n")
        user, secret = self._auth_user, decoded
        if self._auth == "PLAIN":  # authorization NUL user NUL password (RFC 4616)
            parts = decoded.split(b"\0", 2)
            user, secret = (parts[1], parts[2]) if len(parts) == 3 else (decoded, b"")
        mechanism, self._auth = self._auth, ""
        self.user = user.decode("utf-8", "replace") or "?"
        login = Login(mechanism, self.user, hashlib.sha256(secret).hexdigest())
        return Outcome(b"235 2.7.0 Authentication successful\r\n", login)

    _COMMANDS: Final = {
        b"HELO": _helo,
        b"EHLO": _ehlo,
        b"MAIL": _mail,
        b"RCPT": _rcpt,
        b"DATA": _data,
        b"RSET": _rset,
        b"NOOP": lambda _self, _rest: Outcome(b"250 2.0.0 Ok\r\n"),
        b"VRFY": _vrfy,
        b"QUIT": lambda _self, _rest: Outcome(b"221 2.0.0 Bye\r\n", close=True),
        b"AUTH": _auth_command,
    }


def _path(rest: bytes, key: bytes) -> tuple[str, bytes] | None:
    """An address, and the parameters behind it."""
    if rest[: len(key)].upper() != key:
        return None
    if (match := _PATH.fullmatch(rest[len(key) :].strip())) is None:
        return None
    address = match[1] if match[1] is not None else match[3]
    return address.decode("utf-8", "replace"), match[2] or match[4] or b""


def make(context: StandInContext) -> StreamApp:
    """A stream stand-in. A connection holds one line, an envelope, and 64 KiB of a message."""
    host = next((name for name in context.names if "*" not in name), "mail.localdomain")

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, cell: str) -> None:
        session = Session(host)
        outcome: Outcome | None = Outcome(session.greeting)
        try:
            while outcome is not None:
                if outcome.done is not None:
                    await _record(context, session, outcome.done, cell)
                if outcome.reply:
                    writer.write(outcome.reply)
                    await writer.drain()
                if outcome.close:
                    return
                outcome = await _next(session, reader)
        except ConnectionError:
            return
        finally:
            # A message that breaks off is on record, too.
            if session.in_data and session.mail is not None:
                session.mail.content.feed(await unread(reader))
                await _record(context, session, session.mail, cell)

    return serve


async def _next(session: Session, reader: asyncio.StreamReader) -> Outcome | None:
    line, whole = await _read_line(reader)
    if not line:
        return None
    if not session.in_data:
        if not whole or len(line) > MAX_LINE_BYTES:
            while not whole and line:
                line, whole = await _read_line(reader)
            return session.too_long()
        if not line.endswith(b"\n"):
            return None
    return session.line(line)


async def _record(context: StandInContext, session: Session, done: Mail | Login, cell: str) -> None:
    data: dict[str, JsonValue] = {"cell": cell, "client": word(session.client)}
    if isinstance(done, Login):
        data |= {
            "what": "login",
            "mechanism": done.mechanism,
            "user": word(done.user),
            "secret_sha256": done.secret_sha256,
        }
        await context.record("network.attempt", data, [])
        return
    message = done.content.body()
    data |= {
        "what": "mail",
        "user": word(session.user),
        "sender": word(done.sender, 512),
        "recipients": bounded((word(address, 512) for address in done.recipients), 16 << 10),
        "recipient_count": len(done.recipients),
        "size_bytes": done.content.total_bytes,
        "sha256": message.sha256,
        "complete": done.complete,
    }
    await context.record("network.attempt", data, [message])


async def _read_line(reader: asyncio.StreamReader) -> tuple[bytes, bool]:
    """A line or a piece, and whether it ends; b"": the end."""
    try:
        return await reader.readuntil(b"\n"), True
    except asyncio.IncompleteReadError as error:
        return error.partial, True
    except asyncio.LimitOverrunError as error:
        return await reader.readexactly(max(1, error.consumed)), False
