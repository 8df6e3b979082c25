#!/usr/bin/env bash
# Everything that is predicted for four and eight ranks, and its page, made anew. Needs no GPU; 75 s on two quiet cores.
# usage: scripts/eight_ranks.sh [XSTAGE]
# After new kernel times (data/h200x2/moe_kernel.json) or new results/ulysses/*.json: build, run this, commit what changed.
# From a committed tree, so that the files name a commit that is there.
set -euo pipefail
xstage=$(realpath "${1:-build/xstage}")
cd "$(dirname "${BASH_SOURCE[0]}")/.."

"$xstage" bench ulysses --fit results/ulysses/paper.json --fit results/ulysses/models.json \
  --fit results/ulysses/torch.json --out data/h200x2/ulysses_fused.json.new >/dev/null
# Only where the fit itself changed: what it is made of stands in it with a date.
if python3 - <<'PY'
import json, sys
old, new = (json.load(open("data/h200x2/ulysses_fused.json" + end))["fit"] for end in ("", ".new"))
sys.exit(0 if old == new else 1)
PY
then
  rm data/h200x2/ulysses_fused.json.new
else
  mv data/h200x2/ulysses_fused.json.new data/h200x2/ulysses_fused.json
  echo "data/h200x2/ulysses_fused.json changed: commit it, build, and run this again" >&2
  exit 1
fi

for ranks in 8 4; do
  "$xstage" bench moe --table ep8 --ranks $ranks --predict \
    --out results/moe_ep${ranks}_predicted.json >/dev/null
  "$xstage" bench ulysses --table paper --ranks $ranks --predict \
    --out results/ulysses/p${ranks}_predicted.json >/dev/null
done
python3 bench/ulysses_tables.py
python3 bench/eight_ranks_tables.py
grep -h '"git_commit"' results/moe_ep?_predicted.json results/ulysses/p?_predicted.json | sort | uniq -c
