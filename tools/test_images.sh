#!/usr/bin/env bash
# Builds the images of deploy/images and runs their tests:  tools/docker_engine.sh tools/test_images.sh [--gpu]
#
# --gpu  also the steps of the GPU worker's image, on a base that has no vLLM: what they install is the same
#
# The worker's image has the engine `torch`, and SmolLM2 answers from it. Nothing is pulled: the base is made of Debian's
# packages (tools/python-image), libraries come as wheels, which pip fetches here and not in the build. Images are gone when
# the engine of tools/docker_engine.sh ends; until then it all takes 3.5 GiB of disk at most. TORCH_INDEX is where the CPU
# build of torch comes from, unless pip knows.
set -euo pipefail
cd "$(dirname "$0")/.."

python=${VENV:-.venv}/bin/python
model=$PWD/models/smollm2
images='gateway worker-cpu'
[ "${1:-}" != --gpu ] || images+=' worker-gpu'
[ -f "$model/model.safetensors" ] || { echo "error: no $model: make environment ENGINE=cpu makes it" >&2; exit 1; }
context=$(mktemp -d)
trap 'rm -rf "$context"' EXIT

tools/python-image/build.sh rewarm-test-python
tools/redis-image/build.sh rewarm-test-redis:local

tar --create --file - --exclude __pycache__ LICENSE README.md pyproject.toml .dockerignore \
    controller fleet gateway rewarm rewarm_vllm snapshots worker deploy/images | tar --extract --file - --directory "$context"
# For the interpreter in the image, which is not the one here.
platform=(--python-version 3.11 --implementation cp --abi cp311 --only-binary :all:)
for one in manylinux2014 manylinux_2_17 manylinux_2_28 manylinux_2_34; do platform+=(--platform "${one}_$(uname -m)"); done
fetch() { "$python" -m pip download --quiet "${platform[@]}" --dest "$context/wheels" "$@"; }
requirements() {
    "$python" - "$@" <<'PYTHON'
import sys, tomllib
read = tomllib.load(open("pyproject.toml", "rb"))
project, builds = read["project"], read["build-system"]["requires"]
extras = [one for extra in sys.argv[1:] for one in project["optional-dependencies"][extra]]
print(*project["dependencies"], *extras, *builds, "async-timeout", sep="\n")
PYTHON
}
build() {
    local name=$1
    shift
    # Without a network: what a build needs beyond the context would be a surprise.
    DOCKER_BUILDKIT=0 docker build --quiet --network none --file "deploy/images/Dockerfile.$name" --tag "rewarm-$name:test" \
        --build-arg "PIP_ARGS=--no-index --find-links /src/wheels" "$@" "$context"
    docker image inspect --format "rewarm-$name:test: {{.Size}} bytes, after $SECONDS s" "rewarm-$name:test"
}

fetch --requirement <(requirements knative)
build gateway --build-arg BUILD=rewarm-test-python:build --build-arg BASE=rewarm-test-python:runtime
[ "${1:-}" != --gpu ] || build worker-gpu --build-arg BASE=rewarm-test-python:build --build-arg EXTRAS=knative

# The CPU build, which is a fifth of the other one.
torch=$(sed -n "s/^readonly TORCH_CPU='\(.*\)'$/\1/p" tools/environment.sh)
index=()
"$python" -m pip install --dry-run --quiet --no-deps --ignore-installed "$torch" &>/dev/null \
    || index=(--extra-index-url "${TORCH_INDEX:-https://download.pytorch.org/whl/cpu}")
fetch "${index[@]}" --requirement <(requirements knative torch) "$torch"
build worker-cpu --build-arg BASE=rewarm-test-python:build --build-arg SYSTEM= --build-arg EXTRAS=knative,torch

rm -rf "$context/wheels"
REWARM_TEST_IMAGES=$images "$python" -m pytest -p tools.no_skips tests/images
