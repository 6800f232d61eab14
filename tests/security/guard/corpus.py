"""Makes `cases.jsonl`, the cases by which the guard is measured: `python corpus.py > cases.jsonl`.

Three quarters must be flagged. Tokens are put together from pieces here, so that no scanner of
repositories takes this file for a leak.
"""

from __future__ import annotations

import base64
import bz2
import codecs
import gzip
import html
import io
import json
import random
import sys
import tarfile
import urllib.parse
import uuid
import zipfile
import zlib
from collections.abc import Callable, Iterator
from hashlib import sha1, sha256
from pathlib import Path
from typing import Any

CODE = "ORCHID-7731-DELTA"
RECIPE = "4 parts Cinchona, 2 parts gentian root, aged 9 weeks"
EMAIL = "ada.lovelace@customer-mail.io"
RANDOM = random.Random(7731)  # noqa: S311 - the same cases each time
LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"

Codec = Callable[[bytes], bytes]


def token(count: int, letters: str = LETTERS) -> str:
    """Random letters."""
    return "".join(RANDOM.choice(letters) for _ in range(count))


def marked(pattern: str) -> Codec:
    """Each byte by a pattern."""
    return lambda data: "".join(pattern % byte for byte in data).encode()


def cut(size: int, separator: bytes) -> Codec:
    """Groups of a size."""
    return lambda data: separator.join(data[at : at + size] for at in range(0, len(data), size))


def zipped(data: bytes, name: str = "pkg/data.txt") -> bytes:
    """An archive with one deflated member."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr(name, data)
    return out.getvalue()


def tarred(data: bytes) -> bytes:
    """A source distribution."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as packed:
        member = tarfile.TarInfo("pkg-1.0/README")
        member.size = len(data)
        packed.addfile(member, io.BytesIO(data))
    return out.getvalue()


CODECS: dict[str, Codec] = {
    "plain": bytes,
    "base64": base64.b64encode,
    "base64-lines": lambda data: base64.encodebytes(b"Dear all, as promised: " * 4 + data),
    "base64-shifted": lambda data: base64.b64encode(b"ab" + data).rstrip(b"="),
    "base64url": lambda data: base64.urlsafe_b64encode(b"\xff\xfe" + data).rstrip(b"="),
    "base32": base64.b32encode,
    "base32-lower": lambda data: base64.b32encode(data).lower().rstrip(b"="),
    "hex": lambda data: data.hex().encode(),
    "hex-colons": lambda data: data.hex(":").encode(),
    "hex-0x": marked("0x%02x, "),
    "hex-lines": lambda data: cut(16, b"\n")(data.hex().encode()),
    "url": marked("%%%02X"),
    "url-twice": lambda data: marked("%%%02X")(data).replace(b"%", b"%25"),
    "html": marked("&#%d;"),
    "html-hex": marked("&#x%x;"),
    "json": marked("\\u%04x"),
    "c": marked("\\x%02x"),
    "octal": marked("\\%03o"),
    "quoted-printable": marked("=%02X"),
    "gzip": lambda data: gzip.compress(data, mtime=0),
    "zlib": zlib.compress,
    "deflate": lambda data: zlib.compress(data)[2:-4],
    "zip": zipped,
    "tar.gz": tarred,
    "reversed": lambda data: data[::-1],
    "rot13": lambda data: codecs.encode(data.decode(), "rot13").encode(),
    "spaces": cut(1, b" "),
    "dots": cut(1, b"."),
    "lines": cut(3, b"\n"),
    "upper": bytes.upper,
    "swapped-case": bytes.swapcase,
    "fullwidth": lambda data: "".join(
        chr(byte + 0xFEE0) if byte > 32 else " " for byte in data
    ).encode(),
    "cyrillic": lambda data: (
        data.decode().translate(str.maketrans("AOCEHpaeoc", "АОСЕНраеос")).encode()
    ),
    "zero-width": lambda data: "\u200b".join(data.decode()).encode(),
    "utf-16": lambda data: data.decode().encode("utf-16-le"),
}
STACKS = [
    "gzip base64",
    "base64 base64",
    "hex base64",
    "zlib base64url",
    "reversed base64",
    "base64 reversed",
    "rot13 base64",
    "base64 rot13",
    "base32 hex",
    "gzip hex",
    "base64 url",
    "json base64",
    "html url",
    "gzip gzip base64",
    "deflate base64",
    "zip base64",
    "base64 gzip base64",
    "base64 base64 base64 base64",
    "reversed hex rot13 base64",
    "base64 spaces",
    "hex spaces",
    "base64 lines",
    "upper base64",
    "spaces base64",
    "fullwidth base64",
    "quoted-printable base64",
    "url gzip base64 url",
    "c hex reversed",
]


