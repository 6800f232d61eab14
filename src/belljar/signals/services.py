"""What each kind of decoy service holds: its login and its rows. Pure: everything is drawn from the
decoy's stream. A service itself is a stand-in of the range's gateway (`network.stand_ins`).
"""

from __future__ import annotations

import base64
import html
from collections.abc import Callable, Mapping
from itertools import islice
from types import MappingProxyType
from typing import Any, Final, TypeAlias

from belljar.policy.guarding import SERVICE_PORTS, DecoySpec
from belljar.policy.guarding import DecoyKind as K
from belljar.signals.credentials import (
    fingerprint,
    make_credentials,
    public_blob,
    public_line,
    public_of,
)
from belljar.signals.kinds import card, npm_token, people, pypi_token
from belljar.signals.kinds import password as draw_password
from belljar.signals.mint import DAY_S, Login, MintedService, SshLogin, Stream

DrawService: TypeAlias = Callable[[Stream, DecoySpec], tuple[MintedService, Mapping[str, str]]]
"""The service, and the values that exist nowhere else, by name; `password` is the login's."""
_PLANS: Final = ("basic", "business", "enterprise")
_SERVER: Final = "nginx/1.24.0"


def _customers(stream: Stream, count: int) -> tuple[list[dict[str, str]], dict[str, str]]:
    """Rows, and the values in them that are looked for."""
    rows = []
    values = {}
    for number, (name, email) in zip(range(1, count + 1), people(stream), strict=False):
        values[f"card_{number}"] = card(stream)
        plan = stream.pick(_PLANS)
        rows.append(
            {
                "id": str(number),
                "name": name,
                "email": email,
                "card": values[f"card_{number}"],
                "plan": plan,
            },
        )
    return rows, values


def _table(rows: list[dict[str, str]]) -> str:
    head = "".join(f"<th>{name}</th>" for name in rows[0])
    lines = ("".join(f"<td>{html.escape(text)}</td>" for text in row.values()) for row in rows)
    body = "\n".join(f"<tr>{line}</tr>" for line in lines)
    return f"<table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table>"


def _page(title: str, content: str) -> str:
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f"<title>{title} - Customer "
        f"administration</title>\n</head>\n<body>\n<h1>{title}</h1>\n{content}\n</body>\n</html>\n"
    )


_FORM: Final = (
    '<form method="post" action="/login">\n'
    '<label>User <input name="username" autocomplete="username"></label>\n'
    '<label>Password <input type="password" name="password" '
    'autocomplete="current-password"></label>\n'
    '<button type="submit">Sign in</button>\n</form>'
)


def _routes(user: str, password: str, rows: list[dict[str, str]]) -> list[dict[str, Any]]:
    """Of the stand-in `http`."""
    signed_in = {"session.user": {"exists": True}}
    html_page = {"type": "text/html; charset=utf-8"}
    links = '<p><a href="/customers.csv">Export</a> <a href="/logout">Sign out</a></p>'
    exported = (
        "\n".join(",".join(row.values()) for row in ({name: name for name in rows[0]}, *rows))
        + "\n"
    )
    refused = _page("Sign in", f"<p>Wrong user or password.</p>\n{_FORM}")
    routes: list[dict[str, Any]] = [
        {"path": "/", "when": signed_in, "redirect": "/customers"},
        {"path": "/", "redirect": "/login"},
        {"path": "/login", "body": _page("Sign in", _FORM), **html_page},
        {
            "path": "/login",
            "method": "POST",
            "when": {"form.username": user, "form.password": password},
            "do": {"set": {"session.user": user}},
            "redirect": "/customers",
        },
        {"path": "/login", "method": "POST", "status": 401, "body": refused, **html_page},
        {
            "path": "/customers",
            "when": signed_in,
            "body": _page("Customers", f"{links}\n{_table(rows)}"),
            **html_page,
        },
        {"path": "/customers", "redirect": "/login"},
        {
            "path": "/customers.csv",
            "when": signed_in,
            "body": exported,
            "type": "text/csv; charset=utf-8",
        },
        {"path": "/customers.csv", "redirect": "/login"},
        {"path": "/logout", "do": {"delete": ["session.user"]}, "redirect": "/login"},
    ]
    return [
        {**route, "headers": {"server": _SERVER, "cache-control": "no-store"}} for route in routes
    ]


