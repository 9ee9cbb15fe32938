#!/usr/bin/env bash
# Every source file is as clang-format leaves it. LOCKSTEP_BLESS=1 rewrites them.
set -euo pipefail
cd "$(dirname "$0")/../.."
mapfile -t files < <(git ls-files -co --exclude-standard -- '*.h' '*.cc')
if [ -n "${LOCKSTEP_BLESS:-}" ]; then
  clang-format-19 -i "${files[@]}"
else
  clang-format-19 --dry-run --Werror "${files[@]}"
fi
