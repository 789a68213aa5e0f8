#!/bin/sh
# Installs those of the named Debian packages that are missing; where it may not, says what is to be done.
set -eu
dpkg -s "$@" >/dev/null 2>&1 && exit 0
if ! command -v apt-get >/dev/null; then
  echo "missing, and not to be installed without apt-get: what Debian calls $*" >&2
  exit 1
fi
if [ "$(id -u)" != 0 ]; then
  echo "missing; install them as root: apt-get install $*" >&2
  exit 1
fi
apt-get update -qq
DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@"
