#!/usr/bin/env bash
# the explorer beyond the seeds of its test, ten million steps a layer
# limit: 900 s
# XSTAGE_EXPLORER_SEED: other seeds; by default a change meets those that the one before it met, and
# so is judged by what it changes. A failure prints its own seed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
results=$1

export XSTAGE_EXPLORER_SEED=${XSTAGE_EXPLORER_SEED:-20260725}
export XSTAGE_EXPLORER_STEPS=${XSTAGE_EXPLORER_STEPS:-10000000}
echo "first seed: $XSTAGE_EXPLORER_SEED, steps: $XSTAGE_EXPLORER_STEPS a layer"
# The longest tests are these two, so each has a core.
ctest --preset default -R '^Explorer\..*Clean' --parallel 2 --timeout 800 --verbose \
  --output-junit "$results/explorer.xml"
