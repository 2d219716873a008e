"""A real vLLM behind the gate: how it starts, what it answers, what it refuses."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
from pathlib import Path

import pytest

from rewarm.states import LOAD_PHASES, ReplicaState
from tests.worker.vllm.hosting import Host, events, eventually, question, text_of
from worker.report import BytesReport, PhaseReport

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(300)]


def test_the_phases_come_in_order(engine: Host) -> None:
    phases = [report.phase for report in engine.reports.of(PhaseReport)]
    assert list(dict.fromkeys(phases)) == [phase for phase in LOAD_PHASES if phase is not ReplicaState.FETCHING]


@pytest.mark.parametrize("phase", [ReplicaState.STARTING, ReplicaState.INITIALISING, ReplicaState.WARMING])
def test_fractions_are_many_and_never_go_back(engine: Host, phase: ReplicaState) -> None:
    fractions = [report.fraction for report in engine.reports.of(PhaseReport) if report.phase is phase]
    assert fractions == sorted(fractions)
    assert len(set(fractions)) >= (4 if phase is ReplicaState.WARMING else 5)


def test_the_bytes_are_those_of_the_files(engine: Host, smollm2: Path) -> None:
    size = (smollm2 / "model.safetensors").stat().st_size
    reports = engine.reports.of(BytesReport)
    done = [report.done for report in reports]
    assert {report.total for report in reports} == {size}
    assert done[-1] == size and done == sorted(done)
    assert done.count(size) == 1 and len(set(done)) >= 3  # not one jump from nothing to all


def test_it_was_verified_by_a_real_answer(engine: Host) -> None:
    assert "Paris" in engine.wait_ready().answer


def test_a_plain_answer(engine: Host) -> None:
    status, answer = engine.json("/v1/chat/completions", question())
    assert status == 200 and "Paris" in answer["choices"][0]["message"]["content"]
    assert answer["model"] == "smollm2"


def test_a_streamed_answer(engine: Host) -> None:
    response, connection = engine.request("/v1/chat/completions", question(stream=True))
    with contextlib.closing(connection):
        assert response.status == 200 and response.headers["Content-Type"].startswith("text/event-stream")
        chunks = list(events(response))
    assert "Paris" in text_of(chunks) and chunks[-1] == "[DONE]" and len(chunks) > 5


def test_an_alias_is_served(engine: Host) -> None:
    status, answer = engine.json("/v1/chat/completions", question(model="small"))
    assert status == 200 and "Paris" in answer["choices"][0]["message"]["content"]


def test_a_completion(engine: Host) -> None:
    body = {"model": "smollm2", "prompt": "The capital of France is", "max_tokens": 4, "temperature": 0}
    status, answer = engine.json("/v1/completions", body)
    assert status == 200 and answer["choices"][0]["text"]


def test_fields_pass_through(engine: Host) -> None:
    status, answer = engine.json("/v1/chat/completions", question(logprobs=True, top_logprobs=3, stop=[" of"]))
    choice = answer["choices"][0]
    assert status == 200 and choice["message"]["content"] == "The capital" and choice["finish_reason"] == "stop"
    assert len(choice["logprobs"]["content"][0]["top_logprobs"]) == 3


def test_a_tool_call(engine: Host) -> None:
    parameters = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    tools = [{"type": "function", "function": {"name": "weather", "parameters": parameters}}]
    status, _ = engine.json("/v1/chat/completions", question("Hi", tools=tools))
    assert status == 200
    forced = {"type": "function", "function": {"name": "weather"}}
    body = question("How is the weather in Paris?", tools=tools, tool_choice=forced, max_tokens=64)
    status, answer = engine.json("/v1/chat/completions", body)
    assert status == 200, answer
    (call,) = answer["choices"][0]["message"]["tool_calls"]
    assert call["function"]["name"] == "weather" and isinstance(call["function"]["arguments"], str)


def test_what_vllm_refuses_it_refuses_itself(engine: Host) -> None:
    status, answer = engine.json("/v1/chat/completions", question(temperature="warm"))
    assert status == 400 and "error" in answer
    status, answer = engine.json("/v1/chat/completions", question(model="other"))
    assert status == 404


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/metrics"),
        ("GET", "/health"),
        ("GET", "/docs"),
        ("GET", "/v1/models"),
        ("GET", "/.rewarm/state"),
        ("POST", "/v1/load_lora_adapter"),
        ("POST", "/sleep"),
        ("POST", "/scale_elastic_ep"),
        ("POST", "/invocations"),
    ],
)
def test_the_engines_other_routes_are_not_reachable(engine: Host, method: str, path: str) -> None:
    response, connection = engine.request(path, {} if method == "POST" else None, method=method)
    with contextlib.closing(connection):
        assert response.status == 404
        assert json.loads(response.read())["error"]["code"] == "not_found"


def _long_stream(engine: Host) -> tuple[http.client.HTTPResponse, http.client.HTTPConnection]:
    """A stream that would take many seconds, already generating."""
    body = question("Tell me a long story.", stream=True, max_tokens=900, ignore_eos=True)
    response, connection = engine.request("/v1/chat/completions", body)
    assert response.status == 200
    assert next(events(response))
    return response, connection


def _cpu_ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def test_full_is_said_at_once_and_an_abort_frees_the_slot(engine: Host) -> None:
    streams = [_long_stream(engine) for _ in range(2)]
    try:
        response, connection = engine.request("/v1/chat/completions", question())
        with contextlib.closing(connection):
            assert response.status == 503 and response.headers["X-Rewarm-Busy"] == "full"
            assert json.loads(response.read())["error"]["code"] == "gate_busy"
    finally:
        for stream, connection in streams:
            stream.close()
            connection.close()
    eventually(lambda: engine.gate()["running"] == 0, 3, "slots are free")
    core = engine.engine_core().pid

    def rests() -> bool:
        before = _cpu_ticks(core)
        engine.reports.wait(lambda all_: False, 0.5)  # a window to measure in: 900 tokens take over 10 s
        return _cpu_ticks(core) - before <= 5

    eventually(rests, 4, "vLLM stopped generating for clients that left")
    status, answer = engine.json("/v1/chat/completions", question())
    assert status == 200 and "Paris" in answer["choices"][0]["message"]["content"]


def test_rendezvous_files_lie_in_a_folder_of_its_own(engine: Host) -> None:
    descriptors = Path(f"/proc/{engine.engine_core().pid}/fd")
    targets = [Path(os.readlink(descriptor)) for descriptor in descriptors.iterdir()]  # noqa: PTH115  # not a path: a pipe
    folders = {target.parent for target in targets if target.name == ".lock"}
    (folder,) = [folder for folder in folders if folder.name.startswith("rewarm-vllm-")]
    assert folder.stat().st_mode & 0o777 == 0o700
    assert [path.name for path in folder.iterdir() if path.name.startswith("vllm_dist_")]
    assert folder.parent == engine.temporary
    assert not list(engine.temporary.glob("vllm_dist_*")), "vLLM left a file in the shared folder"