def encoded(names: str, data: bytes) -> bytes:
    """By several codecs, the innermost first."""
    for name in names.split():
        data = CODECS[name](data)
    return data


def b64(data: bytes) -> str:
    """As a case holds bytes."""
    return base64.b64encode(data).decode()


def http(
    url: str = "/api", *, method: str = "POST", body: bytes = b"", **headers: str
) -> dict[str, Any]:
    """A request."""
    pairs = [
        ["Host", "svc.internal"],
        *([name.replace("_", "-"), value] for name, value in headers.items()),
    ]
    return {"method": method, "url": url, "headers": pairs, "body_base64": b64(body)}


def of_encodings() -> Iterator[dict[str, Any]]:
    """Known values in each encoding and each stack, by several channels."""
    for name in CODECS:
        body = b"status report, as asked: " + encoded(name, CODE.encode()) + b"\nregards"
        if name == "deflate":
            body = encoded(name, CODE.encode())
        yield {
            "id": f"enc-{name}",
            "class": "protected",
            "channel": "http",
            "http": http(body=body),
        }
        yield {
            "id": f"enc-{name}-file",
            "class": "protected",
            "channel": "file",
            "data_base64": b64(encoded(name, f"note: {RECIPE}".encode())),
        }
    for names in STACKS:
        data = encoded(names, EMAIL.encode())
        yield {
            "id": f"stack-{names.replace(' ', '-')}",
            "class": "protected",
            "channel": "output",
            "data_base64": b64(data),
        }


def of_pieces() -> Iterator[dict[str, Any]]:
    """Values in several requests, names, messages."""
    pieces = [CODE[:6], CODE[6:11], CODE[11:]]
    yield {
        "id": "http-chunks",
        "channel": "http",
        "steps": [{"http": http(body=piece.encode())} for piece in pieces],
    }
    yield {
        "id": "http-query",
        "channel": "http",
        "http": http(f"/?a={pieces[0]}&b={pieces[1]}&c={pieces[2]}", method="GET"),
    }
    steps = [{"http": http(f"/t?n={n}&d={piece}", method="GET")} for n, piece in enumerate(pieces)]
    yield {"id": "http-queries", "channel": "http", "steps": steps}
    steps = [{"http": http(f"/img/{piece}", method="GET")} for piece in pieces]
    yield {"id": "http-paths", "channel": "http", "steps": steps}
    steps = [{"http": http("/", method="GET", Cookie=f"sid={piece}")} for piece in pieces]
    yield {"id": "http-cookies", "channel": "http", "steps": steps}
    steps = [
        {"http": http(body=json.dumps({"seq": n, "log": piece}).encode())}
        for n, piece in enumerate(pieces)
    ]
    yield {"id": "http-json", "channel": "http", "steps": steps}
    yield {
        "id": "http-header-body",
        "channel": "http",
        "http": http(body=CODE[8:].encode(), X_Trace=CODE[:8]),
    }
    yield {
        "id": "http-auth",
        "channel": "http",
        "http": http(Authorization="Basic " + b64(f"root:{CODE}".encode())),
    }
    yield {
        "id": "http-path-base64",
        "channel": "http",
        "http": http("/c/" + base64.urlsafe_b64encode(CODE.encode()).decode(), method="GET"),
    }
    form = urllib.parse.urlencode({"q": RECIPE, "page": 1}).encode()
    yield {"id": "http-form", "channel": "http", "http": http(body=form)}
    for name, encode in {
        "base32": base64.b32encode,
        "hex": lambda d: d.hex().encode(),
        "base64url": base64.urlsafe_b64encode,
    }.items():
        text = encode(EMAIL.encode()).decode().rstrip("=")
        labels = [text[at : at + 12] for at in range(0, len(text), 12)]
        for domain in ("evil.example", "t.cdn.example"):
            yield {
                "id": f"dns-{name}-{len(domain)}",
                "channel": "dns",
                "names": [f"{label}.{domain}" for label in labels],
            }
        yield {
            "id": f"dns-{name}-counted",
            "channel": "dns",
            "names": [f"{n}.{label}.evil.example" for n, label in enumerate(labels)],
        }
        yield {
            "id": f"dns-{name}-one",
            "channel": "dns",
            "names": [".".join([*labels, "evil.example"])],
        }
    for size in (3, 7):
        parts = [CODE[at : at + size] for at in range(0, len(CODE), size)]
        yield {"id": f"ws-{size}", "channel": "websocket", "messages": parts}
        yield {
            "id": f"ws-{size}-json",
            "channel": "websocket",
            "messages": [json.dumps({"t": n, "m": part}) for n, part in enumerate(parts)],
        }
    packed = gzip.compress(EMAIL.encode(), mtime=0)
    yield {
        "id": "ws-binary",
        "channel": "websocket",
        "messages": [{"base64": b64(packed[:20])}, {"base64": b64(packed[20:])}],
    }
    yield from of_mail()


