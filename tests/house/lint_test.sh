#!/usr/bin/env bash
# A short allow-list of clang-tidy checks (.clang-tidy) over the part that builds without libtorch, as far as it is built.
#   lint_test.sh BUILD_DIR
set -euo pipefail
cd "$(dirname "$0")/../.."
mapfile -t files < <(git ls-files -co --exclude-standard -- 'src/lockstep/base/*.cc' 'src/lockstep/mesh/*.cc' 'src/lockstep/trace/*.cc' \
  'src/lockstep/collective/*.cc' 'src/lockstep/cost/*.cc' 'src/lockstep/simulate/*.cc' 'src/lockstep/schedule/*.cc' 'src/lockstep/spec/*.cc' 'src/lockstep/comm/*.cc' 'src/lockstep/launch/*.cc' 'src/lockstep/measure/*.cc' | grep -v _test.cc |
  while read -r file; do grep -qF "$PWD/$file\"" "$1/compile_commands.json" && echo "$file"; done)
[ "${#files[@]}" -gt 30 ] || { echo "found only ${#files[@]} files that are built"; exit 1; }
printf '%s\n' "${files[@]}" | xargs -P "$(nproc)" -n 4 clang-tidy-19 --quiet -p "$1" --warnings-as-errors='*'
