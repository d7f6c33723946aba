#!/usr/bin/env bash
# Installs what this machine lacks, and says what it did.
#   .ci/install.sh demo    what `make demo` needs: a C toolchain, OpenSSL and zlib headers, PostgreSQL's server binaries, Rust
#   .ci/install.sh test    the same, and Java and Maven for the suites on Apache Kafka, aiosmtpd for the test of mail
# Debian and Ubuntu by apt, macOS by brew, Rust by rustup. Quick, and without a word to the network, when nothing is missing.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

mode=${1:-}
case "$mode" in
  demo | test) ;;
  *) echo "usage: .ci/install.sh demo|test" >&2; exit 2 ;;
esac

say() { echo "install: $*"; }
die() { echo "install: $*" >&2; exit 1; }
have() { command -v "$1" >/dev/null 2>&1; }

os=$(uname -s)
# Where rustup and brew put what their shells only find after a new login. The Makefile does the same.
cargo_home=${CARGO_HOME:-${HOME:-~}/.cargo}
PATH=$cargo_home/bin:$PATH
if [ "$os" = Darwin ]; then
  for brewed in /opt/homebrew /usr/local; do
    for keg in postgresql@17 openjdk; do
      if [ -d "$brewed/opt/$keg/bin" ]; then PATH=$PATH:$brewed/opt/$keg/bin; fi
    done
    if [ -d "$brewed/bin" ]; then PATH=$PATH:$brewed/bin; fi
  done
fi
export PATH

# ---- what is there -------------------------------------------------------------------------------------------------------

has_openssl() {
  have pkg-config && pkg-config --exists openssl && return 0
  [ "$os" = Darwin ] && { [ -d /opt/homebrew/opt/openssl@3 ] || [ -d /usr/local/opt/openssl@3 ]; }
}

has_zlib() {
  [ "$os" = Darwin ] && return 0 # part of the system
  have pkg-config && pkg-config --exists zlib
}

has_postgres() {
  [ "$mode" = demo ] && [ -n "${DATABASE_URL:-}" ] && return 0 # one that runs already
  [ -n "${PG_BIN:-}" ] && [ -x "$PG_BIN/postgres" ] && return 0
  local server
  for server in /usr/lib/postgresql/*/bin/postgres; do
    [ -x "$server" ] && return 0
  done
  have postgres
}

# macOS has a stand-in for java that only says where to get one, so the version is asked.
has_java() {
  have java || return 1
  local version
  version=$(java -version 2>&1 | sed -n 's/.* version "\([0-9]*\).*/\1/p' | head -n 1)
  [ -n "$version" ] && [ "$version" -ge 17 ]
}

# A mail server that is none of ours, for the test of mail.
has_smtp() {
  local python
  for python in /usr/bin/python3 python3; do
    if have "$python" && "$python" -c 'import aiosmtpd' >/dev/null 2>&1; then return 0; fi
  done
  return 1
}

toolchain_key() { sed -n "s/^$1 *= *\"\([^\"]*\)\".*/\1/p" rust-toolchain.toml; }

has_rust() {
  local -x RUSTUP_AUTO_INSTALL=0 # asking must not install
  have cargo && cargo --version >/dev/null 2>&1 || return 1
  local found want
  found=$(rustc --version 2>/dev/null | sed -n 's/^rustc \([0-9]*\.[0-9]*\).*/\1/p')
  want=$(toolchain_key channel)
  [ -n "$found" ] || return 1
  [ "${found%%.*}" -gt "${want%%.*}" ] && return 0
  [ "$(echo "$found" | cut -d. -f2)" -ge "$(echo "$want" | cut -d. -f2)" ] || return 1
  if [ "$mode" = test ]; then
    cargo clippy --version >/dev/null 2>&1 && cargo fmt --version >/dev/null 2>&1 || return 1
  fi
}

# ---- packages ------------------------------------------------------------------------------------------------------------

