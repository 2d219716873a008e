from __future__ import annotations

import os
import sys

from worker.engines.host import run_host
from worker.engines.torch.host import serve

if __name__ == "__main__":
    status = run_host(serve, sys.argv)
    # The thread that computes is in the middle of something, and interpreter teardown with torch takes its time.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
