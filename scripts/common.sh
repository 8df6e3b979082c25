# What demo.sh and check.sh share: packages, build, progress. Sourced, not run.
# shellcheck shell=bash

set -euo pipefail
export LC_ALL=C.UTF-8

started_at=$SECONDS
step_now=0
steps_total=${steps_total:-0}

# One heading a step, with the time since the start.
step() {
  step_now=$((step_now + 1))
  printf '\n[%d/%d] %s (%d s)\n' "$step_now" "$steps_total" "$*" $((SECONDS - started_at))
}

# The one line that says what is wrong, last on stderr.
die() {
  printf '%s: %s\n' "$(basename "$0")" "$*" >&2
  exit 1
}

as_root() {
  if [ "$(id -u)" -eq 0 ]; then "$@"; else sudo "$@"; fi
}

has_package() {
  [ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null)" = installed ]
}

# install_missing ENTRY...: an entry is PACKAGE, or COMMAND=PACKAGE where any provider of the
# command will do. Asks apt only for what is missing, so a second run needs no network.
install_missing() {
  missing=()
  local entry
  for entry in "$@"; do
    if [[ $entry == *=* ]]; then
      command -v "${entry%%=*}" >/dev/null || missing+=("${entry#*=}")
    elif command -v dpkg-query >/dev/null; then
      has_package "$entry" || missing+=("$entry")
    fi
  done
  [ ${#missing[@]} -eq 0 ] && return 0
  command -v apt-get >/dev/null ||
    die "this machine has no apt; install the equivalents of: ${missing[*]}"
  # Said here and not by as_root, whose words go to the log.
  [ "$(id -u)" -eq 0 ] || command -v sudo >/dev/null ||
    die "these packages are missing and neither root nor sudo is at hand: ${missing[*]}"
  echo "installing: ${missing[*]}"
  local log
  log=$(mktemp)
  local apt=(env DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=300)
  # A fresh machine has no package lists; an old one may have stale ones. Update, then install.
  if ! { as_root "${apt[@]}" update &&
    as_root "${apt[@]}" install -y --no-install-recommends "${missing[@]}"; } >"$log" 2>&1; then
    tail -n 20 "$log" >&2
    local reason
    reason=$(grep -m1 '^E:' "$log" || tail -n 1 "$log")
    rm -f "$log"
    die "apt could not install ${missing[*]}: $reason"
  fi
  rm -f "$log"
}

# Packages without which nothing builds. Versions are those of the distribution's release; what
# comes from PyPI is pinned with hashes in scripts/requirements-*.txt.
build_packages=(
  'c++=g++' 'cmake=cmake' 'ninja=ninja-build' 'python3=python3' 'git=git'
  ca-certificates python3-pip
  libcli11-dev libeigen3-dev libfmt-dev libxxhash-dev nlohmann-json3-dev
  libgtest-dev librapidcheck-dev
)

install_build_packages() {
  install_missing "${build_packages[@]}"
  local have want=3.25
  have=$(cmake --version | sed -n '1s/[^0-9]*\([0-9.]*\).*/\1/p')
  [ "$(printf '%s\n%s\n' "$want" "$have" | sort -V | head -n 1)" = "$want" ] ||
    die "cmake $have is too old; allowed: $want or newer (Debian 12, Ubuntu 24.04 have it)"
}

# One job a core, fewer where memory is short: the largest file takes about 1.5 GB to compile.
build_jobs() {
  local cores memory
  cores=$(nproc)
  memory=$(awk '/^MemAvailable/ {print int($2 / 1500000)}' /proc/meminfo 2>/dev/null || echo "$cores")
  local jobs=$((memory < cores ? memory : cores))
  echo $((jobs < 1 ? 1 : jobs))
}

# build PRESET [TARGET...]
build() {
  local preset=$1
  shift
  cmake --preset "$preset" || die "configuring the preset '$preset' failed; the reason is above"
  local targets=()
  [ $# -gt 0 ] && targets=(--target "$@")
  cmake --build --preset "$preset" --parallel "$(build_jobs)" "${targets[@]}" ||
    die "building the preset '$preset' failed; the first error is above"
}
