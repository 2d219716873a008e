#!/usr/bin/env bash
# make bench: every benchmark, one after the other; what each measured goes to build/bench/NAME.json. About ten minutes.
#
# NAMES="held cold_start" runs only those.
set -euo pipefail
cd "$(dirname "$0")/.."
python=$1

PYTHON=$python benchmarks/setup.sh
mkdir -p build/bench
failed=()
for name in ${NAMES:-hot_path held cold_start restore queue eta}; do
    echo "==> benchmarks.$name"
    if "$python" -m "benchmarks.$name" --json >"build/bench/$name.json.part"; then
        mv "build/bench/$name.json.part" "build/bench/$name.json"
        cat "build/bench/$name.json"
    else
        failed+=("$name")
    fi
done
[ ${#failed[@]} -eq 0 ] || { echo "error: failed: ${failed[*]}" >&2; exit 1; }
