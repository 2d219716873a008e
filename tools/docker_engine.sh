#!/usr/bin/env bash
# Runs a command with a Docker engine of its own:  tools/docker_engine.sh COMMAND [ARGUMENT…]   (as root)
#
# The engine's data, sockets and log lie in a temporary folder, and it is stopped by its process id when the command ends,
# so that an engine that already runs here is neither used nor disturbed. Exit status 3: the engine did not start.
set -euo pipefail

home=$(mktemp -d /tmp/rewarm-docker.XXXXXX)
engine=

stop() {
    if [ -n "$engine" ] && kill -0 "$engine" 2>/dev/null; then
        kill "$engine"
        wait "$engine" 2>/dev/null || true
    fi
    # Mounts that a container which died badly has left would keep the folder.
    grep -o " $home/[^ ]*" /proc/self/mounts | sort -r | xargs -r -n 1 umount -l 2>/dev/null || true
    rm -rf "$home"
}
trap stop EXIT
trap 'exit 143' TERM INT

fail() {
    printf 'error: %s\n' "$*" >&2
    if [ -f "$home/log" ]; then
        echo '--- last lines of the engine'\''s log' >&2
        tail -n 40 "$home/log" >&2
    fi
    exit 3
}

command -v dockerd >/dev/null || fail 'dockerd is not installed (apt-get install docker.io)'

# setsid: a Ctrl-C on the terminal reaches this script alone, which then stops the engine in order.
start() {
    setsid dockerd --data-root "$home/data" --exec-root "$home/exec" --pidfile "$home/pid" \
        --host "unix://$home/docker.sock" "$@" >>"$home/log" 2>&1 &
    engine=$!
    export DOCKER_HOST="unix://$home/docker.sock"
    local deadline=$((SECONDS + 60))
    until docker version >/dev/null 2>&1; do
        kill -0 "$engine" 2>/dev/null || return 1
        [ "$SECONDS" -lt "$deadline" ] || return 1
        sleep 0.2
    done
}

# overlay2 is the fastest; vfs needs nothing of the kernel and suffices for images of some megabytes.
start || {
    echo 'the engine did not start, trying again with the vfs storage driver' >&2
    kill "$engine" 2>/dev/null || true
    wait "$engine" 2>/dev/null || true
    rm -f "$home/pid" "$home/docker.sock"
    start --storage-driver vfs || fail 'the Docker engine cannot start on this machine'
}
echo "Docker engine $(docker version --format '{{.Server.Version}}') answers at $DOCKER_HOST"
"$@"