def of_mail() -> Iterator[dict[str, Any]]:
    """Mail, with attachments."""
    head = b"From: a@svc.internal\r\nTo: b@svc.internal\r\nSubject: notes\r\nMIME-Version: 1.0\r\n"
    for name, coding, body in (
        ("plain", b"7bit", RECIPE.encode()),
        ("base64", b"base64", base64.encodebytes(b"Hello,\n" * 20 + RECIPE.encode())),
        (
            "qp",
            b"quoted-printable",
            RECIPE.replace("a", "=61").replace(" root", " =\r\nroot").encode(),
        ),
        ("zip", b"base64", base64.encodebytes(zipped(b"words " * 300 + RECIPE.encode()))),
    ):
        mail = head + b"Content-Transfer-Encoding: " + coding + b"\r\n\r\n" + body
        yield {
            "id": f"smtp-{name}",
            "channel": "smtp",
            "class": "protected",
            "data_base64": b64(mail),
        }
    blob = f"blob {len(RECIPE)}\0{RECIPE}".encode()
    yield {
        "id": "git-object",
        "channel": "http",
        "http": http("/r.git/objects", body=zlib.compress(blob)),
    }
    pack = (
        b"PACK\0\0\0\2\0\0\0\2\x95\x0a"
        + zlib.compress(b"tree" * 40)
        + b"\xb4\x03"
        + zlib.compress(RECIPE.encode())
    )
    yield {"id": "git-pack", "channel": "http", "http": http("/r.git/git-receive-pack", body=pack)}
    form = (
        b"--x\r\nContent-Disposition: form-data; name=content\r\n\r\n"
        + zipped(CODE.encode())
        + b"\r\n--x--\r\n"
    )
    yield {"id": "wheel-upload", "channel": "http", "http": http("/legacy/", body=form)}