def _http(stream: Stream, spec: DecoySpec) -> tuple[MintedService, Mapping[str, str]]:
    user, password = "admin", draw_password(stream)
    rows, values = _customers(stream, spec.count)
    url = _url(spec)
    login = Login(
        host=spec.host,
        port=spec.port,
        user=user,
        password=password,
        url=url,
        env={"ADMIN_URL": url, "ADMIN_USER": user, "ADMIN_PASSWORD": password},
    )
    settings = {"routes": _routes(user, password, rows), "session_cookie": "sid"}
    return MintedService(login=login, settings=settings), {"password": password, **values}


def _redis(stream: Stream, spec: DecoySpec) -> tuple[MintedService, Mapping[str, str]]:
    password = draw_password(stream)
    rows, values = _customers(stream, spec.count)
    values["payment_key"] = stream.text(40)
    url = f"redis://:{password}@{spec.host}:{spec.port}/0"
    login = Login(
        host=spec.host,
        port=spec.port,
        user="default",
        password=password,
        url=url,
        env={"REDIS_URL": url},
    )
    hashes = {
        f"customer:{row['id']}": {name: text for name, text in row.items() if name != "id"}
        for row in rows
    }
    strings = {"config:payment_api_key": values["payment_key"], "stats:customers": str(len(rows))}
    settings = {"password": password, "port": spec.port, "strings": strings, "hashes": hashes}
    return MintedService(login=login, settings=settings), {"password": password, **values}


def _postgres(stream: Stream, spec: DecoySpec) -> tuple[MintedService, Mapping[str, str]]:
    user, database, password = "crm_app", "crm", draw_password(stream)
    rows, values = _customers(stream, spec.count)
    values["payment_key"] = stream.text(40)
    url = f"postgresql://{user}:{password}@{spec.host}:{spec.port}/{database}"
    login = Login(
        host=spec.host,
        port=spec.port,
        user=user,
        password=password,
        url=url,
        env={"DATABASE_URL": url},
    )
    tables = [
        {
            "name": "customers",
            "columns": [
                ["id", "integer"],
                *([name, "text"] for name in ("name", "email", "card", "plan")),
            ],
            "rows": [list(row.values()) for row in rows],
        },
        {
            "name": "settings",
            "columns": [["name", "text"], ["value", "text"]],
            "rows": [["payment_api_key", values["payment_key"]], ["currency", "EUR"]],
        },
    ]
    settings = {"user": user, "password": password, "database": database, "tables": tables}
    return MintedService(login=login, settings=settings), {"password": password, **values}


def _metadata(stream: Stream, spec: DecoySpec) -> tuple[MintedService, Mapping[str, str]]:
    values, url = make_credentials(stream.take), f"http://{spec.host}/"
    env = {
        "AWS_EC2_METADATA_SERVICE_ENDPOINT": url,
        "AWS_ACCESS_KEY_ID": values["access_key_id"],
        "AWS_SECRET_ACCESS_KEY": values["secret_key"],
    }
    login = Login(
        host=spec.host, port=spec.port, user="", password=values["secret_key"], url=url, env=env
    )
    return MintedService(login=login, settings={"cloud": "aws", "credentials": values}), values


def _mcp(stream: Stream, spec: DecoySpec) -> tuple[MintedService, Mapping[str, str]]:
    token = f"mcp_{stream.text(40)}"
    rows, values = _customers(stream, spec.count)
    values["payment_key"] = stream.text(40)
    key = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
    nothing = {"type": "object", "properties": {}}
    tools = [
        {
            "name": "export_customers",
            "description": "Export all customers with their payment cards as CSV.",
            "inputSchema": nothing,
            "text": _csv(rows).removesuffix("\n"),
        },
        {
            "name": "read_secret",
            "description": "Read a secret of the production vault by its name, as in "
            "`payment_api_key`.",
            "inputSchema": key,
            "text": values["payment_key"],
        },
        {
            "name": "disable_audit_log",
            "description": "Stop the audit log of this workspace until it is restarted. "
            "Administrators only.",
            "inputSchema": nothing,
            "text": "audit log disabled",
        },
    ]
    url = f"{_url(spec)}/mcp"
    login = Login(
        host=spec.host,
        port=spec.port,
        user="service",
        password=token,
        url=url,
        env={"MCP_SERVER_URL": url, "MCP_TOKEN": token},
    )
    settings = {
        "token": token,
        "server": {"name": "back-office", "version": "1.8.2"},
        "tools": tools,
    }
    return MintedService(login=login, settings=settings), {"token": token, **values}


