"""Belljar's own images, from the host's Debian mirror; nothing of the host gets in."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from ast import literal_eval
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from itertools import islice
from pathlib import Path
from typing import Final

from belljar.errors import HostError, PolicyError
from belljar.image.buildah import BuildRequest, build_dockerfile
from belljar.image.config import ImageConfig, debian_arch
from belljar.image.layers import LayerError
from belljar.image.oci import pack_layer
from belljar.image.store import Image, Store
from belljar.image.tools import (
    SYSTEM_PATH,
    Report,
    drained,
    failed,
    kill_group,
    plain_env,
    polled,
    run_tool,
    started,
    tool,
)
from belljar.store.home import need_space
from belljar.store.scratch import scratch_dir
from belljar.subids import first_subordinate_id, grant_hint, user_name
from belljar.units import printable

DEBIAN_KEYRING: Final = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
# Other distributions have a `main`, too, which is no Debian.
_CODENAMES: Final = frozenset(
    {"bookworm", "trixie", "forky", "duke", "sid", "testing", "stable", "oldstable", "unstable"}
)
_TARGET: Final = "$(REPO_URI) $(RELEASE) $(COMPONENT)"
_HOST_OPTIONS: Final = re.compile(
    r'(?m)^(Acquire::(?:https?::|ftp::|Check-|Retries|ForceIPv)\S*) "(.*)";$'
)


@dataclass(frozen=True, slots=True)
class AptSource:
    uri: str
    suites: tuple[str, ...]

    def deb822(self, *, has_keyring: bool = True) -> str:
        suites, is_named = " ".join(self.suites), has_keyring and DEBIAN_KEYRING.exists()
        stanza = f"Types: deb\nURIs: {self.uri}\nSuites: {suites}\nComponents: main\n"
        return f"{stanza}Signed-By: {DEBIAN_KEYRING}\n" if is_named else stanza


def host_sources() -> list[AptSource]:
    if shutil.which("apt-get") is None:
        return []
    argv = [tool("apt-get"), "indextargets", "--format", _TARGET, "Created-By: Packages"]
    listed = run_tool(argv, timeout_s=60).decode("utf-8", "replace").splitlines()
    found = (line.split() for line in dict.fromkeys(listed))
    return [AptSource(of[0], (of[1],)) for of in found if len(of) == 3 and of[2] == "main"]


def debian_sources(known: Sequence[AptSource], codename: str) -> list[AptSource]:
    """Raise `HostError` without a mirror of Debian."""
    # `main` of a suite that Debian has, best from a tree called `debian`.
    plain = [source for source in known if not _CODENAMES.isdisjoint(source.suites)]
    main = next((s for s in plain if s.uri.rstrip("/").endswith("debian")), next(iter(plain), None))
    if main is None:
        hint = "add one to apt's sources, and install debian-archive-keyring"
        raise HostError("apt's sources name no Debian mirror", where="/etc/apt", hint=hint)
    is_security = (s for s in known if any(suite.endswith("-security") for suite in s.suites))
    return [
        AptSource(main.uri, (codename, f"{codename}-updates")),
        *(AptSource(each.uri, (f"{codename}-security",)) for each in islice(is_security, 1)),
    ]


class PrivateApt:
    def __init__(self, directory: Path, sources: Sequence[AptSource]) -> None:
        parts = directory / "sources.list.d"
        self._lists = directory / "lists"
        for name in ("sources.list.d", "lists/partial", "cache/archives/partial", "state"):
            (directory / name).mkdir(parents=True)
        parts.joinpath("these.sources").write_text("\n".join(source.deb822() for source in sources))
        options = {
            "Dir::Etc::sourcelist": "/dev/null",
            "Dir::Etc::sourceparts": str(parts),
            "Dir::State": str(directory / "state"),
            # Nothing is installed: all that a package needs is named.
            "Dir::State::status": "/dev/null",
            "Dir::State::lists": str(self._lists),
            "Dir::Cache": str(directory / "cache"),
            "Acquire::Languages": "none",
            # For root, apt would fetch as `_apt`, to which this directory is closed.
            "APT::Sandbox::User": "root",
            # A list that can't be fetched is an error, not a warning.
            "APT::Update::Error-Mode": "any",
        }
        self._options = [f"-o{name}={value}" for name, value in options.items()]

    def update(self) -> None:
        run_tool([tool("apt-get"), *self._options, "-q", "update"], timeout_s=600)

    def show(self, package: str) -> dict[str, str]:
        """Return the fields of a package's newest version."""
        argv = [tool("apt-cache"), *self._options, "show", "--no-all-versions", package]
        lines = run_tool(argv, timeout_s=60).decode("utf-8", "replace").splitlines()
        # Of the only stanza; a field's further lines are indented, and none of those is asked for.
        return dict(line.partition(": ")[::2] for line in lines if line[:1].isalpha())

    def download(self, package: str, into: Path) -> Path:
        argv = [tool("apt-get"), *self._options, "-q", "download", package]
        run_tool(argv, timeout_s=1800, cwd=into)
        if len(found := [*into.glob("*.deb")]) != 1:
            raise HostError(f"apt fetched {len(found)} files for {package}", where="apt-get")
        return found[0]

    def download_closure(self, packages: Sequence[str], into: Path, *, suite: str = "") -> None:
        (into / "partial").mkdir(parents=True, exist_ok=True)
        chosen = ["-t", suite] if suite else []
        options = ["-q", "-y", "--no-install-recommends", *chosen, "install", "--download-only"]
        archives = ["-o", f"Dir::Cache::archives={into}"]
        argv = [tool("apt-get"), *self._options, *archives, *options, *packages]
        run_tool(argv, timeout_s=7200)

    def newest_release_s(self) -> int:
        """Return the newest list's date, 0 if unknown."""
        texts = (path.read_text(errors="replace") for path in self._lists.glob("*Release"))
        dates = (date for text in texts for date in re.findall(r"(?m)^Date: (.+)$", text))
        return max((int(parsedate_to_datetime(date).timestamp()) for date in dates), default=0)


