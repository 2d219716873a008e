from __future__ import annotations

import os
import sys

from worker.engines.host import run_host
from worker.engines.vllm.host import serve

if __name__ == "__main__":
    status = run_host(serve, sys.argv)
    # Interpreter teardown with torch and vLLM loaded takes a second, and nothing of it matters to anybody.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
