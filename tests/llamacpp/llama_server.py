"""llama.cpp's own HTTP server, in C++, out of the `xllamacpp` wheel: no compiler needed. Flags are llama-server's.

    .venv-llamacpp/bin/llama-server -m model.gguf --port 8080

tests/llamacpp/setup.sh installs it under that name. Like llama-server it opens its port first, answers /health with 503
while it loads, ends by SIGTERM, and exits 1 when it cannot load.
"""

import argparse
import signal
import sys
import threading

import xllamacpp


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="llama-server", allow_abbrev=False)
    parser.add_argument("-m", "--model", required=True, help="GGUF file")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8080)
    parser.add_argument("-c", "--ctx-size", type=int, default=2048, help="tokens, over all slots")
    parser.add_argument("-np", "--parallel", type=int, default=1, help="slots")
    parser.add_argument("-t", "--threads", type=int, default=2)
    parser.add_argument("-a", "--alias", action="append", default=[])
    parser.add_argument("--embedding", action="store_true")
    parser.add_argument("--seed", type=int, default=None)
    return parser.parse_args(arguments)


def main() -> int:
    asked = parse(sys.argv[1:])
    params = xllamacpp.CommonParams()
    params.model.path = asked.model
    params.hostnames = [asked.host]
    params.port = asked.port
    params.n_ctx = asked.ctx_size
    params.n_parallel = asked.parallel
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = asked.threads
    params.model_alias = set(asked.alias)
    params.embedding = asked.embedding
    params.use_jinja = True
    params.ui = False
    if asked.seed is not None:
        params.sampling.seed = asked.seed
    ended = threading.Event()
    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, lambda *_: ended.set())
    try:
        server = xllamacpp.Server(params)
    except RuntimeError as error:
        sys.stderr.write(f"llama-server: {error}\n")
        return 1
    sys.stderr.write(f"llama-server: listening on {server.listening_address}\n")
    ended.wait()
    return 0


if __name__ == "__main__":
    sys.exit(main())
