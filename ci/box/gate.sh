#!/bin/sh
# The gate on the GPU box, before its vLLM is replaced: each rung only when the one below allows it.
#
#   ci/box/gate.sh PYTHON [KNOWN_GOOD] [OUT] [-- PYTEST ARGS]
#
# PYTHON is the interpreter of the environment with the candidate (its vLLM is read, not imported,
# until rung gpu). `harness` must be on PATH. docs/ci.md has a cron line. Exit codes are the
# gate's: 0 allowed, 1 regressed, 4 unknown or not comparable; 2 and 3 as every command.
set -eu

python=${1:?usage: ci/box/gate.sh PYTHON [KNOWN_GOOD] [OUT] [-- PYTEST ARGS]}
shift
known= out=gate-report
if [ $# -gt 0 ] && [ "$1" != -- ]; then known=$1; shift; fi
if [ $# -gt 0 ] && [ "$1" != -- ]; then out=$1; shift; fi
if [ $# -gt 0 ] && [ "$1" = -- ]; then shift; fi
mkdir -p "$out"

# Files and patches: seconds, and no GPU is touched.
harness gate --python "$python" ${known:+--from "$known"} --rungs static,mock \
    --report "$out/gate.html" --json > "$out/gate.json"

# Clean GPUs, or nothing is loaded.
harness preflight

# One load: the plugin's own tests on the slice, or on the model that the arguments name.
"$python" -m pytest tests/gpu -m gpu --hs-require-gpu --junitxml "$out/junit.xml" "$@" \
    > "$out/pytest.txt" 2>&1 || { tail -n 40 "$out/pytest.txt" >&2; exit 1; }
tail -n 3 "$out/pytest.txt"
