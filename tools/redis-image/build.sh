#!/usr/bin/env bash
# Builds a Redis image from this machine's redis-server:  tools/redis-image/build.sh [TAG]
set -euo pipefail

tag=${1:-rewarm-test-redis:local}
context=$(mktemp -d)
trap 'rm -rf "$context"' EXIT
root=$context/root

mkdir -p "$root/usr/bin" "$root/data" "$root/tmp"
cp "$(dirname "$0")/Dockerfile" "$context"
for name in redis-server redis-cli; do
    binary=$(command -v "$name") || { echo "error: $name is not installed" >&2; exit 1; }
    cp --dereference "$binary" "$root/usr/bin/$name"
    # Third column of "libssl.so.3 => /lib/…/libssl.so.3 (0x…)", first of "/lib64/ld-linux-x86-64.so.2 (0x…)".
    ldd "$binary" | awk '$2 == "=>" { print $3 } $1 ~ /^\// { print $1 }' | while read -r library; do
        mkdir -p "$root$(dirname "$library")"
        cp --dereference "$library" "$root$library"
    done
done

# The old builder: the new one is a plugin that Debian's docker.io does not bring, and nothing here needs it.
DOCKER_BUILDKIT=0 docker build --quiet --tag "$tag" "$context" 2>/dev/null
docker image inspect --format "$tag: {{.Size}} bytes" "$tag"
