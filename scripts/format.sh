#!/usr/bin/env bash
# Formats every source file with the repository's configuration.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
git ls-files --cached --others --exclude-standard '*.hpp' '*.cpp' '*.cu' '*.cuh' |
  xargs -r -d '\n' clang-format-19 -i
