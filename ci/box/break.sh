#!/bin/sh
# Breaks a running engine on purpose, and prints which claim each fault turned red.
#
#   ci/box/break.sh PYTHON [PYTEST ARGS]      on GPUs: ci/box/break.sh /opt/vllm/bin/python --hs-model DIR
#   ci/box/break.sh --cpu PYTHON              the tiny model on a CPU
#
# PYTHON is an interpreter with vLLM, pytest and the harness; `harness` must be on PATH. One load a
# capture: the faults are switched on in its running workers. A fault that turns nothing red is
# ALIVE, and the exit code 1.
set -eu

suite=tests/gpu/test_mutations.py
if [ "${1:-}" = --cpu ]; then
    suite=tests/engine/test_mutations.py
    shift
fi
python=${1:?usage: ci/box/break.sh [--cpu] PYTHON [PYTEST ARGS]}
shift
cd "$(dirname "$0")/../.."

if [ "$suite" = tests/gpu/test_mutations.py ]; then
    harness preflight
    set -- -m gpu --hs-require-gpu "$@"
fi
exec "$python" -m pytest "$suite" -o addopts=-ra -s "$@"