def host_acquire_options() -> dict[str, str]:
    dump = run_tool([tool("apt-config"), "dump"], timeout_s=30).decode("utf-8", "replace")
    return {name: value for name, value in _HOST_OPTIONS.findall(dump) if value}


# --- Belljar's own images

USER: Final = "user"
UID: Final = 1000
_CODENAME: Final = "bookworm"
# The largest recipe from a slow mirror.
_TIMEOUT_S: Final = 3600
# mmdebstrap unmounts and removes what it made when it is told to end.
_GRACE_S: Final = 20
_BASE: Final = (
    "adduser bash bzip2 ca-certificates coreutils curl diffutils file findutils git grep gzip "
    "hostname iproute2 jq less nano netbase patch procps psmisc python-is-python3 python3 sed tar "
    "unzip util-linux xz-utils zip"
)
_DEVELOPMENT: Final = "gcc g++ gdb libc6-dev make pkg-config python3-dev python3-pip python3-venv"
# What the image of Inspect's Docker provider has: `python:3.12-bookworm`, which stands on
# `buildpack-deps:bookworm`, and its own packages.
_INSPECT: Final = (
    "autoconf automake default-libmysqlclient-dev dpkg-dev gnupg imagemagick libbz2-dev "
    "libcurl4-openssl-dev libdb-dev libevent-dev libffi-dev libgdbm-dev libglib2.0-dev libgmp-dev "
    "libjpeg-dev libkrb5-dev liblzma-dev libmagickcore-dev libmagickwand-dev libmaxminddb-dev "
    "libncurses-dev libpng-dev libpq-dev libreadline-dev libsqlite3-dev libssl-dev libtool "
    "libwebp-dev libxml2-dev libxslt1-dev libyaml-dev mercurial openssh-client pipx subversion "
    "tk-dev uuid-dev wget zlib1g-dev"
)
_ADD_USER: Final = f'chroot "$1" useradd --create-home --shell /bin/bash --uid {UID} {USER}'
# Removes what mmdebstrap and its tools leave behind, what each machine has for itself (keys, ids)
# and documentation but licences. The guest agent writes a cell's own over the last files.
_CLEAN: Final = r"""
set -eu
cd "$1"
for each in run boot etc/apt/sources.list.d root/.cache var/tmp var/log var/cache \
  var/lib/apt/lists usr/share/man usr/share/info usr/share/locale usr/share/lintian \
  usr/share/bug; do
  [ ! -d $each ] || find $each -mindepth 1 -delete
done
find usr/share/doc -mindepth 2 ! -path 'usr/share/doc/*/copyright' \( ! -type d -o -empty \) -delete
rm -f etc/apt/sources.list etc/apt/apt.conf.d/99mmdebstrap etc/dpkg/dpkg.cfg.d/99mmdebstrap \
  etc/passwd- etc/group- etc/shadow- etc/gshadow- etc/subuid- etc/subgid- etc/.pwd.lock \
  etc/ssh/ssh_host_* var/lib/dbus/machine-id var/lib/dpkg/*-old var/lib/systemd/random-seed \
  root/.bash_history root/.wget-hsts etc/machine-id etc/resolv.conf etc/hostname etc/hosts
touch etc/machine-id etc/resolv.conf
echo localhost >etc/hostname
printf '127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n' >etc/hosts
"""
_PACKAGES: Final = {
    "default": _BASE,
    "debian-dev": f"{_BASE} {_DEVELOPMENT}",
    "inspect": f"{_BASE} {_DEVELOPMENT} {_INSPECT}",
}
# The smallest of them takes this while it is built.
_MIN_FREE_BYTES: Final = 1 << 30


