"""Other ways to start the same model: a plain vLLM server, llama.cpp's server. From the start of the process to the
first streamed token."""

from __future__ import annotations

import contextlib
import sys
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path

from benchmarks._processes import ROOT, accepts, free_port, running
from benchmarks._stream import Stream, ask

NAME = "model"
LLAMA_SERVER = ROOT / ".venv-llamacpp" / "bin" / "llama-server"
"""Put there by ``tests/llamacpp/setup.sh``."""

_WITHIN_S = 300.0


def stock_vllm(folder: Path, model: Path, dtype: str, slots: int, context: int) -> Stream:
    port = free_port()
    argv = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model), "--dtype", dtype]
    argv += ["--served-model-name", NAME, "--host", "127.0.0.1", "--port", str(port), "--enforce-eager"]
    argv += ["--max-num-seqs", str(slots), "--max-model-len", str(context)]
    env = {"VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "TMPDIR": str(folder)}
    return _start("vllm", argv, folder, port, env)[0]


def llama_cpp(folder: Path, gguf: Path, slots: int, context: int) -> tuple[Stream, float]:
    """The answer, and the seconds until it said that the model is loaded: its wheel computes without AVX, so the first
    token says little about how it starts."""
    port = free_port()
    argv = [str(LLAMA_SERVER), "-m", str(gguf), "--host", "127.0.0.1", "--port", str(port)]
    argv += ["-c", str(context * slots), "-np", str(slots), "-t", "2"]
    return _start("llama.cpp", argv, folder, port, {})


def _start(name: str, argv: Sequence[str], folder: Path, port: int, env: dict[str, str]) -> tuple[Stream, float]:
    """Asked again until it answers: a port may be open before the model is there."""
    start = time.perf_counter()
    with running(name, argv, folder, env=env) as program:
        while True:
            program.alive()
            if accepts(port) and _healthy(port):
                asked = time.perf_counter() - start
                stream = ask(port, NAME)
                stream.first_token_s += asked
                return stream, asked
            if time.perf_counter() - start > _WITHIN_S:
                raise TimeoutError(f"{name} does not answer after {_WITHIN_S:.0f} s:\n{program.tail()}")
            time.sleep(0.01)


def _healthy(port: int) -> bool:
    with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as answer:
        return bool(answer.status == 200)  # 503 while the model is loaded
    return False


def full_precision(quantised: Path, target: Path, kind: str) -> Path:
    """A GGUF whose weights are ``kind`` (``F32``, ``BF16``), from one that is quantised: for llama.cpp at the precision
    of the others. Vectors stay float32, as llama.cpp's own converter leaves them."""
    import gguf
    from gguf.quants import dequantize, quantize

    reader = gguf.GGUFReader(quantised)
    architecture = reader.fields["general.architecture"].contents()
    writer = gguf.GGUFWriter(target, architecture)
    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name in ("general.architecture", "general.file_type"):
            continue
        first = field.types[0]
        writer.add_key_value(field.name, field.contents(), first, field.types[-1] if len(field.types) > 1 else None)
    wanted = gguf.GGMLQuantizationType[kind]
    for tensor in reader.tensors:
        values = dequantize(tensor.data, tensor.tensor_type).astype("float32")
        if values.ndim == 1:
            writer.add_tensor(tensor.name, values)
        else:
            writer.add_tensor(tensor.name, quantize(values, wanted), raw_dtype=wanted)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target
