"""A confined gateway can import nothing: what answering needs, the fork server has imported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.fakes.registries import make_deb, make_tar, make_wheel

PROGRAM = """
import sys
from pathlib import Path
from belljar.network.fork_server import preload
from belljar.network.stand_ins import modules_of
preload(modules_of(["debian", "git", "http", "npm", "pypi"]))
known = set(sys.modules)
from dataclasses import replace
from tests.fakes.registries import Ledger, ask, basic, context_for, form
known |= {name for name in sys.modules if name not in known and not name.startswith(("anyio", "encodings"))}
from belljar.network.stand_ins import debian, git, http, npm, pypi
files = Path(sys.argv[1])
app = pypi.make(context_for(files / "p", Ledger()))
for path in ("/simple/one/", "/simple/two/", "/packages/one-1.0-py3-none-any.whl"):
    assert ask(app, "GET", path).status == 200, path
kind, body = form({"name": "a", "version": "1"}, {"content": ("x", b"x")})
assert ask(app, "POST", "/", headers={"content-type": kind, "authorization": basic("a", "b")}, body=body).status == 200
app = npm.make(context_for(files / "n", Ledger()))
assert ask(app, "GET", "/a").status == 200
assert ask(app, "PUT", "/b", body=b"{}").status == 400
# What json.loads would take for UTF-16 and UTF-32, by codecs that are not there.
for body in (b'{\\0}\\0', b'\\xff\\xfe{\\0}\\0', b'\\0{\\0}', b'{\\0\\0\\0}\\0\\0\\0', b'\\xef\\xbb\\xbf{}'):
    assert ask(app, "PUT", "/b", body=body).status == 400, body
app = debian.make(context_for(files / "d", Ledger()))
for path in ("/dists/a/Release", "/dists/a/main/binary-amd64/Packages"):
    assert ask(app, "GET", path).status == 200, path
app = git.make(context_for(files / "g", Ledger()))
refs = ask(app, "GET", "/t/info/refs", query="service=git-upload-pack").body
head = refs.split(b"0000", 1)[1][4:44]
want = b"want " + head + b"\\n"
pack = ask(app, "POST", "/t/git-upload-pack", body=b"%04x" % (len(want) + 4) + want + b"00000009done\\n").body
assert b"PACK" in pack
settings = {"routes": [{"path": "/", "body": "<p>{{ now | length }}{% for x in [body] %}late{% endfor %}"}]}
app = http.make(replace(context_for(files, Ledger()), settings=settings))
assert ask(app, "GET", "/").body == b"<p>20late"
print(sorted(name for name in set(sys.modules) - known if name.partition(".")[0] != "tests"))
"""


def test_answering_imports_nothing(tmp_path: Path) -> None:
    """Wheels, archives of every packing, a repository with packs, a commit graph and a
    multi-pack index, and an answer that waits."""
    for name in "pndg":
        (tmp_path / name).mkdir()
    make_wheel(tmp_path / "p", "one", "1.0")
    make_tar(tmp_path / "p/two-1.tar.gz", {"two-1/PKG-INFO": b"Name: two\n"})
    make_tar(tmp_path / "n/a.tgz", {"package/package.json": b'{"name": "a", "version": "1.0.0"}'})
    for number, packing in enumerate(["", ".gz", ".xz"]):
        make_deb(tmp_path / "d", f"tool{number}", "1", packing=packing)
    git = ["git", "-C", str(tmp_path / "g"), "-c", "user.name=x", "-c", "user.email=x@x"]
    for command in (
        "init -q s",
        "-C s commit -q --allow-empty -m x",
        "clone -q --bare s t.git",
        "-C t.git repack -adq",
    ):
        subprocess.run([*git, *command.split()], check=True)
    for command in ("-C t.git commit-graph write --reachable", "-C t.git multi-pack-index write"):
        subprocess.run([*git, *command.split()], check=True, capture_output=True)
    root = str(Path(__file__).parents[4])
    environment = {"PYTHONPATH": ":".join([f"{root}/src", root])}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)],
        env=environment,
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout.strip(), done.returncode) == ("[]", 0), done.stderr
