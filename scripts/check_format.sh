#!/usr/bin/env bash
# Checks the shape of the source: clang-format (when clang-format-19 is here) and file length.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# From git where this is a clone, else from the folders, so that an unpacked archive works too.
sources() {
  if git rev-parse --is-inside-work-tree >/dev/null 2>&1; then
    git ls-files --cached --others --exclude-standard
  else
    find include src tests examples bench -type f 2>/dev/null
  fi | grep -E '\.(hpp|cpp|cu|cuh)$' | while read -r file; do [ -f "$file" ] && echo "$file"; done
}

status=0
if command -v clang-format-19 >/dev/null; then
  if ! sources | xargs -r -d '\n' clang-format-19 --dry-run --Werror; then
    echo "mend it with: scripts/format.sh" >&2
    status=1
  else
    echo "clang-format: $(sources | wc -l) files in order"
  fi
else
  echo "clang-format-19 is not installed: format not checked"
fi

while read -r file; do
  lines=$(wc -l <"$file")
  if [ "$lines" -gt 700 ]; then
    echo "$file has $lines lines; allowed: 700" >&2
    status=1
  fi
done < <(sources)
exit $status
