#!/usr/bin/env bash
# What scripts/common.sh says where packages are missing and cannot be had.
# usage: common_test.sh SOURCE_DIR
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

# A machine of these commands alone. apt-get is there, so that it is not what is missing.
machine() {
  rm -rf "${folder:?}/bin"
  mkdir "$folder/bin"
  for tool in bash env mktemp tail grep rm basename cat; do ln -s "$(command -v $tool)" "$folder/bin/"; done
  printf '#!/bin/sh\necho %s\n' "$1" >"$folder/bin/id"
  printf '#!/bin/sh\necho "E: no such package"; exit 100\n' >"$folder/bin/apt-get"
  chmod +x "$folder/bin/id" "$folder/bin/apt-get"
}

# says WORDS: installing a package that nobody has ends with an error in these words, last.
says() {
  local code=0
  env -i PATH="$folder/bin" "$folder/bin/bash" -c 'source "$0"; install_missing no-such-command=no-such-package' \
    "$common" >"$folder/out" 2>&1 || code=$?
  [ $code -eq 1 ] && tail -n 1 "$folder/out" | grep -q -- "$1" && return
  echo "ended with $code and not with '$1':" >&2
  cat "$folder/out" >&2
  exit 1
}

common=$1/scripts/common.sh
machine 1000
says 'neither root nor sudo is at hand: no-such-package'
machine 0
says 'apt could not install no-such-package: E: no such package'
rm "$folder/bin/apt-get"
says 'this machine has no apt; install the equivalents of: no-such-package'
