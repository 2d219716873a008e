#!/usr/bin/env bash
# Builds two small Python images out of Debian's packages, without pulling anything:  tools/python-image/build.sh [NAME]
#
# They stand in where no image can be pulled: NAME:runtime for gcr.io/distroless/python3-debian12 (Debian's python3.11 and what
# it needs, no shell), NAME:build for python:3.11-slim (a shell, pip, and lscpu, which vLLM asks on a CPU). Needs apt-get with
# a Debian 12 archive, dpkg-deb, pip and a Docker engine.
set -euo pipefail

name=${1:-rewarm-test-python}
context=$(mktemp -d)
trap 'rm -rf "$context"' EXIT
root=$context/runtime
extra=$context/build
mkdir -p "$context/debs" "$root" "$extra/opt/pip" "$extra/usr/bin"

runtime=(
    base-files netbase ca-certificates tzdata media-types
    libc6 libgcc-s1 libstdc++6 zlib1g libbz2-1.0 liblzma5 libffi8 libexpat1 libssl3 libuuid1 libsqlite3-0 libcrypt1
    python3.11-minimal libpython3.11-minimal libpython3.11-stdlib
)
build=(util-linux libsmartcols1 dash coreutils libacl1 libattr1 libselinux1 libgmp10 libpcre2-8-0)

unpack() {
    local into=$1
    shift
    mkdir "$context/debs/$(basename "$into")"
    (cd "$context/debs/$(basename "$into")" && apt-get -o APT::Sandbox::User=root download -qq "$@")
    for deb in "$context/debs/$(basename "$into")"/*.deb; do dpkg-deb -x "$deb" "$into"; done
}
unpack "$root" "${runtime[@]}"
unpack "$extra" "${build[@]}"

# What packages' scripts would do.
ln -sf python3.11 "$root/usr/bin/python3"
ln -sf dash "$extra/bin/sh"
mkdir -p "$root/tmp" "$root/etc/ssl/certs"
chmod 1777 "$root/tmp"
find "$root/usr/share/ca-certificates" -name '*.crt' -exec cat {} + >"$root/etc/ssl/certs/ca-certificates.crt"
printf 'root:x:0:0:root:/root:/bin/sh\nnonroot:x:65532:65532::/home/nonroot:/bin/sh\n' >"$root/etc/passwd"
printf 'root:x:0:\nnonroot:x:65532:\n' >"$root/etc/group"
for folder in "$root" "$extra"; do rm -rf "$folder"/usr/share/{doc,man,locale,info,lintian}; done
rm -rf "$root"/usr/lib/python3.11/{test,idlelib,ensurepip,lib2to3,pydoc_data}

# pip as wheels, unpacked: Debian's own would bring half a compiler.
python3 -m pip download --quiet --no-deps --only-binary :all: --dest "$context/debs" pip
for wheel in "$context"/debs/*.whl; do python3 -m zipfile -e "$wheel" "$extra/opt/pip"; done

printf 'FROM scratch\nCOPY runtime/ /\nENV PATH=/usr/local/bin:/usr/bin:/bin\n' >"$context/Dockerfile.runtime"
printf 'FROM %s:runtime\nCOPY build/ /\nENV PYTHONPATH=/opt/pip\n' "$name" >"$context/Dockerfile.build"
for kind in runtime build; do
    # The old builder: the new one is a plugin that Debian's docker.io does not bring, and nothing here needs it.
    DOCKER_BUILDKIT=0 docker build --quiet --file "$context/Dockerfile.$kind" --tag "$name:$kind" "$context" 2>/dev/null
    docker image inspect --format "$name:$kind: {{.Size}} bytes" "$name:$kind"
done