root=() # how to become root
find_root() {
  if [ "$(id -u)" -eq 0 ]; then return 0; fi
  if have sudo && { sudo -n true 2>/dev/null || [ -t 0 ]; }; then
    root=(sudo)
    return 0
  fi
  return 1
}
as_root() { ${root[@]+"${root[@]}"} env DEBIAN_FRONTEND=noninteractive "$@"; }

# Runs quietly; what it said is shown when it fails.
quietly() {
  local out
  out=$(mktemp)
  if "$@" </dev/null >"$out" 2>&1; then rm -f "$out"; return 0; fi
  tail -n 15 "$out" >&2
  rm -f "$out"
  return 1
}

apt_updated=no
apt_update() {
  if [ $apt_updated = yes ]; then return 0; fi
  apt_updated=yes
  quietly as_root apt-get update -qq -o DPkg::Lock::Timeout=300 ||
    say "apt-get update failed; trying with the package lists that are here"
}
apt_install() {
  apt_update
  quietly as_root apt-get install -y -qq --no-install-recommends --no-remove -o DPkg::Lock::Timeout=300 "$@"
}
apt_offers() { apt-cache policy "$1" 2>/dev/null | grep 'Candidate: [^(]' >/dev/null; } # to the end: no broken pipe

# The package with a Java of 17 or later; what it is called differs from one release to the next.
apt_java() {
  local name
  for name in openjdk-17-jdk-headless openjdk-21-jdk-headless openjdk-25-jdk-headless; do
    if apt_offers "$name"; then echo "$name"; return 0; fi
  done
  echo default-jdk-headless
}

needed=()   # without these nothing runs
kafka=()    # without these the suites on Apache Kafka do not run
lacks_java=no
survey() {
  needed=() kafka=() lacks_java=no
  case "$1" in
    apt)
      { have cc && have c++ && have make; } || needed+=(build-essential)
      have pkg-config || needed+=(pkg-config)
      has_openssl || needed+=(libssl-dev)
      has_zlib || needed+=(zlib1g-dev)
      has_postgres || needed+=(postgresql)
      have curl || needed+=(curl)
      [ -f /etc/ssl/certs/ca-certificates.crt ] || needed+=(ca-certificates)
      if [ "$mode" = test ]; then
        has_smtp || needed+=(python3-aiosmtpd)
        has_java || lacks_java=yes
        have mvn || kafka+=(maven)
      fi
      ;;
    brew)
      have pkg-config || needed+=(pkgconf)
      has_openssl || needed+=(openssl@3)
      has_postgres || needed+=(postgresql@17)
      if [ "$mode" = test ]; then
        has_java || kafka+=(openjdk)
        have mvn || kafka+=(maven)
      fi
      ;;
    *)
      { have cc && have c++ && have make; } || needed+=("a C and C++ compiler and make")
      have pkg-config || needed+=(pkg-config)
      has_openssl || needed+=("OpenSSL headers")
      has_zlib || needed+=("zlib headers")
      has_postgres || needed+=("PostgreSQL server binaries")
      if [ "$mode" = test ]; then
        has_java || kafka+=("Java 17 or later")
        have mvn || kafka+=(Maven)
      fi
      ;;
  esac
}

installed=()
else_=
without_kafka() {
  say "$1; the suites on Apache Kafka will not run"
  else_=" else"
}

