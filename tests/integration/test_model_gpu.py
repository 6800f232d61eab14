"""A GPU's device files in a model's cell. There is no GPU here: nodes of other devices stand in."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.integration.conftest import Belljar
from tests.machine import PATIENCE_S
from tests.real_packages import JSON_SERVER

pytestmark = [pytest.mark.vm, pytest.mark.root]
IN_OWN_DEV = """\
set -e
mount -t tmpfs -o mode=755 none "$1"
for name in null zero full random urandom tty ptmx fd stdin stdout stderr; do
    cp -a "/dev/$name" "$1"
done
mkdir "$1/shm" "$1/pts"
mount --rbind /dev/shm "$1/shm"
mount --rbind /dev/pts "$1/pts"
mknod -m 666 "$1/nvidia0" c 1 3
mknod -m 666 "$1/nvidia-uvm" c 1 5
mknod -m 666 "$1/nvidiactl" c 195 255
mount --move "$1" /dev
shift
exec "$@"
"""
"""Of these three the last is a number of the real driver, which this kernel lacks."""
SERVER = (
    JSON_SERVER
    + """\
    def do_POST(self):
        import glob, os
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        seen = {}
        for path in glob.glob("/dev/nvidia*"):
            number = os.stat(path).st_rdev
            seen[path] = [os.major(number), os.minor(number), "opens"]
            try:
                os.close(os.open(path, os.O_RDWR))
            except OSError as error:
                seen[path][2] = error.strerror
        message = {"role": "assistant", "content": json.dumps(seen)}
        choice = {"index": 0, "finish_reason": "stop", "message": message}
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        self.send({"id": "x", "object": "chat.completion", "created": 1, "model": asked["model"],
                   "choices": [choice], "usage": usage})
HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""
)
PROBED = """
import json, sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
import anyio
from belljar.cell.open import open_cell
from belljar.cell.parts import start_run
from belljar.model.http import Question
from belljar.model.serve import load_model, open_model
from belljar.probe.run import probe_cell

async def main():
    nowhere = SimpleNamespace(record=lambda _event: None)
    with start_run("test", None, []) as run:
        async with open_model(load_model(Path("model.yaml")), run=run) as served:
            plan = served.cell.plan
            oci = replace(plan.oci, devices=plan.oci.devices[:-1])
            served.cell.plan = replace(plan, oci=oci)
            report = await probe_cell(served.cell, which="devices.unusual", recorder=nowhere)
            served.cell.plan = plan
            body = json.dumps({"model": "m"}).encode()
            question = Question(method="POST", path="/v1/chat/completions", body=body)
            async with served.ask(question) as asked:
                answer = b""
                while (part := await asked.next_part()) is not None:
                    answer += part
        seen = json.loads(json.loads(answer)["choices"][0]["message"]["content"])
        async with open_cell("low", run=run) as other:
            listed = (await other.exec(["ls", "/dev"])).stdout.decode()
        print(json.dumps([report.verdict.value, report.findings[0].detail, seen, listed]))

anyio.run(main)
"""


GPU = {"devices": ["/dev/nvidia0"]}
SEEN = {
    "/dev/nvidia0": [1, 3, "opens"],
    "/dev/nvidia-uvm": [1, 5, "opens"],
    "/dev/nvidiactl": [195, 255, "No such device or address"],
}


@pytest.mark.promise("2.8", "4.6")
def test_a_models_cell_gets_the_gpus_of_its_policy_and_no_other_cell_does(
    belljar: Belljar, clean_after: Callable[[], Path], tmp_path: Path
) -> None:
    """The server opens the nodes, by the numbers of this host's; another cell has none."""
    (tmp_path / "dev").mkdir()
    (tmp_path / "weights").write_text("none")
    added = json.loads(belljar("model", "add", str(tmp_path / "weights"), "--json").stdout)
    server = ["python3", "-c", SERVER, "{port}"]
    model = {"weights": {"sha256": added["digest"]}, "server": server, "gpu": GPU}
    (tmp_path / "model.yaml").write_text(json.dumps({"belljar": 1, "risk": "low", "model": model}))
    own_dev = ["unshare", "--mount", "sh", "-c", IN_OWN_DEV, "sh", str(tmp_path / "dev")]
    ran = subprocess.run(
        [*own_dev, sys.executable, "-c", PROBED],
        cwd=tmp_path,
        env=belljar.environment(),
        capture_output=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert ran.returncode == 0, (ran.stderr + ran.stdout).decode()
    verdict, detail, seen, listed = json.loads(ran.stdout)
    assert (verdict, detail, seen) == ("breached", "/dev/nvidia0", SEEN)
    assert "null" in listed
    assert "nvidia" not in listed
    lines = [line["data"] for line in belljar.events(clean_after())]
    probed = [
        (data["phase"], data["verdict"]) for data in lines if "phase" in data and "verdict" in data
    ]
    assert probed[0] == ("start", "contained")
    assert probed[-1] == ("end", "contained")
