#!/usr/bin/env bash
# clang-tidy over every source file of the library and the executable
# limit: 1200 s
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
# shellcheck source=scripts/common.sh
source scripts/common.sh
install_missing clang-tidy-19

# What `build` compiles: .clang-tidy says which checks and why. The tests' own sources are left out:
# GoogleTest's macros trip half of the checks. Kernels (.cu) are nvcc's.
files=()
for file in src/*/*.cpp src/*/*/*.cpp; do
  if grep -q "\"file\": \"$PWD/$file\"" build/compile_commands.json; then files+=("$file"); fi
done
[ ${#files[@]} -gt 50 ] || die "build/compile_commands.json names only ${#files[@]} of the sources"
echo "${#files[@]} files, $(build_jobs) at a time"

logs=build/check/tidy
rm -rf "$logs"
mkdir -p "$logs"
# tidy FILE: one line when it is done, and what was found where something was. The standard library's
# std::stable_sort uses what C++17 deprecated; clang names the line that instantiates it.
tidy() {
  local log=$logs/${1//\//_}.log
  if clang-tidy-19 -quiet --extra-arg=-Wno-deprecated-declarations -p build "$1" \
    >"$log" 2>"$log.stderr"; then
    printf '%4d s  %s\n' $((SECONDS)) "$1"
  else
    printf '%4d s  %s: FINDINGS\n' $((SECONDS)) "$1"
    return 1
  fi
}
export -f tidy
export logs
# xargs starts a shell for each file; SECONDS counts from the start of this stage.
printf '%s\n' "${files[@]}" |
  xargs -P "$(build_jobs)" -I{} env SECONDS="$SECONDS" bash -uo pipefail -c 'tidy {}' || {
  grep -hE '(error|warning):' "$logs"/*.log | sort -u
  grep -hE 'error:' "$logs"/*.stderr | sort -u || true
  die "clang-tidy found the lines above"
}
