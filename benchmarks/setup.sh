#!/usr/bin/env bash
# What we are measured against. `hot_path`: nginx and wrk from the distribution, litellm's proxy; `queue`: taskiq-redis.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-.venv/bin/python}

missing=()
command -v nginx >/dev/null || [ -x /usr/sbin/nginx ] || missing+=(nginx)
command -v wrk >/dev/null || missing+=(wrk)
if [ ${#missing[@]} -gt 0 ]; then
    if [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null; then
        apt-get install -y --no-install-recommends "${missing[@]}" >/dev/null
    else
        echo "install first: ${missing[*]}" >&2
        exit 1
    fi
fi

# Each in an environment of its own: their requirements are not ours.
for name in litellm taskiq; do
    want=benchmarks/requirements-$name.txt
    if ! cmp -s "$want" ".venv-$name/.installed"; then
        rm -rf ".venv-$name"
        "$python" -m venv ".venv-$name"
        ".venv-$name/bin/pip" install --quiet --quiet --disable-pip-version-check --requirement "$want"
        cp "$want" ".venv-$name/.installed"
    fi
done
