"""The range's certificate in a cell's trust stores: decided here, carried out by one command in the
cell before anything else runs there.

A stand-in's TLS is answered with a certificate of the range's own authority, whose key never leaves
the gateway. That authority is trusted in the range's cells, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from belljar.cell.cell import Cell
from belljar.errors import CellError
from belljar.units import printable

_ANCHORS: Final = (
    "/usr/local/share/ca-certificates",  # Debian, Alpine: survives update-ca-certificates
    "/etc/pki/ca-trust/source/anchors",  # Red Hat: survives update-ca-trust
    "/etc/ca-certificates/trust-source/anchors",  # Arch
    "/etc/pki/trust/anchors",  # SUSE
)
_BUNDLES: Final = (
    "/etc/ssl/certs/ca-certificates.crt",  # Debian, Alpine, Arch
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",  # Red Hat
    "/etc/ssl/ca-bundle.pem",  # SUSE
    "/etc/ssl/cert.pem",  # Alpine's OpenSSL, and others'
)
_JAVA_STORES: Final = (
    # Debian, to which those of each Java are links: a keytool takes seconds, so one is changed once
    "/etc/ssl/certs/java/cacerts",
    "/usr/lib/jvm/*/lib/security/cacerts",
    "/opt/java/*/lib/security/cacerts",
)
_HASHED: Final = "/etc/ssl/certs"
"""Where OpenSSL looks by a name's hash: Debian's Python reads no bundle unless it is told to."""
BUNDLE: Final = "/etc/ssl/certs/ca-certificates.crt"
"""Where every cell of a range has all authorities together, whatever its image had."""
_NAME: Final = "local-root.crt"
_TIMEOUT_S: Final = 60.0
ENVIRONMENT: Final[Mapping[str, str]] = dict.fromkeys(
    (
        *(
            "SSL_CERT_FILE",
            "CURL_CA_BUNDLE",
            "REQUESTS_CA_BUNDLE",
            "PIP_CERT",
            "NODE_EXTRA_CA_CERTS",
            "GIT_SSL_CAINFO",
        ),
        *("AWS_CA_BUNDLE", "npm_config_cafile", "CARGO_HTTP_CAINFO"),
    ),
    BUNDLE,
)
"""For programs that bring authorities of their own: Python's certifi, Node, pip, git's and curl's
static builds.
"""


def trust_script() -> str:
    """A shell's script that reads the certificate from standard input and puts it wherever the
    image looks. What an image lacks is skipped.

    A store of Java's that can't be changed is no end of a cell that may never run Java: it is told
    on standard error, which is on record like any command's.
    """
    anchors, bundles, stores = (" ".join(paths) for paths in (_ANCHORS, _BUNDLES, _JAVA_STORES))
    return f"""set -e
pem=$(cat)
for d in {anchors}; do if [ -d "$d" ]; then printf '%s\\n' "$pem" > "$d/{_NAME}"; fi; done
for b in {bundles}; do if [ -f "$b" ]; then printf '\\n%s\\n' "$pem" >> "$b"; fi; done
if ! [ -f {BUNDLE} ]; then
  mkdir -p {BUNDLE.rpartition("/")[0]}
  for b in {bundles}; do if [ -f "$b" ]; then cat "$b" > {BUNDLE}; break; fi; done
  if ! [ -f {BUNDLE} ]; then printf '%s\\n' "$pem" > {BUNDLE}; fi
fi
if command -v openssl > /dev/null && [ -d {_HASHED} ]; then
  h=$(printf '%s\n' "$pem" | openssl x509 -noout -subject_hash) &&
    printf '%s\n' "$pem" > "{_HASHED}/$h.0"
fi
if command -v keytool > /dev/null; then
  for j in {stores}; do
    if [ -f "$j" ]; then readlink -f "$j"; fi
  done | sort -u | while read -r j; do
    said=$(printf '%s\\n' "$pem" | keytool -importcert -noprompt -alias local-root \\
        -keystore "$j" -storepass changeit 2>&1) ||
      printf 'programs that use %s will not trust the local root: %s\\n' "$j" "$said" >&2
  done
fi
"""


async def trust(cell: Cell, certificate_pem: bytes) -> None:
    """Have the cell trust the authority.

    Raises `CellError` when its image can't be told (it has no shell, or its files can't be
    written).
    """
    output = await cell.exec(
        ["/bin/sh", "-c", trust_script()],
        input=certificate_pem,
        user="0:0",
        cwd="/",
        timeout_s=_TIMEOUT_S,
    )
    if output.returncode != 0:
        why = output.why_not_started or output.stderr.decode("utf-8", "replace")
        raise CellError(
            f"the range's certificate could not be put into the cell's trust stores: "
            f"{printable(why, max_chars=300)}",
            where=f"cell {cell.id}",
            hint="use an image with /bin/sh, or stand-ins without TLS",
        )
