#!/usr/bin/env bash
# libFuzzer on every reader of files, five minutes each
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
seconds=${XSTAGE_FUZZ_SECONDS:-300}
# shellcheck source=scripts/common.sh
source scripts/common.sh
install_missing clang++-19=clang-19 libclang-rt-19-dev

readers=()
for source in tests/fuzz/fuzz_*.cpp; do
  readers+=("$(basename "$source" .cpp)")
done
build fuzz "${readers[@]}"

# fuzz READER: new inputs go to the build folder, crashes too; the log is shown only on failure.
fuzz() {
  local reader=$1
  local work=build-fuzz/found/$reader
  mkdir -p "$work"
  "build-fuzz/tests/fuzz/$reader" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 \
    -max_len=16384 -print_final_stats=1 -artifact_prefix="$work/crash-" \
    "$work" "tests/fuzz/corpus/${reader#fuzz_}" >"build-fuzz/$reader.log" 2>&1 || {
    tail -n 40 "build-fuzz/$reader.log" >&2
    return 1
  }
  echo "$reader: $(sed -n 's/^stat::number_of_executed_units: *//p' "build-fuzz/$reader.log") inputs"
}
export -f fuzz
export seconds
printf '%s\n' "${readers[@]}" | xargs -P "$(nproc)" -I{} bash -euo pipefail -c 'fuzz {}'
