#!/usr/bin/env bash
# Makes docs/knee.png, the picture of README.md: the first plot of the demo's report.
#   ./demo.sh && scripts/readme_picture.sh      (needs chromium)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/common.sh
source scripts/common.sh
report=${1:-out/demo/report.html}
[ -f "$report" ] || die "$report is missing; run ./demo.sh first"
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
hide='header,nav,h2,.summary,.problems,.scroll,details,.pair,footer,.pick,figcaption,section:not(#validation),figure~figure{display:none!important}'
sed "0,/<\/style>/s//$hide main{padding:0!important} figure{margin:0!important;border:0!important}<\/style>/" "$report" >"$scratch/page.html"
chromium --headless --no-sandbox --disable-gpu --hide-scrollbars --virtual-time-budget=8000 \
  --window-size=1100,520 --user-data-dir="$scratch/user" --screenshot="$PWD/docs/knee.png" \
  --blink-settings=preferredColorScheme=1 "file://$scratch/page.html" >/dev/null 2>&1 ||
  die "chromium could not take the picture"
echo "docs/knee.png: $(stat -c %s docs/knee.png) bytes"