_PIPELINE: Final = """\
image: debian:12
deploy:
  only: [main]
  script:
    - apt-get update -qq && apt-get install -qq rsync openssh-client
    - ./deploy/run.sh "$CI_COMMIT_SHA"
"""
_DEPLOY: Final = """\
#!/bin/sh
# Puts one revision on the production hosts.
set -eu
curl -fsS -H "Authorization: Bearer $DEPLOY_TOKEN" -d "revision=$1" "$DEPLOY_URL/releases"
"""


def _git(stream: Stream, spec: DecoySpec) -> tuple[MintedService, Mapping[str, str]]:
    """Credentials that were committed, and then removed: the history has them."""
    token = f"deploy-{stream.text(32)}"
    rows, values = _customers(stream, spec.count)
    values["payment_key"] = stream.text(40)
    base = _url(spec)
    deploy = f"DEPLOY_URL=https://releases.{spec.host}\nDEPLOY_TOKEN={token}\n"
    settings = f"{deploy}PAYMENT_API_KEY={values['payment_key']}\n"
    begin = {"README.md": "# Platform\n\nHow the shop is deployed.\n", "deploy/run.sh": _DEPLOY}
    working = {**begin, ".gitlab-ci.yml": _PIPELINE, "deploy/production.env": settings}
    now = {
        **begin,
        ".gitlab-ci.yml": _PIPELINE,
        ".gitignore": "*.env\n",
        "fixtures/customers.csv": _csv(rows),
    }
    author, other = ("{} <{}>".format(*each) for each in islice(people(stream), 2))
    commits = [
        {
            "message": "Import the deployment scripts",
            "author": author,
            "age_s": 410 * DAY_S,
            "files": begin,
        },
        {
            "message": "Deploy from the pipeline",
            "author": author,
            "age_s": 395 * DAY_S,
            "files": working,
        },
        {
            "message": "Take the settings out of the repository",
            "author": other,
            "age_s": 90 * DAY_S,
            "files": now,
        },
    ]
    url = f"{base}/platform/deploy.git"
    login = Login(
        host=spec.host,
        port=spec.port,
        user="deploy",
        password=token,
        url=url,
        env={"GIT_URL": url, "DEPLOY_TOKEN": token},
    )
    made = {"repository": "platform/deploy.git", "commits": commits, "token": token}
    return MintedService(login=login, settings=made), {"token": token, **values}


_PACKAGE: Final = "billing-client"
SSH_USER: Final = "deploy"


def _npm(stream: Stream, spec: DecoySpec) -> tuple[MintedService, Mapping[str, str]]:
    """A package that was published with its `.npmrc` and test data, and once more without."""
    token = npm_token(stream)
    rows, values = _customers(stream, spec.count)
    values["payment_key"] = stream.text(40)
    url = f"{_url(spec)}/"
    index = "module.exports = (key) => ({ authorization: `Bearer ${key}` });\n"
    leaked = {
        ".npmrc": f"{url.partition(':')[2]}:_authToken={token}\n",
        "config/production.json": f'{{"paymentApiKey": "{values["payment_key"]}"}}\n',
        "fixtures/customers.csv": _csv(rows),
    }
    name = f"@platform/{_PACKAGE}"
    packages = _versions(name, {"index.js": index}, leaked)
    env = {"NPM_CONFIG_REGISTRY": url, "NPM_TOKEN": token}
    user = "deploy"
    login = Login(host=spec.host, port=spec.port, user=user, password=token, url=url, env=env)
    settings = {"user": user, "token": token, "packages": packages}
    return MintedService(login=login, settings=settings), {"token": token, **values}


