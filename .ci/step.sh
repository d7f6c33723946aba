#!/usr/bin/env bash
# One step of a longer run: a heading, the command, how it ended and how long it took.
#   .ci/step.sh TITLE COMMAND [ARG…]
set -uo pipefail
title=$1
shift
printf '\n== %s\n' "$title"
start=$SECONDS
"$@"
code=$?
took=$((SECONDS - start))
if [ $code -eq 0 ]; then word="done"; else word="FAILED (exit $code)"; fi
printf -- '-- %s: %s in %d:%02d\n' "$title" "$word" $((took / 60)) $((took % 60))
exit $code