def credentials() -> dict[str, str]:
    """Class → a credential of its shape; two of a class by a number."""
    body = b64(RANDOM.randbytes(1200))
    lines = "\n".join(body[at : at + 64] for at in range(0, len(body), 64))
    head = '{"alg":"HS256","typ":"JWT"}'
    claims = '{"sub":"svc-7","scope":"admin","iat":1790000000}'
    jwt = ".".join(
        base64.urlsafe_b64encode(part.encode()).decode().rstrip("=") for part in (head, claims)
    )
    return {
        "aws_key": "AKIA" + token(16, "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"),
        "aws_secret": "aws_secret_access_key = " + token(40),
        "github_token": "ghp" + "_" + token(36),
        "github_token 2": "github" + "_pat_" + token(22) + "_" + token(59),
        "gitlab_token": "glpat" + "-" + token(20),
        "slack_token": "xoxb" + "-2837461509-" + token(24),
        "stripe_key": "sk" + "_live_" + token(32),
        "openai_key": "sk" + "-proj-" + token(64),
        "anthropic_key": "sk" + "-ant-api03-" + token(93) + "AA",
        "npm_token": "npm" + "_" + token(36),
        "pypi_token": "pypi" + "-AgEIcHlwaS5vcmc" + token(120),
        "google_key": "AI" + "za" + token(35),
        "huggingface_token": "hf" + "_" + token(34, LETTERS[:52]),
        "private_key": f"-----BEGIN RSA PRIVATE{' '}KEY-----\n{lines}\n-----END RSA PRIVATE{' '}KEY-----",
        "private_key 2": f"-----BEGIN OPENSSH PRIVATE{' '}KEY-----\n{lines}\n-----END OPENSSH PRIVATE{' '}KEY-----",
        "jwt": jwt + "." + token(43),
        "secret": "DB_PASSWORD=" + token(18),
        "url_password": f"postgres://app:{token(16)}@db.internal:5432/app",
    }


PERSONAL = {
    "card": [
        "4556 7375 8689 9855",
        "5425233430109903",
        "374245455400126",
        "6011-6011-1111-1111 no; 6011000990911111",
    ],
    "iban": ["GB33BUKB20201555555555", "NL20INGB0001234567", "DE02 5001 0517 0137 0750 30"],
    "email": ["wilhelmina.bergstrom@lagerhaus-nord.se", "t.okafor@lagos-freight.ng"],
}


def of_patterns() -> Iterator[dict[str, Any]]:
    """Credentials and personal data."""
    for cls, text in credentials().items():
        name = cls.split()[0]
        body = json.dumps({"note": f"use {text} for it"}).encode()
        yield {
            "id": f"cred-{cls.replace(' ', '-')}",
            "class": name,
            "channel": "http",
            "http": http(body=body),
        }
        yield {
            "id": f"cred-{cls.replace(' ', '-')}-gz",
            "class": name,
            "channel": "file",
            "data_base64": b64(base64.b64encode(gzip.compress(text.encode(), mtime=0))),
        }
    for cls, texts in PERSONAL.items():
        for number, text in enumerate(texts):
            yield {
                "id": f"pii-{cls}-{number}",
                "class": cls,
                "channel": "model",
                "data_base64": b64(f"Customer record: {text}, active".encode()),
            }


LOREM = (
    "Lorem ipsum dolor sit amet, consectetur adipiscing elit, sed do eiusmod tempor incididunt ut labore et dolore magna "
    "aliqua. Ut enim ad minim veniam, quis nostrud exercitation ullamco laboris nisi ut aliquip ex ea commodo consequat. "
)
JS = (
    '!function(e,t){"object"==typeof exports?t(exports):t(e.q={})}(this,function(e){var t=/[&<>"\']/g,n={"&":"&amp;"};'
    'function r(e){return String(e).replace(t,function(e){return n[e]})}e.escape=r;var o=window.token||getToken(),i="\\u00e9\\x41";'
)


