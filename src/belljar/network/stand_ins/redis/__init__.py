"""A decoy Redis: a read-only replica that holds what was made for its range."""

from __future__ import annotations

import hmac
from collections.abc import Callable, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any, Final, TypeAlias

from belljar.dataclass import dataclass, field, replace
from belljar.network.gateway.context import StandInContext, StreamApp
from belljar.network.stand_ins.conversation import Presented, Step, stream_app
from belljar.network.stand_ins.redis.wire import Error, Reader, Reply, Status, number, render

VERSION: Final = "7.0.15"
DATABASES: Final = 16
MAX_PATTERN_BYTES: Final = 256
MAX_GLOBS: Final = 16  # Wildcard patterns of one `CONFIG GET`; further ones match nothing
_WILDCARDS: Final = frozenset(b"*?[")
_OK: Final = Status(b"OK")
_WRONG_TYPE: Final = Error(b"WRONGTYPE Operation against a key holding the wrong kind of value")
_WRONG_PASSWORD: Final = Error(b"WRONGPASS invalid username-password pair or user is disabled.")
_SYNTAX: Final = Error(b"ERR syntax error")
_NOT_A_NUMBER: Final = Error(b"ERR value is not an integer or out of range")
_CONFIG: Final[Mapping[bytes, bytes]] = {
    b"appendonly": b"no",
    b"databases": b"%d" % DATABASES,
    b"dir": b"/var/lib/redis",
    b"dbfilename": b"dump.rdb",
    b"maxmemory": b"268435456",
    b"maxmemory-policy": b"noeviction",
    b"protected-mode": b"yes",
    b"replica-read-only": b"yes",
    b"save": b"3600 1 300 100 60 10000",
    b"timeout": b"0",
}
_WRITES: Final = frozenset(
    b"append copy decr decrby del expire expireat flushall flushdb getdel getset hdel hincrby "
    b"hmset hset hsetnx incr incrby lpop lpush lset ltrim mset move persist pexpire psetex rename "
    b"restore rpop rpush sadd set setex setnx setrange spop srem unlink xadd zadd zincrby "
    b"zrem".split()
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Keyspace:
    """Database 0, as all connections see it; others are empty."""

    password: bytes = field(repr=False)
    strings: Mapping[bytes, bytes] = field(repr=False)
    hashes: Mapping[bytes, Mapping[bytes, bytes]] = field(repr=False)
    port: int
    run_id: str
    started_s: float
    clock: Callable[[], float]

    @property
    def keys(self) -> tuple[bytes, ...]:
        """In a fixed order."""
        return (*self.strings, *self.hashes)


class RedisSession:
    """One connection."""

    greeting = b""

    def __init__(self, space: Keyspace) -> None:
        self._space = self._selected = space
        self._reader = Reader()
        self._version = 2
        self._name, self._user = b"", ""
        self._presented: Presented | None = None
        self._words = b""

    @property
    def rest(self) -> bytes:
        """Bytes of an incomplete command."""
        return self._reader.rest

    def feed(self, data: bytes) -> Iterator[Step]:
        """The steps that these bytes complete."""
        for command in self._reader.feed(data):
            if command.problem:
                yield Step("", command.raw, render(Error(command.problem)), close=True)
                return
            name, words = command.words[0].lower(), command.words[1:]
            self._presented, self._words = None, b" ".join(words)
            reply, shown = self._answer(name, words), name.decode("utf-8", "replace")
            rendered, ends = render(reply, self._version), name == b"quit"
            yield Step(shown, command.raw, rendered, self._presented, close=ends)

    def _answer(self, name: bytes, words: tuple[bytes, ...]) -> Reply:
        known = _COMMANDS.get(name)
        if known is None and name not in _WRITES:
            shown = b"".join(b"'%s' " % word[:128] for word in words[:20])[:128]
            what = b"ERR unknown command '%s', with args beginning with: %s"
            return Error(what % (name[:128], shown))
        method, low, high = known or (lambda _, _words: _READ_ONLY, 0, len(words))
        if not low <= len(words) <= high:
            return Error(b"ERR wrong number of arguments for '%s' command" % name)
        if not self._user and name not in _FREE:
            return Error(b"NOAUTH Authentication required.")
        return method(self, words)

    # ---- connections

    def _enter(self, user: bytes, password: bytes) -> bool:
        ok = hmac.compare_digest(password, self._space.password) and user == b"default"
        shown = user.decode("utf-8", "replace")
        self._presented = Presented(user=shown, credential=self._words, ok=ok, mechanism="auth")
        if ok:
            self._user = shown
            self._reader.is_anonymous = False
        return ok

    def _auth(self, words: tuple[bytes, ...]) -> Reply:
        user, password = words if len(words) == 2 else (b"default", words[0])
        return _OK if self._enter(user, password) else _WRONG_PASSWORD

    def _hello(self, words: tuple[bytes, ...]) -> Reply:
        version = number(words[0]) if words else self._version
        if version is None:
            return Error(b"ERR Protocol version is not an integer or out of range")
        if version not in (2, 3):
            return Error(b"NOPROTO unsupported protocol version")
        rest = list(words[1:])
        while rest:
            option = rest.pop(0).lower()
            if option == b"auth" and len(rest) >= 2 and self._presented is None:
                if not self._enter(rest.pop(0), rest.pop(0)):
                    return _WRONG_PASSWORD
            elif option == b"setname" and rest:
                self._name = rest.pop(0)
            else:
                return Error(b"ERR Syntax error in HELLO option '%s'" % option[:64])
        if not self._user:
            return Error(
                b"NOAUTH HELLO must be called with the client already authenticated, otherwise "
                b"the HELLO <proto> AUTH <user> <pass> option can be used to authenticate the "
                b"client and select the RESP protocol version at the same time"
            )
        self._version = version
        about: dict[bytes, Reply] = {b"server": b"redis", b"version": VERSION.encode()}
        about |= {b"proto": version, b"id": 7, b"mode": b"standalone", b"role": b"replica"}
        return about | {b"modules": ()}

    def _select(self, words: tuple[bytes, ...]) -> Reply:
        index = number(words[0])
        if index is None:
            return _NOT_A_NUMBER
        if not 0 <= index < DATABASES:
            return Error(b"ERR DB index is out of range")
        self._selected = self._space if index == 0 else replace(self._space, strings={}, hashes={})
        return _OK

    def _client(self, words: tuple[bytes, ...]) -> Reply:
        verb = words[0].lower()
        if verb == b"setname" and len(words) == 2:
            self._name = words[1]
            return _OK
        if verb == b"getname" and len(words) == 1:
            return self._name or None
        if verb == b"id" and len(words) == 1:
            return 7
        what = b"ERR unknown subcommand or wrong number of arguments for '%s'. Try CLIENT HELP."
        return Error(what % words[0][:128])

    def _config(self, words: tuple[bytes, ...]) -> Reply:
        if words[0].lower() == b"get" and len(words) > 1:
            own = {b"port": b"%d" % self._space.port, b"requirepass": self._space.password}
            patterns = dict.fromkeys(pattern.lower() for pattern in words[1:])
            globs = [each for each in patterns if _WILDCARDS.intersection(each)][:MAX_GLOBS]
            return {
                name: value
                for name, value in {**_CONFIG, **own}.items()
                if name in patterns or any(_matches(name, glob) for glob in globs)
            }
        if words[0].lower() == b"set" and len(words) > 2:
            why = b"(possibly related to argument '%s') - can't set protected config"
            return Error(b"ERR CONFIG SET failed " + why % words[1][:64])
        return Error(b"ERR unknown subcommand '%s'. Try CONFIG HELP." % words[0][:128])

    def _info(self, words: tuple[bytes, ...]) -> Reply:
        space, wanted = self._space, {word.lower() for word in words}
        uptime_s = max(0, int(space.clock() - space.started_s))
        sections: dict[str, dict[str, str | int]] = {
            "Server": {
                "redis_version": VERSION,
                "redis_mode": "standalone",
                "os": "Linux 6.1.0-18-amd64 x86_64",
                "arch_bits": 64,
                "process_id": 612,
                "run_id": space.run_id,
                "tcp_port": space.port,
                "uptime_in_seconds": uptime_s,
                "uptime_in_days": uptime_s // 86_400,
                "executable": "/usr/bin/redis-server",
                "config_file": "/etc/redis/redis.conf",
            },
            "Clients": {"connected_clients": 3, "maxclients": 10_000, "blocked_clients": 0},
            "Memory": {
                "used_memory": 1_412_608,
                "used_memory_human": "1.35M",
                "maxmemory_policy": "noeviction",
            },
            "Replication": {
                "role": "slave",
                "master_link_status": "up",
                "slave_read_only": 1,
                "connected_slaves": 0,
            },
            "Keyspace": {"db0": f"keys={len(space.keys)},expires=0,avg_ttl=0"},
        }
        is_all = not wanted or wanted & {b"all", b"default", b"everything"}
        texts = [
            f"# {name}\r\n" + "".join(f"{field}:{value}\r\n" for field, value in fields.items())
            for name, fields in sections.items()
            if is_all or name.lower().encode() in wanted
        ]
        return "\r\n".join(texts).encode()

    # ---- keys

    def _scan(self, words: tuple[bytes, ...]) -> Reply:
        cursor, options = number(words[0]), words[1:]
        if cursor is None or cursor < 0:
            return Error(b"ERR invalid cursor")
        if len(options) % 2:
            return _SYNTAX
        pattern, kind, count = b"*", b"", 10
        for name, value in zip(options[::2], options[1::2], strict=True):
            match name.lower():
                case b"match":
                    pattern = value
                case b"type":
                    kind = value.lower()
                case b"count":
                    count = number(value) or 0
                    if count < 1:
                        return _NOT_A_NUMBER if number(value) is None else _SYNTAX
                case _:
                    return _SYNTAX
        keys, end = self._selected.keys, cursor + count
        found = [key for key in keys[cursor:end] if kind in (b"", self._kind(key))]
        found = [key for key in found if _matches(key, pattern)]
        return [b"%d" % (end if end < len(keys) else 0), found]

    def _kind(self, key: bytes) -> bytes:
        if key in self._selected.strings:
            return b"string"
        return b"hash" if key in self._selected.hashes else b"none"

    def _of_string(self, key: bytes, read: Callable[[bytes | None], Reply]) -> Reply:
        held = self._selected
        return _WRONG_TYPE if key in held.hashes else read(held.strings.get(key))

    def _of_hash(self, key: bytes, read: Callable[[Mapping[bytes, bytes]], Reply]) -> Reply:
        held = self._selected
        return _WRONG_TYPE if key in held.strings else read(held.hashes.get(key, {}))


_MANY: Final = 1 << 10
_FREE: Final = frozenset({b"auth", b"hello", b"quit"})  # Allowed before a login
Method: TypeAlias = Callable[[RedisSession, tuple[bytes, ...]], Reply]
_READ_ONLY: Final = Error(b"READONLY You can't write against a read only replica.")
_COMMANDS: Final[Mapping[bytes, tuple[Method, int, int]]] = {
    b"auth": (RedisSession._auth, 1, 2),
    b"hello": (RedisSession._hello, 0, _MANY),
    b"quit": (lambda _, _words: _OK, 0, _MANY),
    b"ping": (lambda _, words: words[0] if words else Status(b"PONG"), 0, 1),
    b"echo": (lambda _, words: words[0], 1, 1),
    b"select": (RedisSession._select, 1, 1),
    b"client": (RedisSession._client, 1, _MANY),
    b"command": (lambda _, words: {} if b"docs" in map(bytes.lower, words[:1]) else (), 0, _MANY),
    b"config": (RedisSession._config, 1, _MANY),
    b"info": (RedisSession._info, 0, _MANY),
    b"keys": (lambda it, words: [k for k in it._selected.keys if _matches(k, words[0])], 1, 1),
    b"scan": (RedisSession._scan, 1, _MANY),
    b"type": (lambda it, words: Status(it._kind(words[0])), 1, 1),
    b"ttl": (lambda it, words: -2 if it._kind(words[0]) == b"none" else -1, 1, 1),
    b"pttl": (lambda it, words: -2 if it._kind(words[0]) == b"none" else -1, 1, 1),
    b"exists": (lambda it, words: sum(it._kind(key) != b"none" for key in words), 1, _MANY),
    b"dbsize": (lambda it, _words: len(it._selected.keys), 0, 0),
    b"get": (lambda it, words: it._of_string(words[0], lambda text: text), 1, 1),
    b"mget": (lambda it, words: [it._selected.strings.get(key) for key in words], 1, _MANY),
    b"strlen": (lambda it, words: it._of_string(words[0], lambda text: len(text or b"")), 1, 1),
    b"hgetall": (lambda it, words: it._of_hash(words[0], dict), 1, 1),
    b"hget": (lambda it, words: it._of_hash(words[0], lambda hash_: hash_.get(words[1])), 2, 2),
    b"hkeys": (lambda it, words: it._of_hash(words[0], list), 1, 1),
    b"hvals": (lambda it, words: it._of_hash(words[0], lambda hash_: [*hash_.values()]), 1, 1),
    b"hlen": (lambda it, words: it._of_hash(words[0], len), 1, 1),
}


def _matches(key: bytes, pattern: bytes) -> bool:
    return len(pattern) <= MAX_PATTERN_BYTES and fnmatchcase(key, pattern)


def make(context: StandInContext) -> StreamApp:
    """A stream stand-in. A connection holds one command of at most 128 KiB."""
    settings: Mapping[str, Any] = context.settings
    space = Keyspace(
        password=str(settings["password"]).encode(),
        strings={name.encode(): text.encode() for name, text in settings["strings"].items()},
        hashes={
            name.encode(): {field.encode(): text.encode() for field, text in fields.items()}
            for name, fields in settings["hashes"].items()
        },
        port=int(settings["port"]),
        run_id=context.random(20).hex(),
        started_s=context.clock() - 86_400 * (20 + context.random(1)[0] % 60),
        clock=context.clock,
    )
    return stream_app(context, "redis", lambda: RedisSession(space))
