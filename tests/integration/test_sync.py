"""Belljar as a script uses it: without an event loop."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.integration.conftest import Belljar
from tests.machine import PATIENCE_S

SCRIPT = """
import pathlib, threading, time
import belljar

policy = {"belljar": 1, "risk": "low", "tier": "container", "user": "root", "snapshots": True,
          "resources": {"memory": "256MiB", "disk": "64MiB"}, "env": {"GREETING": "hello"}}
with belljar.sync.open_cell(policy) as cell:
    assert cell.env["GREETING"] == "hello"
    assert cell.exec(["sh", "-c", "echo $GREETING; cat"], input="text").check().stdout == b"hello\\ntext"
    try:
        cell.exec(["sh", "-c", "echo why >&2; exit 3"]).check()
    except belljar.CommandError as failed:
        assert failed.output.returncode == 3 and "why" in str(failed)
    cell.write_file("/tmp/notes", "some text")
    assert cell.read_file("/tmp/notes", max_bytes=100) == b"some text"
    assert [entry.size_bytes for entry in cell.list_dir("/tmp") if entry.name == "notes"] == [9]
    snapshot = cell.snapshot("mine")
    assert (snapshot.facts.name, len(snapshot.facts.digest)) == ("mine", 64)
    cell.write_file("/tmp/notes", "later")
    with snapshot.fork() as one, snapshot.fork() as two:
        assert {each.read_file("/tmp/notes") for each in (one, two)} == {b"some text"}
    cell.revert(to=snapshot)
    assert cell.read_file("/tmp/notes") == b"some text"
    with cell.open_exec(["cat"]) as running:
        running.send_stdin("one line\\n")
        assert next(running) == (belljar.Stream.STDOUT, b"one line\\n")
        running.signal(15)
        assert list(running) == [] and running.wait().code == 15
    found = []
    words = [threading.Thread(target=lambda n=n: found.append(cell.exec(["echo", n]).stdout))
             for n in "abc"]
    [word.start() for word in words], [word.join() for word in words]
    assert sorted(found) == [b"a\\n", b"b\\n", b"c\\n"]
assert cell.destruction.clean
network = {"stand_ins": {"shop": {"kind": "http", "names": ["shop.example"],
                                  "routes": [{"path": "/", "body": "hello"}]}}}
server = "import socket; s = socket.create_server(('127.0.0.1', 8000)); print('up', flush=True)\\n" \
         "while True: p = s.accept()[0]; p.sendall(p.recv(99).upper()); p.close()"
pathlib.Path("tree").mkdir()
pathlib.Path("tree/a.txt").write_text("some text")
with belljar.sync.open_range({**policy, "network": network}) as opened:
    cell = opened.cell
    asked = cell.exec(["curl", "-s", "http://shop.example/"]).check()
    assert asked.stdout == b"hello", asked
    cell.upload("tree", "/tmp/tree")
    cell.download("/tmp/tree", "back")
    assert pathlib.Path("back/a.txt").read_text() == "some text"
    running = cell.start(["python3", "-c", server])
    while b"up" not in running.output().stdout:
        assert running.running
        time.sleep(0.01)
    with cell.connect(8000) as stream:
        stream.send(b"shout")
        assert stream.receive() == b"SHOUT"
    running.kill()
    cell.remove("/tmp/tree", recursive=True)
with belljar.sync.open_pool(policy, size=1) as pool:
    for _ in range(2):
        with pool.cell() as cell:
            assert cell.exec(["echo", "hi"]).stdout == b"hi\\n"
print("done")
"""
WAITING = """
import belljar
with belljar.sync.open_cell("low") as cell:
    print(cell.id, flush=True)
    cell.exec(["sleep", "1000"])
"""


def test_a_script_without_async(belljar: Belljar, tmp_path: Path) -> None:
    """A dict as policy, text in and out, files, a running command, threads, snapshots and a proven
    end; ranges, pools, trees and streams: all as with `async`."""
    ran = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env=belljar.environment(),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
        cwd=tmp_path,
    )
    assert (ran.returncode, ran.stdout) == (0, "done\n"), ran.stderr
    assert belljar.leftovers() == []


def test_ctrl_c_destroys_the_cell(belljar: Belljar) -> None:
    """An interrupt of the terminal reaches the whole process group: the command ends, the cell is
    destroyed with proof, the record is whole, and then the script ends as interrupted."""
    process = subprocess.Popen(
        [sys.executable, "-c", WAITING],
        env=belljar.environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    belljar.started.append(process)
    assert process.stdout is not None
    cell = process.stdout.readline().decode().strip()
    os.killpg(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=120)
    assert process.returncode == -signal.SIGINT, said
    assert b"KeyboardInterrupt" in said
    assert belljar.leftovers() == []
    run = belljar.runs()[-1]
    destroyed = [each for each in belljar.events(run) if each["kind"] == "cell.destroyed"]
    assert [(each["cell"], each["data"]["clean"]) for each in destroyed] == [(cell, True)]
    assert belljar("ledger", "verify", str(run)).returncode == 0
