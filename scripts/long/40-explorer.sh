#!/usr/bin/env bash
# the explorer over fresh seeds, ten million steps a layer
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
results=$1

# Other seeds every day; the first one is printed, and a failure prints its own.
XSTAGE_EXPLORER_SEED=$(($(date +%s) / 86400 * 1000000))
export XSTAGE_EXPLORER_SEED XSTAGE_EXPLORER_STEPS=10000000
echo "first seed: $XSTAGE_EXPLORER_SEED"
ctest --preset default -R '^Explorer\..*Clean' --output-junit "$results/explorer.xml"