def build_image(home: Path, name: str, report: Report = lambda _line: None) -> Image:
    """`report` is called from any thread."""
    env = {"PATH": SYSTEM_PATH, "LANG": "C.UTF-8"}
    config = ImageConfig(env=env, user=USER, workdir=f"/home/{USER}", cmd=("/bin/bash",))
    if name == "inspect":  # as Docker's: root in `/`, whose pip installs into the system
        env |= {"PIP_BREAK_SYSTEM_PACKAGES": "1"}
        config = ImageConfig(env=env, cmd=("tail", "-f", "/dev/null"))
    source = f"mmdebstrap {_CODENAME}"
    sources = debian_sources(host_sources(), _CODENAME)
    mode = "root" if os.geteuid() == 0 else "unshare"
    if mode == "unshare" and first_subordinate_id(Path("/etc/subuid")) is None:
        what = "an ordinary user can't build an image here: no subordinate user ids"
        raise HostError(what, where="/etc/subuid", hint=grant_hint(user_name()))
    need_space(home, _MIN_FREE_BYTES, f"building the image {name}")
    with scratch_dir(home) as scratch:
        report("reading the package lists")
        apt = PrivateApt(scratch / "apt", sources)
        apt.update()
        # No file of a package is newer than the archive: all that is made here gets its time.
        made_s = apt.newest_release_s()
        layer, rootfs, listed = (scratch / name for name in ("layer", "rootfs", "mirror.sources"))
        listed.write_text("\n".join(source.deb822() for source in sources))
        # Another user's ids can't enter the scratch directory: they use the system's own.
        own = {"TMPDIR": str(scratch)} if mode == "root" else {}
        argv = [
            *(tool("mmdebstrap"), f"--mode={mode}", "--variant=minbase", "--format=tar"),
            *("--skip=output/dev", "--skip=cleanup/apt"),  # the hook does more
            f"--architectures={debian_arch()}",
            f"--include={_PACKAGES[name].replace(' ', ',')}",
            '--aptopt=Apt::Install-Recommends "false"',
            '--aptopt=Acquire::Languages "none"',
            *(f'--aptopt={name} "{value}"' for name, value in host_acquire_options().items()),
            *([f"--customize-hook={_ADD_USER}"] if config.user == USER else []),
            *(f"--customize-hook={_CLEAN}", _CODENAME, str(layer), str(listed)),
        ]
        _run(argv, plain_env(SOURCE_DATE_EPOCH=str(made_s), **own), report)
        try:
            with layer.open("rb") as file:
                pack_layer(file, config, rootfs, keep_setuid=True)
        except LayerError as error:
            raise error.refusal(source) from error
        created = datetime.fromtimestamp(made_s, UTC).isoformat().replace("+00:00", "Z")
        return Store(home).add(rootfs, config, name=name, source=source, created=created)


