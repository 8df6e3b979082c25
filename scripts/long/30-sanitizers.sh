#!/usr/bin/env bash
# AddressSanitizer and UBSan on every test, ThreadSanitizer on everything with threads
# limit: 1800 s
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
results=$1
# shellcheck source=scripts/common.sh
source scripts/common.sh
install_missing clang++-19=clang-19 libclang-rt-19-dev

# part WHAT: what is done from here on, with the time since the stage began.
part() { printf '%s (%d s)\n' "$*" "$SECONDS"; }

export ASAN_OPTIONS=detect_stack_use_after_return=0 UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1
part "AddressSanitizer and UBSan: build"
build asan
part "AddressSanitizer and UBSan: tests"
# The figures of the README are compared in the default build; here they would be made again slowly.
# A time under a sanitizer says nothing of the program's.
# A failure here does not keep ThreadSanitizer from its turn: the stage takes long.
failed=no
ctest --preset asan --parallel "$(nproc)" -E '^(Browser|Readme|Speed)\.' --output-junit "$results/asan.xml" ||
  failed=yes

export TSAN_OPTIONS=halt_on_error=1
part "ThreadSanitizer: build"
build tsan cpu_test sync_test preparation_test
part "ThreadSanitizer: tests"
ctest --preset tsan -R '^(Moe|MoeFailure|Ulysses|Wait|Barrier|Arrivals|InParallel|Preparation)\.' -E 'UnusualSizes' \
  --parallel "$(nproc)" --output-junit "$results/tsan.xml" || failed=yes
part "done"
[ $failed = no ] || die "tests failed under a sanitizer; they are named above"
