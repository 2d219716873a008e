#!/usr/bin/env bash
# make gpu-check: what can be checked of the GPU engine on this machine, in under ten minutes.
set -euo pipefail
cd "$(dirname "$0")/.."
python=$1

if ! nvidia-smi --list-gpus 2>/dev/null | grep -q .; then
    echo 'gpu-check: no NVIDIA GPU found (nvidia-smi lists none). Nothing was checked.'
    exit 0
fi
nvidia-smi --query-gpu=name,driver_version,memory.total,memory.used --format=csv
"$python" - <<'PY'
import torch
if not torch.cuda.is_available():
    raise SystemExit(f"gpu-check: torch {torch.__version__} sees no GPU, though nvidia-smi lists one")
PY
exec timeout 590 "$python" -m tools.gpu_check models/smollm2
