"""Real clients against stand-ins over uvicorn on loopback: what they speak is what the stand-ins
answer. Programs that aren't installed are skipped by name."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser

ROOT = Path(__file__).parents[2]
SHOP: dict[str, Any] = {
    "static": {"/files": "."},
    "routes": [
        {"path": "/hello", "json": {"who": "{{ query.who }}"}},
        {"path": "/add", "method": "POST", "json": {"added": "{{ json.name }}"}},
    ],
}
Serve = Callable[..., str]


@contextmanager
def server(kind: str, settings: dict[str, Any], directory: Path) -> Iterator[str]:
    """The base URL of a stand-in that is up."""
    argv = [
        sys.executable,
        str(Path(__file__).parent / "stand_in_server.py"),
        kind,
        json.dumps(settings),
        str(directory),
    ]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    with subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.stdin.close()
            assert process.wait(60) == 0


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Starts stand-ins; ends them."""
    with ExitStack() as stack:
        yield lambda *args: stack.enter_context(server(*args))


def run(*argv: str, **env: str) -> str:
    """A program's output; it must end well."""
    ran = subprocess.run(
        argv, capture_output=True, text=True, timeout=120, check=False, env={**os.environ, **env}
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def installed(program: str) -> str:
    """Its path; the test is skipped aloud where there is none."""
    path = shutil.which(program)
    if path is None:
        pytest.skip(f"{program} is not installed")
    return path


def test_curl(serve: Serve, tmp_path: Path) -> None:
    """Templates, files and HEAD by curl."""
    curl = installed("curl")
    (tmp_path / "a.txt").write_text("0123456789")
    base = serve("http", SHOP, tmp_path)
    assert json.loads(run(curl, "-sf", f"{base}/hello?who=a%26b")) == {"who": "a&b"}
    assert json.loads(run(curl, "-sf", "--json", '{"name": "x"}', f"{base}/add")) == {"added": "x"}
    assert "content-length: 10" in run(curl, "-sfI", f"{base}/files/a.txt").lower()
    assert (
        run(
            curl,
            "-s",
            "--path-as-is",
            "-o",
            str(tmp_path / "out"),
            "-w",
            "%{http_code}",
            f"{base}/files/../../etc/passwd",
        )
        == "404"
    )


PAGE = """\
<form method=post action=/login><input name=user><button>in</button></form>
"""


def test_a_browser(serve: Serve, browser: Browser, tmp_path: Path) -> None:
    """A form whose text is shown as text, and a request of a script."""
    site = {
        "routes": [
            {"path": "/", "type": "text/html", "body": PAGE},
            {
                "path": "/login",
                "method": "POST",
                "type": "text/html",
                "body": "<p>{{ form.user }}",
            },
            *SHOP["routes"],
        ]
    }
    base = serve("http", site, tmp_path)
    page = browser.new_page()
    page.goto(base)
    page.fill("input", "<eve>")
    page.click("button")
    assert (page.url, page.inner_text("p")) == (f"{base}/login", "<eve>")
    assert page.evaluate("fetch('/hello?who=x').then(reply => reply.json())") == {"who": "x"}


def test_python_clients(serve: Serve, tmp_path: Path) -> None:
    """httpx and requests get what they sent."""
    base = serve("http", SHOP, tmp_path)
    with httpx.Client(base_url=base) as client:
        assert client.post("/add", json={"name": "a"}).json() == {"added": "a"}
    program = (
        f"import requests; print(requests.post('{base}/add', json={{'name': 'b'}}).json()['added'])"
    )
    assert run(sys.executable, "-c", program).strip() == "b"


def test_node_fetch(serve: Serve, tmp_path: Path) -> None:
    """Node's fetch reads JSON and sends it."""
    node = installed("node")
    pets = [{"path": "/pets", "json": [1, 2]}, {"path": "/pets", "method": "POST", "status": 201}]
    base = serve("http", {"routes": pets}, tmp_path)
    program = f"""
const h = {{"x-key": "k", "content-type": "application/json"}};
const all = await (await fetch("{base}/pets")).json();
const made = await fetch("{base}/pets", {{method: "POST", headers: h, body: JSON.stringify({{name: "Rex", kind: "dog"}})}});
console.log(all.length, made.status);
"""
    file = tmp_path / "a.mjs"
    file.write_text(program)
    assert run(node, str(file)).strip() == "2 201"


def test_metadata_by_curl(serve: Serve, tmp_path: Path) -> None:
    """The two steps of IMDSv2 as every script has them."""
    curl = installed("curl")
    base = serve("metadata", {"tokens": "required"}, tmp_path)
    token = run(
        curl,
        "-sf",
        "-X",
        "PUT",
        "-H",
        "X-aws-ec2-metadata-token-ttl-seconds: 60",
        f"{base}/latest/api/token",
    )
    assert run(
        curl,
        "-sf",
        "-H",
        f"X-aws-ec2-metadata-token: {token}",
        f"{base}/latest/meta-data/instance-id",
    ).startswith("i-0")


OPENAI = """
import sys
from openai import OpenAI, NotFoundError, AuthenticationError
client = OpenAI(base_url=sys.argv[1] + "/v1", api_key="sk-x")
ask = [{"role": "user", "content": "hello there, this is longer than a piece"}]
print([m.id for m in client.models.list()])
print(client.chat.completions.create(model="m", messages=ask).choices[0].message.content)
stream = client.chat.completions.create(model="m", messages=ask, stream=True, stream_options={"include_usage": True})
chunks = list(stream)
print("".join(c.choices[0].delta.content or "" for c in chunks if c.choices), chunks[-1].usage.total_tokens)
tools = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}]
done = client.chat.completions.create(model="m", messages=ask, tools=tools).choices[0]
print(done.finish_reason, done.message.tool_calls[0].function.arguments)
with client.chat.completions.stream(model="m", messages=ask, tools=tools) as stream:
    print(stream.get_final_completion().choices[0].message.tool_calls[0].function.name)
print(client.responses.create(model="m", input="hi", instructions="x").output_text)
with client.responses.stream(model="m", input="hi and more than one piece of text") as stream:
    for event in stream:
        pass
    print(stream.get_final_response().output_text)
called = client.responses.create(model="m", input="x", tools=[{"type": "function", "name": "add", "parameters": {}, "strict": False}])
print(called.output[0].type, called.output[0].call_id)
try:
    client.models.retrieve("m")
except NotFoundError as exc:
    print(exc.code)
"""


def test_the_openai_client(serve: Serve, tmp_path: Path) -> None:
    """The client of the API's maker, whole answers and streams, chat and responses."""
    said = "HELLO THERE, THIS IS LONGER THAN A PIECE"
    lines = [
        "['gpt-4o']",
        said,
        f"{said} 3",
        'tool_calls {"a": 1}',
        "add",
        "HI",
        "HI AND MORE THAN ONE PIECE OF TEXT",
        "function_call call_1",
        "model_not_found",
    ]
    assert run(sys.executable, "-c", OPENAI, serve("openai", {}, tmp_path)).splitlines() == lines
