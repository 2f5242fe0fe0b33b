#!/bin/sh
# The gate on the GPU box, before its vLLM is replaced: files, patches, then the GPU suite in one
# load, on clean GPUs only.
#
#   ci/box/gate.sh PYTHON [KNOWN_GOOD] [OUT] [-- OPTIONS OF `harness gate`]
#
# PYTHON is the interpreter of the environment with the candidate (its vLLM is read, not imported,
# until rung gpu). `harness` must be on PATH, with pytest. Options: `--slice DIR -tp 8` for another
# model than the tiny one, or `--rungs static,mock,full --model DIR` for the whole Kimi-K2.5.
# docs/ci.md has a cron line. Exit codes are the gate's: 0 allowed, 1 regressed, 4 unknown, not
# comparable or no engine was run; 2 and 3 as every command.
set -eu

python=${1:?usage: ci/box/gate.sh PYTHON [KNOWN_GOOD] [OUT] [-- OPTIONS]}
shift
known= out=gate-report
if [ $# -gt 0 ] && [ "$1" != -- ]; then known=$1; shift; fi
if [ $# -gt 0 ] && [ "$1" != -- ]; then out=$1; shift; fi
if [ $# -gt 0 ] && [ "$1" = -- ]; then shift; fi
mkdir -p "$out/evidence"

code=0
harness gate --python "$python" ${known:+--from "$known"} --rungs static,mock,gpu \
    --evidence "$out/evidence" --report "$out/gate.html" "$@" --json > "$out/gate.json" || code=$?

# Why no engine was run is told; what the files alone allow is no proof on this card.
if ! grep -Eq '"rung": "(gpu|full)", "status": "passed"' "$out/gate.json"; then
    grep -Eo '"rung": "(gpu|full)", "status": "skipped", "reason": "[^"]*"' "$out/gate.json" >&2 || :
    [ "$code" -ne 0 ] || code=4
fi
exit "$code"
