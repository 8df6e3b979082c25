#!/usr/bin/env bash
# Installs what is missing, builds, and passes every test that this machine can run.
#   ./check.sh          what a change must pass (minutes)
#   ./check.sh --long   and every stage in scripts/long/ (sanitizers, fuzzing, a real browser)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

long=no
case "${1-}" in
  '') ;;
  --long) long=yes ;;
  -h | --help)
    sed -n '2,4s/^# \{0,1\}//p' "$0"
    exit 0
    ;;
  *)
    echo "check.sh: unknown option '$1'; allowed: --long" >&2
    exit 2
    ;;
esac
[ $# -le 1 ] || {
  echo "check.sh: too many options; allowed: --long" >&2
  exit 2
}

steps_total=4
stages=()
if [ $long = yes ]; then
  stages=(scripts/long/*.sh)
  steps_total=$((steps_total + ${#stages[@]}))
fi
# shellcheck source=scripts/common.sh
source scripts/common.sh

step "Packages"
install_build_packages

step "Format and shape of the tree"
scripts/check_format.sh || die "the check of format failed; the files are named above"

step "Build"
build default

step "Tests"
results=build/check
mkdir -p "$results"
rm -f "$results"/*
failed=no
ctest --preset default --parallel "$(nproc)" --output-junit "$PWD/$results/tests.xml" || failed=yes
[ -f "$results/tests.xml" ] || die "ctest ran no test; its message is above"

# Every stage ends by its own limit, and no stage begins that the limit of all could cut off: a
# change waits for this, and a hang must be a failure within the hour.
long_limit=4200
long_begun=$SECONDS
for stage in "${stages[@]}"; do
  step "Long: $(sed -n '2s/^# *//p' "$stage")"
  limit=$(sed -n '3s/^# limit: \([0-9]*\) s$/\1/p' "$stage")
  left=$((long_limit - (SECONDS - long_begun)))
  [ -n "$limit" ] || die "$stage does not say its limit in line 3"
  [ "$left" -gt 60 ] || die "the stages took $long_limit s together; $stage was not begun"
  begun=$SECONDS code=0
  timeout --kill-after=30 $((limit < left ? limit : left)) bash "$stage" "$PWD/$results" || code=$?
  if [ $code -eq 0 ]; then
    printf 'passed in %d s (limit %d s)\n' $((SECONDS - begun)) "$limit"
  else
    [ $code -ne 124 ] || echo "check.sh: $stage was still running after $((SECONDS - begun)) s" >&2
    echo "check.sh: the stage $stage failed" >&2
    failed=yes
  fi
done

echo
python3 scripts/test_summary.py "$results" build | tee "$results/summary.txt"
[ $failed = no ] || die "something failed; the failed tests are named above"
