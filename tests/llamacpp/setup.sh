#!/usr/bin/env bash
# Installs a real llama.cpp server into .venv-llamacpp: its C++ server out of the `xllamacpp` wheel (34 MB, prebuilt for
# Linux x86-64 and arm64), started as .venv-llamacpp/bin/llama-server. Idempotent.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
home=${LLAMACPP_HOME:-$root/.venv-llamacpp}
python=${PYTHON:-$root/.venv/bin/python}
[ -x "$python" ] || python=python3

if ! cmp -s "$here/requirements.txt" "$home/.installed"; then
    echo "llama.cpp: installing $(cat "$here/requirements.txt")"
    rm -rf "$home"
    "$python" -m venv "$home"
    "$home/bin/pip" install --quiet --disable-pip-version-check --requirement "$here/requirements.txt"
    cp "$here/requirements.txt" "$home/.installed"
fi
{
    echo "#!$home/bin/python"
    cat "$here/llama_server.py"
} >"$home/bin/llama-server"
chmod +x "$home/bin/llama-server"
