#!/usr/bin/env bash
# The pipeline against the bare loop on workload W, gated at 0.6 of the target by what a record costs and by the best rate of up to
# five goes. The runner is what `make build` has built, and has cargo build the product first, as it ships, so that it is of the
# sources at hand (`MILLRACE_BIN` names another). Both sides are unoptimised there, which costs the product more than the bare loop:
# 0.45 by rate and 0.55 by CPU were seen on a calm machine where release has 0.7.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
runner=${CARGO_TARGET_DIR:-target}/debug/loadtest
[ -x "$runner" ] || { echo "no $runner: run make build first" >&2; exit 2; }
[ $# -gt 0 ] || set -- --records 100000 --rounds 2
"$runner" peers --short "$@"
