#!/usr/bin/env bash
# Every header of the layers without libtorch compiles alone: it includes what it uses, precompiled or not.
#   headers_test.sh CXX_COMPILER [FOLDER_OF_CUDA_HEADERS...]     without those folders comm/nccl is left out
set -euo pipefail
cd "$(dirname "$0")/../.."
mapfile -t files < <(git ls-files -co --exclude-standard -- src/lockstep/{base,mesh,trace,schedule,collective,cost,simulate,spec,comm,launch,measure}'/*.h')
compiler=$1
shift
if [ $# = 0 ]; then
  mapfile -t files < <(printf '%s\n' "${files[@]}" | grep -v '^src/lockstep/comm/nccl/')
fi
[ "${#files[@]}" -gt 30 ] || { echo "found only ${#files[@]} headers"; exit 1; }
printf '%s\n' "${files[@]}" | xargs -P "$(nproc)" -I{} "$compiler" -std=c++20 -fsyntax-only -Wno-pragma-once-outside-header -Isrc "${@/#/-I}" -x c++ {}
echo "headers: ${#files[@]} compile alone"