packages_apt() {
  survey apt
  if [ ${#needed[@]} -eq 0 ] && [ ${#kafka[@]} -eq 0 ] && [ $lacks_java = no ]; then return 0; fi
  if ! find_root; then
    if [ $lacks_java = yes ]; then kafka+=("$(apt_java)"); fi
    local all=("${needed[@]}" "${kafka[@]}")
    local how="not root and no sudo. Run as root: apt-get update && apt-get install -y ${all[*]}"
    if [ ${#needed[@]} -gt 0 ]; then die "$how"; fi
    without_kafka "$how"
    return 0
  fi
  if [ ${#needed[@]} -gt 0 ]; then
    say "installing ${needed[*]} (apt)"
    apt_install "${needed[@]}" || die "apt could not install ${needed[*]}"
    installed+=("${needed[@]}")
  fi
  if [ $lacks_java = yes ]; then
    apt_update
    kafka+=("$(apt_java)")
  fi
  if [ ${#kafka[@]} -gt 0 ]; then
    say "installing ${kafka[*]} (apt)"
    if apt_install "${kafka[@]}"; then installed+=("${kafka[@]}"); else without_kafka "apt could not install ${kafka[*]}"; fi
  fi
}

packages_brew() {
  if ! xcode-select -p >/dev/null 2>&1; then
    die "no C compiler. Run: xcode-select --install"
  fi
  survey brew
  if [ ${#needed[@]} -eq 0 ] && [ ${#kafka[@]} -eq 0 ]; then return 0; fi
  if ! have brew; then
    if [ ${#needed[@]} -eq 0 ]; then without_kafka "no brew to install ${kafka[*]}"; return 0; fi
    die "Homebrew is not installed (brew.sh tells how); then run: brew install ${needed[*]} ${kafka[*]+${kafka[*]}}"
  fi
  if [ ${#needed[@]} -gt 0 ]; then
    say "installing ${needed[*]} (brew)"
    brew install -q "${needed[@]}" </dev/null || die "brew could not install ${needed[*]}"
    installed+=("${needed[@]}")
  fi
  if [ ${#kafka[@]} -gt 0 ]; then
    say "installing ${kafka[*]} (brew)"
    if brew install -q "${kafka[@]}" </dev/null; then installed+=("${kafka[@]}"); else without_kafka "brew could not install ${kafka[*]}"; fi
  fi
}

packages_other() {
  survey other
  if [ ${#needed[@]} -gt 0 ]; then
    local list
    list=$(printf '%s, ' "${needed[@]}")
    die "this is neither Debian, Ubuntu nor macOS; please install: ${list%, }"
  fi
  if [ ${#kafka[@]} -gt 0 ]; then without_kafka "${kafka[*]} not found"; fi
}

# ---- Rust ----------------------------------------------------------------------------------------------------------------

rust() {
  if has_rust; then return 0; fi
  if ! have rustup; then
    # A distribution's own cargo of the same name is too old, or it would have done: rustup comes beside it, never instead.
    if have apt-get && find_root && apt_update && apt_offers rustup && apt_install rustup; then
      installed+=(rustup)
    else
      have curl || die "curl is needed to install Rust"
      say "installing rustup (its official script) to $cargo_home"
      local script
      script=$(mktemp)
      curl --proto '=https' --tlsv1.2 -sSf --retry 3 --connect-timeout 20 https://sh.rustup.rs -o "$script" ||
        die "rustup could not be fetched. Install Rust $(toolchain_key channel) by hand (rustup.rs), then run this again"
      sh "$script" -y -q --no-modify-path --profile minimal --default-toolchain none </dev/null ||
        die "rustup-init failed"
      rm -f "$script"
      installed+=(rustup)
    fi
  fi
  local channel component components=()
  channel=$(toolchain_key channel)
  for component in $(sed -n 's/^components *= *\[\(.*\)\].*/\1/p' rust-toolchain.toml | tr -d '",'); do
    components+=(--component "$component")
  done
  say "installing Rust $channel (rustup)"
  rustup toolchain install "$channel" --profile minimal ${components[@]+"${components[@]}"} </dev/null ||
    die "rustup could not install Rust $channel"
  installed+=("Rust $channel")
  has_rust || die "Rust $channel is installed, but 'cargo' is still another one: $(command -v cargo || echo none found)"
}

if [ "$os" = Darwin ]; then
  packages_brew
elif have apt-get; then
  packages_apt
else
  packages_other
fi
rust

if [ ${#installed[@]} -gt 0 ]; then
  list=$(printf '%s, ' "${installed[@]}")
  say "installed ${list%, }"
else
  say "nothing$else_ missing"
fi
