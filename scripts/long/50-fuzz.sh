#!/usr/bin/env bash
# libFuzzer on every reader of files, forty minutes of one core in all
# limit: 2400 s
# XSTAGE_FUZZ_SECONDS: another time for all together; a reader's name as second argument: that one alone.
# XSTAGE_FUZZ_SEED: other inputs; by default a change meets those that the one before it met.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
together=${XSTAGE_FUZZ_SECONDS:-2400} seed=${XSTAGE_FUZZ_SEED:-20260725}
# shellcheck source=scripts/common.sh
source scripts/common.sh
install_missing clang++-19=clang-19 libclang-rt-19-dev

readers=() known=0
for source in tests/fuzz/fuzz_*.cpp; do
  known=$((known + 1))
  reader=$(basename "$source" .cpp)
  if [ $# -lt 2 ] || [ "fuzz_$2" = "$reader" ]; then readers+=("$reader"); fi
done
[ ${#readers[@]} -gt 0 ] || die "there is no reader '$2'"
# Another reader takes its time from the others': the stage does not grow with their number.
seconds=$((together / known))
[ "$seconds" -ge 1 ] || die "XSTAGE_FUZZ_SECONDS is $together; allowed: $known (the readers) or more"
build asan "${readers[@]}"
printf '%d readers, %d s each, %d at a time: %s (%d s)\n' ${#readers[@]} "$seconds" "$(nproc)" \
  "${readers[*]#fuzz_}" "$SECONDS"

# fuzz READER: new inputs go to the build folder, crashes too; the log is shown only on failure.
fuzz() {
  local reader=$1
  local work=build-asan/found/$reader log=build-asan/$1.log
  mkdir -p "$work"
  "build-asan/tests/fuzz/$reader" -seed="$seed" -max_total_time="$seconds" -timeout=10 \
    -rss_limit_mb=2048 -max_len=16384 -print_final_stats=1 -artifact_prefix="$work/crash-" \
    "$work" "tests/fuzz/corpus/${reader#fuzz_}" >"$log" 2>&1 || {
    tail -n 40 "$log" >&2
    echo "$reader: failed; its input is in $work" >&2
    return 1
  }
  echo "$reader: $(sed -n 's/^stat::number_of_executed_units: *//p' "$log") inputs," \
    "$(grep -o 'cov: [0-9]*' "$log" | tail -n 1), $(date +%T)"
}
export -f fuzz
export seconds seed
printf '%s\n' "${readers[@]}" | xargs -P "$(nproc)" -I{} bash -euo pipefail -c 'fuzz {}'
