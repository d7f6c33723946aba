#!/usr/bin/env bash
# The fault runner in its short form: six runs of a fixed seed, one of them with shards and people who are told; two of a random one
# (printed, so that it can be repeated); and two safeguards switched off that must be missed, the ledger's and the gates'. Uses
# what `make build` has built; builds nothing of its own.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
runner=${CARGO_TARGET_DIR:-target}/debug/loadtest
[ -x "$runner" ] || { echo "no $runner: run make build first" >&2; exit 2; }
unset CARGO # the runner would ask it whether the product is fresh
# A shared machine may be several times slower than a calm one; the verdicts are exact all the same.
# One cluster, started once, serves all of them.
exec "$runner" faults --short --dry --limit 180 --runs 6 --seed 12 --then-random 2 \
  --then-sabotage "${SABOTAGE:-claim,cooldown}"
