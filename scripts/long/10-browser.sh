#!/usr/bin/env bash
# the report in a real browser
# limit: 600 s
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
results=$1
# shellcheck source=scripts/common.sh
source scripts/common.sh
install_missing chromium
ctest --preset default -R '^Browser\.' --output-junit "$results/browser.xml"
