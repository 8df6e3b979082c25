#!/usr/bin/env bash
# the explorer over fresh seeds, ten million steps a layer
# limit: 900 s
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
results=$1

# Other seeds every day; the first one is printed, and a failure prints its own.
day=$(($(date +%s) / 86400))
XSTAGE_EXPLORER_SEED=$((day * 1000000))
export XSTAGE_EXPLORER_SEED XSTAGE_EXPLORER_STEPS=${XSTAGE_EXPLORER_STEPS:-10000000}
echo "first seed: $XSTAGE_EXPLORER_SEED, steps: $XSTAGE_EXPLORER_STEPS a layer"
# The longest tests are these two, so each has a core.
ctest --preset default -R '^Explorer\..*Clean' --parallel 2 --timeout 800 --verbose \
  --output-junit "$results/explorer.xml"
