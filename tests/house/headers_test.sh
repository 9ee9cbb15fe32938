#!/usr/bin/env bash
# Every header of the layers without libtorch compiles alone: it includes what it uses, precompiled or not.
#   headers_test.sh CXX_COMPILER
set -euo pipefail
cd "$(dirname "$0")/../.."
mapfile -t files < <(git ls-files -co --exclude-standard -- src/lockstep/{base,mesh,trace,schedule,collective,cost,simulate,spec,comm,launch,measure}'/*.h')
[ "${#files[@]}" -gt 30 ] || { echo "found only ${#files[@]} headers"; exit 1; }
printf '%s\n' "${files[@]}" | xargs -P "$(nproc)" -I{} "$1" -std=c++20 -fsyntax-only -Wno-pragma-once-outside-header -Isrc -x c++ {}
echo "headers: ${#files[@]} compile alone"