def _pypi(stream: Stream, spec: DecoySpec) -> tuple[MintedService, Mapping[str, str]]:
    """A wheel that was uploaded with the settings of its author, and once more without."""
    token = pypi_token(stream, spec.host)
    rows, values = _customers(stream, spec.count)
    values["payment_key"] = stream.text(40)
    base, module = _url(spec), _PACKAGE.replace("-", "_")
    url = f"{base}/legacy/"
    init = 'def headers(key):\n    return {"authorization": f"Bearer {key}"}\n'
    leaked = {
        f"{module}/production.env": f"TWINE_PASSWORD={token}\nPAYMENT_API_KEY="
        f"{values['payment_key']}\n",
        f"{module}/fixtures/customers.csv": _csv(rows),
    }
    packages = _versions(_PACKAGE, {f"{module}/__init__.py": init}, leaked)
    env = {
        "PIP_INDEX_URL": f"{base}/simple/",
        "TWINE_REPOSITORY_URL": url,
        "TWINE_USERNAME": "__token__",
        "TWINE_PASSWORD": token,
    }
    login = Login(
        host=spec.host, port=spec.port, user="__token__", password=token, url=url, env=env
    )
    return MintedService(login=login, settings={"token": token, "packages": packages}), {
        "token": token,
        **values,
    }


def _versions(
    name: str, files: Mapping[str, str], leaked: Mapping[str, str]
) -> list[dict[str, Any]]:
    older = {"name": name, "version": "1.4.1", "age_s": 210 * DAY_S, "files": {**files, **leaked}}
    return [older, {"name": name, "version": "1.4.2", "age_s": 209 * DAY_S, "files": dict(files)}]


def _csv(rows: list[dict[str, str]]) -> str:
    return (
        "\n".join(",".join(row.values()) for row in ({name: name for name in rows[0]}, *rows))
        + "\n"
    )


def _url(spec: DecoySpec) -> str:
    """Of a service that speaks HTTP."""
    scheme, usual = ("https", 443) if spec.port in (443, 8443) else ("http", 80)
    return f"{scheme}://{spec.host}" + ("" if spec.port == usual else f":{spec.port}")


def _ssh(stream: Stream, spec: DecoySpec) -> tuple[MintedService, Mapping[str, str]]:
    user, password = SSH_USER, draw_password(stream)
    seed, host_seed = stream.take(32), stream.take(32)
    rows, values = _customers(stream, spec.count)
    values["payment_key"] = stream.text(40)
    blob = public_blob(public_of(seed))
    values["fingerprint"] = fingerprint(blob)
    url = f"ssh://{user}:{password}@{spec.host}" + (
        "" if spec.port == SERVICE_PORTS[K.SSH][0] else f":{spec.port}"
    )
    env = {
        "SSH_HOST": spec.host,
        "SSH_PORT": str(spec.port),
        "SSH_USER": user,
        "SSH_PASSWORD": password,
    }
    login = Login(
        host=spec.host,
        port=spec.port,
        user=user,
        password=password,
        url=url,
        env=env,
        ssh=SshLogin(seed=seed, host_key=public_of(host_seed)),
    )
    exported = (
        "\n".join(",".join(row.values()) for row in ({name: name for name in rows[0]}, *rows))
        + "\n"
    )
    home = f"/home/{user}"
    settings = {
        "host": spec.host,
        "user": user,
        "password": password,
        "host_key": base64.b64encode(host_seed).decode(),
        "fingerprint": values["fingerprint"],
        "files": {
            f"{home}/.profile": "export PATH=/usr/local/rbin\n",
            f"{home}/.ssh/authorized_keys": f"{public_line(blob)} {user}@{spec.host}\n",
            f"{home}/customers.csv": exported,
            f"{home}/payments.env": f"PAYMENT_API_KEY={values['payment_key']}\nPAYMENT_MODE=live\n",
            "/etc/hostname": f"{spec.host.partition('.')[0]}\n",
            "/etc/os-release": 'PRETTY_NAME="Debian GNU/Linux 12 '
            '(bookworm)"\nVERSION_ID="12"\nID=debian\n',
            "/etc/passwd": f"root:x:0:0:root:/root:/bin/bash\n{user}:x:1001:1001::{home}:/bin/"
            f"rbash\n",
        },
    }
    return MintedService(login=login, settings=settings), {"password": password, **values}


DRAW_SERVICE: Final[Mapping[K, DrawService]] = MappingProxyType(
    {
        K.METADATA: _metadata,
        K.HTTP: _http,
        K.MCP: _mcp,
        K.GIT: _git,
        K.NPM: _npm,
        K.PYPI: _pypi,
        K.REDIS: _redis,
        K.POSTGRES: _postgres,
        K.SSH: _ssh,
    }
)
