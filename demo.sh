#!/usr/bin/env bash
# Installs what is missing, builds, and runs the main job on the measured H200 samples that ship
# with the project. Ends by naming the report. Results: out/demo/.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
[ $# -eq 0 ] || {
  echo "demo.sh: takes no options; allowed: none" >&2
  exit 2
}

steps_total=8
# shellcheck source=scripts/common.sh
source scripts/common.sh

step "Packages"
install_build_packages

step "Build"
build default xstage
xstage=build/xstage

out=out/demo
mkdir -p "$out"
rm -f "$out"/*.json "$out"/report.html
samples=()
for file in window_samples.csv remote_store_samples.csv per_sm_bursts.csv sm_groups.json; do
  samples+=(--samples "data/h200x2/$file")
done

# job OUTPUT VERB OPTION...: runs a verb whose text is for the reader and whose document is kept.
job() {
  local file=$1
  shift
  "$xstage" "$@" --out "$out/$file" || die "'xstage $*' ended with exit code $?"
}

# on_gpus OUTPUT VERB OPTION...: the same on this node's GPUs, which the kernels may not be built for.
on_gpus() {
  local file=$1 code=0
  shift
  "$xstage" "$@" --out "$out/$file" || code=$?
  case $code in
    0) ;;
    3 | 4) echo "These GPUs cannot run it (exit code $code); the demo goes on without." ;;
    *) die "'xstage $*' ended with exit code $code" ;;
  esac
}

# On a node with two or more GPUs that reach each other, this node is measured too.
if "$xstage" doctor --json | python3 -c 'import json, sys
sys.exit(0 if json.load(sys.stdin)["usable"]["calibrate_cuda"]["ok"] else 1)'; then
  echo
  echo "This node has GPUs: a quick calibration."
  "$xstage" calibrate --quick --validate 60 --litmus-rounds 50000 --out "$out/profile-this-node.json" \
    --samples-out "$out/this-node.csv" --result-out "$out/calibration.json" ||
    die "'xstage calibrate' ended with exit code $?"
  echo
  echo "Ulysses attention on two of its GPUs, checked against double precision, then timed beside its baselines."
  on_gpus run-ulysses-gpus.json run ulysses --backend cuda --seq 8192 --heads 8 --head-dim 128 --ranks 2 \
    --order remote-first --check-every 32
  on_gpus bench-ulysses.json bench ulysses --seq 8192 --heads 8 --head-dim 128 --ranks 2 --rounds 5
  echo "One MoE layer on two of its GPUs by the fused kernel, under the schedule that auto takes, checked likewise."
  on_gpus run-moe-gpus.json run moe --backend cuda --shape lingbot-video --ranks 2 --tokens 1024 \
    --schedule auto --check-every 32
fi

step "Fit a profile to the measured bursts"
job profile.json fit "${samples[@]}" --name h200-nv18-x2

step "Hold the model against the measurements, and against values left out of the fit"
job validation.json validate --profile "$out/profile.json" "${samples[@]}" --folds \
  --schedule-samples data/h200x2/synthetic_schedule.csv

step "Plan a MoE layer and a Ulysses attention on that node"
job plan-moe.json plan moe --profile "$out/profile.json" --shape lingbot-video --tokens 8192 --ranks 2
job plan-ulysses.json plan ulysses --profile "$out/profile.json" \
  --batch 1 --seq 8192 --heads 24 --head-dim 128 --ranks 2

step "Simulate both on that node, tile by tile"
job simulation-moe.json simulate moe --profile "$out/profile.json" --shape lingbot-video --tokens 8192 \
  --ranks 2 --trace "$out/timeline-moe.json"
job simulation-ulysses.json simulate ulysses --profile "$out/profile.json" \
  --batch 1 --seq 8192 --heads 24 --head-dim 128 --ranks 2

step "Run both layers with real numbers on CPU ranks"
job run-moe.json run moe --backend cpu --hidden 512 --intermediate 256 --experts 16 --topk 4 \
  --tokens 256 --ranks 4 --routing zipf:1.2
job run-ulysses.json run ulysses --backend cpu --seq 512 --heads 8 --head-dim 64 --ranks 4

step "Report"
"$xstage" predict --profile "$out/profile.json" --producers 132 --bytes 32768 --gap-us 5 \
  --json >"$out/prediction.json" || die "'xstage predict' ended with exit code $?"
python3 scripts/demo_summary.py "$out"
"$xstage" report "$out" || die "'xstage report' ended with exit code $?"

printf '\nDone in %d s. Open %s in a browser; it needs no network.\n' \
  $((SECONDS - started_at)) "$PWD/$out/report.html"
echo "The simulated timeline is $out/timeline-moe.json; Perfetto shows it."
