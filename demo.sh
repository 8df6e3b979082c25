#!/usr/bin/env bash
# Installs what is missing, builds, and runs the main job on the measured H200 samples that ship
# with the project. Ends by naming the report. Results: out/demo/.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
[ $# -eq 0 ] || {
  echo "demo.sh: takes no options; allowed: none" >&2
  exit 2
}

steps_total=3
# shellcheck source=scripts/common.sh
source scripts/common.sh

step "Packages"
install_build_packages

step "Build"
build default xstage

step "Version"
build/xstage --version
