"""The identity that a `metadata` stand-in tells: a plausible machine, made of the range's
randomness. Pure but for the randomness it is given.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from belljar.signals.cloud import make_credentials

_REGIONS: Final = {"aws": "eu-west-1", "gcp": "europe-west1", "azure": "westeurope"}
_ROLES: Final = ("app-server", "web-backend", "batch-worker", "ci-runner")


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """One machine and what it may claim to be."""

    cloud: str
    region: str
    account: str
    instance: str
    address: str
    mac: str
    role: str
    uuid: str
    tenant: str
    access_key_id: str
    secret_key: str
    session_token: str
    started_s: int

    @property
    def zone(self) -> str:
        """An availability zone of the region."""
        return f"{self.region}-b" if self.cloud == "gcp" else f"{self.region}a"

    @property
    def host(self) -> str:
        """The machine's name."""
        return (
            f"ip-{self.address.replace('.', '-')}"
            if self.cloud == "aws"
            else f"{self.role}-{self.instance[-4:]}"
        )

    @property
    def key_digest(self) -> str:
        """Which credentials these are, for the record, where no value of theirs stands: the key's
        id, keyed by its secret.
        """
        return hmac.digest(self.secret_key.encode(), self.access_key_id.encode(), "sha256").hex()


def uuid_of(data: bytes) -> str:
    """16 bytes as a version 4 UUID (RFC 9562)."""
    text = data.hex()
    return f"{text[:8]}-{text[8:12]}-4{text[13:16]}-{'89ab'[data[8] % 4]}{text[17:20]}-{text[20:]}"


def make_identity(
    cloud: str,
    region: str,
    random: Callable[[int], bytes],
    clock: Callable[[], float],
    credentials: Mapping[str, str] | None = None,
) -> Identity:
    """A machine of that cloud; `region` "" takes a usual one, `credentials` None makes some."""
    octets, started = random(3), int(clock()) - 3600 - int.from_bytes(random(2))
    return Identity(
        cloud=cloud,
        region=region or _REGIONS[cloud],
        account="".join(str(byte % 10) for byte in b"\1" + random(11)),
        instance=f"i-0{random(8).hex()}"
        if cloud == "aws"
        else str(10**18 + int.from_bytes(random(7)) * 9),
        address=f"172.31.{octets[0]}.{1 + octets[1] % 254}",
        mac="02:" + random(5).hex(":"),
        role=_ROLES[octets[2] % len(_ROLES)],
        uuid=uuid_of(random(16)),
        tenant=uuid_of(random(16)),
        started_s=started,
        **(credentials or make_credentials(random)),
    )
