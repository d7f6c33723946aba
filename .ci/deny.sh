#!/usr/bin/env bash
# Licences, bans and sources of every dependency, by deny.toml, of the workspace and of the fuzzer's. Uses the cargo-deny that
# is there, else builds the pinned one into target/tools, once.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
version=0.20.2
cargo=${CARGO:-cargo}
tool=$PWD/target/tools/bin/cargo-deny

if "$cargo" deny --version >/dev/null 2>&1; then
  tool="$cargo deny"
elif ! [ -x "$tool" ] || [ "$("$tool" --version)" != "cargo-deny $version" ]; then
  echo "installing cargo-deny $version to target/tools"
  # A tool that runs for a second need not be optimised: its own release profile takes several times as long to build.
  CARGO_TARGET_DIR=$PWD/target/tools/build CARGO_INCREMENTAL=0 \
    CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_OPT_LEVEL=0 CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16 \
    "$cargo" install cargo-deny --version "$version" --locked --root target/tools --quiet </dev/null
  rm -rf target/tools/build
fi
# shellcheck disable=SC2086
$tool --locked check --hide-inclusion-graph bans licenses sources
# The fuzzer's workspace, with a Cargo.lock of its own: by the same file. A lock that has fallen behind fails here too (after a
# new dependency: `cargo metadata --manifest-path tests/fuzz/Cargo.toml` brings it up to date).
# So does that of a peer of the load tests, which uses the workspace's crates: it is built for the long forms alone.
"$cargo" metadata --locked --format-version 1 --manifest-path loadtest/peers/arroyo/Cargo.toml >/dev/null
# shellcheck disable=SC2086
exec $tool --locked --manifest-path ./tests/fuzz/Cargo.toml check --hide-inclusion-graph bans licenses sources