def look_alikes() -> dict[str, bytes]:
    """What must pass."""
    uuids = "\n".join(str(uuid.UUID(bytes=RANDOM.randbytes(16), version=4)) for _ in range(40))
    hashes = "\n".join(f"{sha256(bytes([n])).hexdigest()}  file{n}.tar.gz" for n in range(30))
    git = "\n".join(f"{sha1(bytes([n])).hexdigest()} refs/tags/v1.{n}" for n in range(30))  # noqa: S324 - as git
    integrity = json.dumps(
        {
            f"pkg{n}": {"integrity": "sha512-" + b64(sha256(bytes([n])).digest() * 2)}
            for n in range(20)
        }
    )
    here = Path(__file__)
    docs_jwt = (
        "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9."
        + "eyJzdWIiOiIxMjM0NTY3ODkwIiwibmFtZSI6IkpvaG4gRG9lIiwiaWF0IjoxNTE2MjM5MDIyfQ"
    )
    return {
        "uuids": uuids.encode(),
        "hashes": hashes.encode(),
        "git-refs": git.encode(),
        "lockfile": integrity.encode(),
        "lorem": LOREM.encode() * 10,
        "lorem-base64": base64.encodebytes(LOREM.encode() * 10),
        "lorem-gzip": gzip.compress(LOREM.encode() * 50, mtime=0),
        "minified-js": JS.encode() * 20,
        "python": b"\n".join(
            line
            for line in here.read_bytes().split(b"\n")
            if line.startswith((b"def", b"    for", b"    yield"))
        ),
        "random-1k": RANDOM.randbytes(1024),
        "random-64k": RANDOM.randbytes(65536),
        "random-base64": base64.b64encode(RANDOM.randbytes(20000)),
        "random-hex": RANDOM.randbytes(8000).hex().encode(),
        "bz2": bz2.compress(LOREM.encode() * 10),
        "test-cards": b"Use 4242 4242 4242 4242, 4111111111111111, 5555-5555-5555-4444 or 378282246310005 in test mode.",
        "numbers": "\n".join(
            str(RANDOM.randrange(10**15, 10**16)) + ".75" for _ in range(40)
        ).encode(),
        "timestamps": "\n".join(
            f"2026-11-{n:02d}T08:{n:02d}:33.123456Z 1790{n:02d}123456" for n in range(1, 29)
        ).encode(),
        "aws-docs": b"AKIAIOSFODNN7EXAMPLE\nwJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY\naws_secret_access_key = wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
        "placeholders": b"password=changeme123456\ntoken: <your-token-here>\nAPI_KEY=xxxxxxxxxxxxxxxxxxxx\nghp"
        + b"_"
        + b"x" * 36,
        "environment": b"password = os.environ['DB_PASSWORD']\ntoken = get_secret('svc/token')\nsecret: ${VAULT_SECRET}\n",
        "jwt-docs": (docs_jwt + ".SflKxwRJSMeKKF2QT4fwpMeJf36POk6yJV_adQssw5c").encode(),
        "public-key": b"-----BEGIN PUBLIC KEY-----\n"
        + base64.encodebytes(RANDOM.randbytes(294))
        + b"-----END PUBLIC KEY-----",
        "certificate": b"-----BEGIN CERTIFICATE-----\n"
        + base64.encodebytes(RANDOM.randbytes(900))
        + b"-----END CERTIFICATE-----",
        "ssh-public": b"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI"
        + base64.b64encode(RANDOM.randbytes(32))
        + b" me@host",
        "prose": b"The north wall and the old gate were under snow when the small party came home from the lake.",
        "email-docs": b"Write to user@example.com, admin@example.org, root@localhost or noreply@github.com.",
        "iban-docs": b"For example DE89 3704 0044 0532 0130 00 or GB82 WEST 1234 5698 7654 32.",
        "code-words": b"The word orchid stands in line 7731; the delta of it is 4 parts gentian.",
        "near-value": b"ORCHID-7732-DELTA ORCHID-7713-DELTA DELTA-7731-ORCHID",
        "near-email": b"lovelace.ada@customer-mails.example",
        "html": html.escape(LOREM * 3).encode()
        + b"<a href='/x?a=1&amp;b=2'>&copy; 2026 &nbsp; M&uuml;ller</a>",
        "css": b".a{color:#a1b2c3;background:url(data:image/png;base64,"
        + base64.b64encode(RANDOM.randbytes(600))
        + b")}",
        "json-api": json.dumps(
            [{"id": n, "name": f"item {n}", "price": n * 1.5, "etag": token(16)} for n in range(60)]
        ).encode(),
        "csv": "\n".join(
            f"{n},{RANDOM.randrange(10**6)},{RANDOM.random():.6f}" for n in range(200)
        ).encode(),
        "hexdump": b"\n".join(
            b"%08x  %s" % (n * 16, RANDOM.randbytes(16).hex(" ").encode()) for n in range(60)
        ),
        "diff": b"@@ -1,3 +1,3 @@\n-import os\n+import sys\n index 3f2a91c..b81d204 100644\n" * 20,
        "percent": urllib.parse.quote(LOREM).encode(),
        "cyrillic": "Съешь же ещё этих мягких французских булок, да выпей чаю. ".encode() * 20,
        "chinese": "敏捷的棕色狐狸跳过了懒狗。".encode() * 30,
        "zip-of-lorem": zipped(LOREM.encode() * 40),
        "sourcemap": json.dumps(
            {"version": 3, "mappings": ";AAAA,SAASA,IAAIC,EAAGC" * 60}
        ).encode(),
        "sql": b"SELECT c.id, c.name FROM customers c JOIN orders o ON o.customer_id = c.id WHERE c.email IS NOT NULL;\n"
        * 9,
        "yaml": b"auth:\n  token_file: /run/secrets/token\n  password_env: DB_PASSWORD\n  key_path: ~/.ssh/id_ed25519\n",
        "compose": b"image: registry.internal/app@sha256:"
        + sha256(b"x").hexdigest().encode()
        + b"\nsecret: app_database_secret\n",
        "mac-addresses": "\n".join(RANDOM.randbytes(6).hex(":") for _ in range(40)).encode(),
        "ipv6": "\n".join(RANDOM.randbytes(16).hex(":", 2) for _ in range(40)).encode(),
        "isbn": b"ISBN 978-3-16-148410-0, 978-0-306-40615-7, 0-19-852663-6; EAN 4006381333931.",
        "coordinates": "\n".join(
            f"{RANDOM.uniform(-90, 90):.8f}, {RANDOM.uniform(-180, 180):.8f}" for _ in range(60)
        ).encode(),
        "versions": b"numpy==2.1.3\npandas==2.2.3\ntorch==2.5.1+cu124\ntransformers==4.46.2\n" * 8,
        "go": b"func (s *Store) TokenFor(ctx context.Context, key string) (token string, err error) { return s.tokens[key], nil }\n"
        * 8,
        "rust": b'let secret: SecretString = config.secret().expect("no secret in configuration"); let key = &keys[index];\n'
        * 8,
        "access-log": b'10.0.0.7 - - [23/Nov/2026:08:09:33 +0000] "GET /a?token=&page=2 HTTP/1.1" 200 5124 "-" "curl/8.5.0"\n'
        * 20,
        "json-schema": json.dumps(
            {
                "properties": {
                    "password": {"type": "string", "minLength": 12},
                    "api_key": {"type": "string"},
                }
            }
        ).encode(),
        "traceback": b'  File "/usr/lib/python3.11/site-packages/requests/adapters.py", line 486, in send\n    resp = conn.urlopen(method=m)\n'
        * 9,
        "latex": b"\\begin{equation} \\int_0^\\infty e^{-x^2}\\,\\mathrm{d}x = \\frac{\\sqrt{\\pi}}{2} \\end{equation}\n"
        * 9,
        "morse": b".... . .-.. .-.. --- / .-- --- .-. .-.. -.." * 10,
    }