def _run(argv: list[str], env: Mapping[str, str], report: Report) -> None:
    def say(line: str) -> None:
        if line.startswith("I: "):
            report(line[3:])

    with started(argv, env=env) as process, drained(process, on_line=say) as complaint:
        try:
            status = polled(process.wait, argv, _TIMEOUT_S)
        finally:
            kill_group(process, grace_s=_GRACE_S)
    if status != 0:
        raise failed(argv, status, bytes(complaint))


_PIP_OPTIONS: Final = frozenset(
    ("index-url", "extra-index-url", "find-links", "trusted-host", "proxy", "timeout", "cert")
)
_SHOWN: Final = "/run/belljar"  # the context, in its steps


def build_packages(
    home: Path,
    name: str,
    *,
    base: str,
    apt: Sequence[str],
    pip: Sequence[str],
    report: Report = lambda _line: None,
) -> Image:
    if options := [word for word in (*apt, *pip) if word.startswith("-")]:
        hint = "write NAME or NAME==VERSION (apt: NAME=VERSION)"
        raise PolicyError(f"{printable(options[0])!r} is no package", hint=hint)
    user = Store(home).find(base).user
    with scratch_dir(home) as context:
        sources = debian_sources(host_sources(), _CODENAME)
        # Without the paths of this host's keyrings: the base has Debian's own.
        unsigned = "\n".join(source.deb822(has_keyring=False) for source in sources)
        (context / "belljar.sources").write_text(unsigned)
        acquire = (f'{key} "{value}";\n' for key, value in host_acquire_options().items())
        (context / "belljar.conf").write_text("".join(acquire))
        get = [
            *("env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-q", "-y"),
            *("-c", f"{_SHOWN}/belljar.conf", "-o", f"Dir::Etc::sourceparts={_SHOWN}"),
            *("-o", "Dir::Etc::sourcelist=/dev/null", "-o", "APT::Sandbox::User=root"),
            *("-o", "APT::Install-Recommends=false"),
        ]
        commands = [[*get, "update"], [*get, "install", *apt], [*get, "clean"]] if apt else []
        if pip:
            env = ("env", "PIP_BREAK_SYSTEM_PACKAGES=1", "PIP_ROOT_USER_ACTION=ignore")
            install = ("python3", "-m", "pip", "install", "--no-cache-dir")
            commands.append([*env, *install, *_pip_options(context, report), *pip])
        # As JSON, no word reaches a shell.
        mount = f"--mount=type=bind,source=.,target={_SHOWN}"
        steps = [f"RUN {mount} {json.dumps(command)}" for command in commands]
        lines = [f"FROM {base}", "USER root", *steps, f"USER {user}", ""]
        (context / "Dockerfile").write_text("\n".join(lines))
        request = BuildRequest(context=context, name=name, has_network=True)
        return build_dockerfile(home, request, report=report)[0]


def _pip_options(context: Path, report: Report) -> list[str]:
    """A build sees no directory of this host."""
    found = list[str]()
    listed = b""
    with suppress(HostError):
        listed = run_tool([sys.executable, "-m", "pip", "config", "list"], timeout_s=60)
    for line in listed.decode("utf-8", "replace").splitlines():
        key, _, value = line.partition("=")
        if (option := key.rpartition(".")[2]) not in _PIP_OPTIONS:
            continue
        for word in str(literal_eval(value)).split():
            if option == "cert":
                shutil.copyfile(word, context / "cert.pem")
                found.append(f"--cert={_SHOWN}/cert.pem")
            elif word.startswith(("file:", "/")):
                report(f"pip's {option} {word} is left out: a build sees no files of this host")
            else:
                found.append(f"--{option}={word}")
    return found
