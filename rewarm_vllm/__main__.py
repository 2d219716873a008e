"""``python -m rewarm_vllm MODEL [--store DIR] [--name NAME] [--flavour packed|sharded] [vLLM's own options]``: capture.

vLLM's options (``--dtype``, ``--max-model-len``, ``--quantization``, …) have to be those of the engines that will load
the snapshot: a fingerprint holds them to it.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path

from rewarm_vllm.job import CaptureJob
from rewarm_vllm.options import LOAD_FORMAT, LoadOptions
from snapshots import DEFAULT_FLOOR_BYTES, Flavour, Store, idle_io


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m rewarm_vllm", description=__doc__, allow_abbrev=False)
    parser.add_argument("model", type=Path, help="the checkpoint's folder")
    parser.add_argument("--store", help="the store's folder; by default REWARM_SNAPSHOTS, then the user's")
    parser.add_argument("--name", help="the model's name in the store; by default the folder's")
    parser.add_argument(
        "--flavour", action="append", choices=("packed", "sharded"), help="by default both, compiled: sharded"
    )
    parser.add_argument("--floor", type=int, default=DEFAULT_FLOOR_BYTES, help="bytes that stay free on the disk")
    parser.add_argument("--low-priority", action="store_true", help="processor and disk go to everybody else first")
    ours, vllms = parser.parse_known_args(argv)
    if ours.low_priority:
        os.nice(19)
        idle_io()
    # One process, one thread group: the engine is the capture.
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    with tempfile.TemporaryDirectory(prefix="rewarm-vllm-") as folder:
        os.environ["TMPDIR"] = folder  # vLLM leaves its rendezvous files behind
        tempfile.tempdir = None  # computed once and kept by Python: ask again
        return _capture(ours, vllms)


def _capture(ours: argparse.Namespace, vllms: list[str]) -> int:
    store = Store(LoadOptions(store=ours.store).store_root, floor_bytes=ours.floor)
    from vllm.engine.arg_utils import EngineArgs
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    from rewarm_vllm.compiled import compiles
    from rewarm_vllm.engine import run

    options = EngineArgs.add_cli_args(FlexibleArgumentParser(prog="python -m rewarm_vllm"))
    options.set_defaults(enforce_eager=True)
    args = options.parse_args([*vllms, "--model", str(ours.model), "--load-format", LOAD_FORMAT])
    config = EngineArgs.from_cli_args(args).create_engine_config()
    wanted = ours.flavour or (["sharded"] if compiles(config) else ["packed", "sharded"])
    job = CaptureJob(store, ours.name or ours.model.absolute().name, frozenset(map(Flavour, wanted)))
    for manifest in run(job, config):
        made = {"id": manifest.snapshot_id, "bytes": manifest.total_bytes, "phases_s": manifest.measured.phases_s}
        sys.stdout.write(json.dumps(made) + "\n")
    return 0


if __name__ == "__main__":
    status = main(sys.argv[1:])
    sys.stdout.flush()
    os._exit(status)  # interpreter teardown with torch and vLLM loaded takes a second, and nothing of it matters