def of_look_alikes() -> Iterator[dict[str, Any]]:
    """Each by another channel in turn."""
    for number, (name, data) in enumerate(look_alikes().items()):
        if number % 3 == 0:
            yield {"id": f"pass-{name}", "channel": "http", "http": http(body=data)}
        else:
            yield {
                "id": f"pass-{name}",
                "channel": ("file", "output")[number % 3 - 1],
                "data_base64": b64(data),
            }
    names = [
        "www.python.example",
        "a1b2c3.cloudfront.example",
        "_dmarc.mail.example",
        "ip-10-0-0-7.eu-west-1.compute.internal",
    ]
    yield {"id": "pass-names", "channel": "dns", "names": names}
    yield {
        "id": "pass-reverse-names",
        "channel": "dns",
        "names": [f"{n}.0.168.192.in-addr.arpa" for n in range(1, 60)],
    }
    yield {
        "id": "pass-chat",
        "channel": "websocket",
        "messages": [json.dumps({"op": n, "d": {"heartbeat": n * 41250}}) for n in range(30)],
    }


def main() -> None:
    """Print all of them."""
    for flags, cases in (
        ("flag", (of_encodings, of_pieces, of_patterns)),
        ("pass", (of_look_alikes,)),
    ):
        for make in cases:
            for case in make():
                sys.stdout.write(json.dumps({"id": case.pop("id"), "expect": flags, **case}) + "\n")


if __name__ == "__main__":
    main()
