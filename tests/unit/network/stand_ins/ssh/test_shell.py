"""What the restricted shell answers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from belljar.network.stand_ins.ssh.shell import MAX_OUTPUT_CHARS, Host, Shell

HOST = Host(
    name="bastion.corp.internal",
    user="deploy",
    files={
        "/home/deploy/.ssh/keys": "k\n",
        "/home/deploy/a.csv": "1,2\n",
        "/etc/hostname": "bastion\n",
    },
    changed_s=1e9,
)


def run(line: str) -> tuple[str, str, int]:
    """A line's output, errors and status."""
    result = Shell(HOST, "-rbash").run(line)
    return result.output, result.errors, result.status


@pytest.mark.parametrize(
    ("line", "output"),
    [
        ("id", "uid=1001(deploy) gid=1001(deploy) groups=1001(deploy)\n"),
        ("whoami; pwd", "deploy\n/home/deploy\n"),
        ("hostname && hostname -f", "bastion\nbastion.corp.internal\n"),
        ("uname; uname -rm", "Linux\n6.1.0-28-amd64 x86_64\n"),
        ("ls", "a.csv\n"),
        ("ls -a ~", ".\n..\n.ssh\na.csv\n"),
        ("ls /", "etc\nhome\n"),
        ("cat a.csv ./.ssh/../a.csv /etc/hostname", "1,2\n1,2\nbastion\n"),
        ("cat a.csv | cat", "1,2\n"),
        ("false || echo $USER # note", "deploy\n"),
        ("exit; pwd", ""),
        ("", ""),
    ],
)
def test_a_command_is_answered_as_on_a_real_host(line: str, output: str) -> None:
    """What goes on after a failure is the shell's ordinary way."""
    assert run(line)[0] == output


@pytest.mark.parametrize(
    ("line", "errors", "status"),
    [
        ("nmap -sS 10.0.0.1", "-rbash: nmap: command not found\n", 127),
        ("/bin/sh", "-rbash: /bin/sh: restricted: cannot specify `/' in command names\n", 1),
        ("cat a.csv > /tmp/x", "-rbash: /tmp/x: restricted: cannot redirect output\n", 1),
        ("cd /", "-rbash: cd: restricted\n", 1),
        ("cat nothing", "cat: nothing: No such file or directory\n", 1),
        ("cat /etc", "cat: /etc: Is a directory\n", 1),
        ("ls nothing", "ls: cannot access 'nothing': No such file or directory\n", 2),
    ],
)
def test_what_is_refused(line: str, errors: str, status: int) -> None:
    """A restricted shell's own reasons."""
    assert run(line)[1:] == (errors, status)


def test_exit_has_a_status() -> None:
    """Its own, or the last command's."""
    shell = Shell(HOST, "-rbash")
    assert shell.run("exit 3").status == 3
    shell.run("nothing")
    left = shell.run("exit")
    assert (left.ends, left.status) == (True, 127)


@given(st.text(max_size=300) | st.text("~$cat ls;&|<>'\"\\#/.-a ", max_size=200))
def test_any_line_is_answered(line: str) -> None:
    """Within bounds, whatever it is."""
    result = Shell(HOST, "-rbash").run(line)
    assert len(result.output) <= MAX_OUTPUT_CHARS
    assert 0 <= result.status <= 255
