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
# The sums say nothing of what they don't name, and apt and pip take what lies there
(cd "$bundle" && find . -type d -o -type f -print -o -printf '%p is no plain file\n') >"$work/found"
sed 's|^\./||' "$work/found" | LC_ALL=C sort >"$work/has"
{
  echo SHA256SUMS
  echo SHA256SUMS.sig
  cut -c67- "$bundle/SHA256SUMS"
} | LC_ALL=C sort | LC_ALL=C comm -13 - "$work/has" >"$work/unnamed"
if [ -s "$work/unnamed" ]; then
  echo "install.sh: the manifest does not name $(head -n 1 "$work/unnamed" | cat -v)" >&2
  exit 4
fi
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
set --
while read -r _ name; do
  case $name in python/*.whl) set -- "$@" "$bundle/$name" ;; esac
done <"$bundle/SHA256SUMS"
"$prefix/bin/python" -m pip --isolated --disable-pip-version-check install --quiet --no-index \
  --no-deps --force-reinstall --root-user-action ignore "$@"
[ -z "$only_packages" ] || exit 0
echo "install.sh: installing the store"
"$prefix/bin/belljar" bundle install --no-packages --key "$(cat "$bundle/key.txt")" "$bundle"
echo "install.sh: done; next: $prefix/bin/belljar doctor"
