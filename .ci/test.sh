#!/usr/bin/env bash
# What `make test` runs, step by step. A failed step does not hide the later ones; the last lines name what failed and what did
# not run. CI_REQUIRE_KAFKA=1: no Apache Kafka is a failure, not a note.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
start=$SECONDS
make=(make --no-print-directory)
failed=()

step() { .ci/step.sh "$@" || failed+=("$1"); }

.ci/step.sh "what this machine needs" .ci/install.sh test

kafka=present
code=0
.ci/step.sh "Apache Kafka" .ci/kafka.sh fetch || code=$?
if [ $code -eq 3 ] && [ "${CI_REQUIRE_KAFKA:-}" != 1 ]; then
  kafka=absent
elif [ $code -ne 0 ]; then
  failed+=("Apache Kafka")
  kafka=absent
fi

step "formatting" "${make[@]}" fmt-check
step "clippy" "${make[@]}" lint
step "documentation" "${make[@]}" docs
step "licences, bans and sources of dependencies" "${make[@]}" deny
# The suites start the `millrace` that stands beside them, and `cargo test` alone would not build it.
step "build" "${make[@]}" build
if [ $kafka = absent ]; then export MILLRACE_TEST_KAFKA=absent; fi
step "tests" bash -o pipefail -c "${make[*]} suites 2>&1 | tee target/tests.log"
if [ $kafka = present ]; then
  step "faults" .ci/faults.sh
  step "ratios" .ci/ratios.sh
fi

took=$((SECONDS - start))
printf '\n== make test took %d:%02d\n' $((took / 60)) $((took % 60))
awk '/^test result:/ { passed += $4; failed += $6; skipped += $8 }
  END { printf "tests: %d passed, %d failed, %d skipped\n", passed, failed, skipped; exit passed == 0 }' target/tests.log ||
  failed+=("no test passed")
if [ ${#failed[@]} -gt 0 ]; then
  list=$(printf '%s, ' "${failed[@]}")
  echo "FAILED: ${list%, }"
  exit 1
fi
if [ $kafka = absent ]; then
  echo "NOT RUN: the Kafka suites, the fault runs and the ratios (Apache Kafka could not be fetched)"
else
  echo "All of it ran and passed."
fi
