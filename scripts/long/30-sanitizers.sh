#!/usr/bin/env bash
# AddressSanitizer and UBSan on every test, ThreadSanitizer on everything with threads
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
results=$1
# shellcheck source=scripts/common.sh
source scripts/common.sh

export ASAN_OPTIONS=detect_stack_use_after_return=0 UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1
build asan
ctest --preset asan --parallel "$(nproc)" -E '^Browser\.' --output-junit "$results/asan.xml"

export TSAN_OPTIONS=halt_on_error=1
build tsan cpu_test sync_test
ctest --preset tsan -R '^(Moe|MoeFailure|Ulysses|Wait|Barrier|Arrivals)\.' -E 'UnusualSizes' \
  --output-junit "$results/tsan.xml"
