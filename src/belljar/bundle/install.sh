#!/bin/sh
# Installs a bundle on Debian without a network. Check the bundle first, in its directory:
#     echo "DIGEST  SHA256SUMS" | sha256sum -c && sha256sum -c --quiet SHA256SUMS
# DIGEST is what `belljar bundle create` printed: bring it here by another way than the bundle.
#
#   sh install.sh [PREFIX]             Debian's packages, a virtual environment, the store;
#                                      over an installation, as `belljar bundle install`
#   sh install.sh --packages PREFIX    only the packages, into the environment that is there
set -eu
only_packages=
if [ "${1:-}" = --packages ]; then
  only_packages=yes
  shift
fi
prefix=${1:-/opt/belljar}
bundle=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd -P)
if [ "$(id -u)" != 0 ]; then
  echo 'install.sh: run it as root' >&2
  exit 3
fi
known=${BELLJAR_HOME:-/var/lib/belljar}/bundle.json
if [ -z "$only_packages" ] && [ -e "$known" ]; then
  # It knows whose bundles it takes, and how old one may be.
  echo "install.sh: $prefix/bin/belljar installs this bundle over the one that is installed"
  exec "$prefix/bin/belljar" bundle install "$bundle"
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
ln -s "$bundle/debian" "$work/debian"
mkdir -p "$work/lists/partial" "$work/archives/partial"
echo "deb [trusted=yes] file:$work/debian ./" >"$work/sources.list"
# Only the bundle's packages; apt checks each against the list, which is part of the bundle.
apt() {
  DEBIAN_FRONTEND=noninteractive apt-get -q -y -o Dir::Etc::sourcelist="$work/sources.list" \
    -o Dir::Etc::sourceparts=/dev/null -o Dir::State::lists="$work/lists" \
    -o Dir::Cache::archives="$work/archives" -o Dir::Cache::pkgcache= \
    -o Dir::Cache::srcpkgcache= -o APT::Sandbox::User=root -o Acquire::Languages=none \
    -o Acquire::http::Proxy=false -o Acquire::https::Proxy=false "$@"
}
echo 'install.sh: installing the Debian packages'
apt update >/dev/null
# shellcheck disable=SC2046 # one package a line
apt install --no-install-recommends $(cat "$bundle/debian/install.txt")
[ -x "$prefix/bin/python" ] || python3 -m venv "$prefix"
echo "install.sh: installing the Python packages into $prefix"
"$prefix/bin/python" -m pip --isolated --disable-pip-version-check install --quiet --no-index \
  --no-deps --force-reinstall --root-user-action ignore "$bundle"/python/*.whl
[ -z "$only_packages" ] || exit 0
echo "install.sh: installing the store"
"$prefix/bin/belljar" bundle install --no-packages --key "$(cat "$bundle/key.txt")" "$bundle"
echo "install.sh: done; next: $prefix/bin/belljar doctor"
