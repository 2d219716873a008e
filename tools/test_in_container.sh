#!/usr/bin/env bash
# The suites that lean on Redis, run against one in a container. Needs a Docker engine (tools/docker_engine.sh brings one).
set -euo pipefail
cd "$(dirname "$0")/.."

export REWARM_TEST_REDIS=testcontainers
if [ -z "${REWARM_TEST_REDIS_IMAGE:-}" ]; then
    export REWARM_TEST_REDIS_IMAGE=rewarm-test-redis:local
    tools/redis-image/build.sh "$REWARM_TEST_REDIS_IMAGE"
fi
# Ryuk, testcontainers' reaper, is one more image to pull; these containers go with the run.
export TESTCONTAINERS_RYUK_DISABLED=true

suite=("${VENV:-.venv}/bin/python" -m pytest -p tools.no_skips tests/fleet tests/e2e/test_two_gateways.py)
"${suite[@]}" -n 2 && exit
echo 'once more, alone: what failed'  # as .ci/run does
exec "${suite[@]}" -n 0 --last-failed --last-failed-no-failures none
