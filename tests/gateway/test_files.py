"""``/v1/files``: the input and output of batches, and nothing else."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable
from typing import Any

import aiohttp
import pytest

from gateway.openai.form import read_form
from rewarm.errors import InvalidRequest
from tests.gateway.jobs_world import act
from tests.gateway.world import CONFIG, Reply, World, config

pytestmark = pytest.mark.redis

BOUNDARY = "----b"
TYPE = f"multipart/form-data; boundary={BOUNDARY}"


async def upload(
    world: World, data: bytes, headers: dict[str, str] | None = None, purpose: str = "batch", name: str = "in.jsonl"
) -> Reply:
    form = aiohttp.FormData()
    form.add_field("purpose", purpose)
    form.add_field("file", io.BytesIO(data), filename=name, content_type="application/jsonl")
    async with world.http.post(f"{world.base}/v1/files", data=form, headers=headers or {}) as answer:
        return Reply(answer.status, answer.headers, await answer.read())


async def uploaded(world: World, data: bytes, headers: dict[str, str] | None = None) -> str:
    reply = await upload(world, data, headers)
    assert reply.status == 200, reply.body
    id_: str = reply.json["id"]
    return id_


def form(*parts: tuple[str, str, bytes]) -> bytes:
    """(name, more of the header, content) of each part."""
    out = b""
    for name, more, content in parts:
        head = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"{more}\r\n\r\n'
        out += head.encode() + content + b"\r\n"
    return out + f"--{BOUNDARY}--\r\n".encode()


# --- over HTTP -------------------------------------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_a_file_is_put_looked_at_read_and_deleted(world: World) -> None:
    data = b'{"custom_id": "1"}\n' * 100_000  # more than one piece
    told = (await upload(world, data)).json
    assert told["id"].startswith("file-")
    assert (told["object"], told["bytes"], told["filename"]) == ("file", len(data), "in.jsonl")
    assert (told["purpose"], told["status"]) == ("batch", "processed")
    assert told["expires_at"] - told["created_at"] == 30 * 86400
    assert (await world.get(f"/v1/files/{told['id']}")).json == told
    content = await world.get(f"/v1/files/{told['id']}/content")
    assert content.body == data
    assert content.headers["Content-Length"] == str(len(data))
    assert content.headers["Content-Disposition"] == 'attachment; filename="in.jsonl"'
    gone = await act(world, "DELETE", f"/v1/files/{told['id']}")
    assert gone.json == {"id": told["id"], "object": "file", "deleted": True}
    for path in ("", "/content"):
        assert (await world.get(f"/v1/files/{told['id']}{path}")).code == "file_not_found"
    assert (await act(world, "DELETE", f"/v1/files/{told['id']}")).code == "file_not_found"


@pytest.mark.asyncio
async def test_files_are_listed_in_pages(world: World) -> None:
    ids = [await uploaded(world, b"x") for _ in range(3)]
    first = (await world.get("/v1/files?limit=2")).json
    assert first["object"] == "list" and first["has_more"]
    assert len(first["data"]) == 2
    second = (await world.get(f"/v1/files?limit=2&after={first['last_id']}")).json
    assert not second["has_more"]
    assert {f["id"] for f in (*first["data"], *second["data"])} == set(ids)
    assert (await world.get(f"/v1/files?after={second['last_id']}")).json["data"] == []
    unknown = await world.get("/v1/files?after=file-nope")
    assert (unknown.status, unknown.code, unknown.json["error"]["param"]) == (404, "file_not_found", "after")
    assert (await world.get("/v1/files?purpose=batch_output")).json["data"] == []
    assert (await world.get("/v1/files?limit=0")).code == "invalid_request"


@pytest.mark.asyncio
async def test_files_are_bounded_in_bytes(make_world: Any) -> None:
    text = CONFIG + "files: {max_file: 600KiB, max_bytes_per_tenant: 1MiB}\n"
    world: World = await make_world(config(text))
    await world.gateway()
    reply = await upload(world, b"x" * 700 * 1024)
    assert (reply.status, reply.code) == (413, "file_too_large")
    kept = await uploaded(world, b"x" * 600 * 1024)
    reply = await upload(world, b"x" * 600 * 1024)
    assert (reply.status, reply.code) == (507, "files_full")
    assert [f["id"] for f in (await world.get("/v1/files")).json["data"]] == [kept]
    await act(world, "DELETE", f"/v1/files/{kept}")
    await uploaded(world, b"x" * 600 * 1024)


@pytest.mark.asyncio
async def test_another_key_s_file_is_unknown(make_world: Any) -> None:
    keys = "".join(f"  - {{name: {n}, sha256: {hashlib.sha256(n.encode()).hexdigest()}}}\n" for n in ("alice", "bob"))
    world: World = await make_world(config(CONFIG + "keys:\n" + keys))
    await world.gateway()
    alice, bob = ({"Authorization": f"Bearer {name}"} for name in ("alice", "bob"))
    id_ = await uploaded(world, b"x", alice)
    for method, path in (("GET", ""), ("GET", "/content"), ("DELETE", "")):
        assert (await act(world, method, f"/v1/files/{id_}{path}", bob)).code == "file_not_found"
    assert (await world.get("/v1/files", bob)).json["data"] == []
    assert (await upload(world, b"x")).status == 401
    assert (await world.get(f"/v1/files/{id_}", alice)).status == 200


@pytest.mark.asyncio
async def test_what_is_no_upload_is_refused_and_says_why(world: World) -> None:
    async def refused(body: bytes, kind: str = TYPE) -> tuple[str, str | None]:
        reply = await world.post(body, {"Content-Type": kind}, "/v1/files")
        assert (reply.status, reply.code) == (400, "invalid_request")
        return reply.json["error"]["message"], reply.json["error"]["param"]

    reply = await upload(world, b"x", purpose="fine-tune")
    assert (reply.status, reply.json["error"]["param"]) == (400, "purpose")
    assert "'fine-tune' is not served here" in reply.json["error"]["message"]
    assert await refused(b"{}", "application/json") != await refused(form(("file", '; filename="a"', b"x")))
    assert (await refused(form(("purpose", "", b"batch"))))[1] == "file"
    assert "ends before its last boundary" in (await refused(form(("purpose", "", b"batch"))[:-8]))[0]
    assert (await world.get("/v1/files")).json["data"] == []
    assert (await act(world, "PUT", "/v1/files")).status == 405


# --- forms -----------------------------------------------------------------------------------------------------------


def test_a_form_is_read_byte_for_byte() -> None:
    data = b"\r\n--not the boundary\r\n\0\xff\n"
    read = read_form(TYPE, form(("purpose", "", b"batch"), ("file", '; filename="a b.jsonl"', data)))
    assert (read.fields, read.filename, read.data) == ({"purpose": "batch"}, "a b.jsonl", data)


def test_an_empty_file_is_a_file() -> None:
    assert read_form(TYPE, form(("file", '; filename="a"', b""))).data == b""


@pytest.mark.parametrize(
    ("given", "kept"),
    [("/etc/passwd", "passwd"), ("C:\\\\a\\\\b.jsonl", "b.jsonl"), ("", "upload"), ("x" * 300, "x" * 255)],
)
def test_a_file_s_name_is_no_path(given: str, kept: str) -> None:
    assert read_form(TYPE, form(("file", f'; filename="{given}"', b"x"))).filename == kept


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (lambda: form(("file", '; filename="a"', b"x"), ("file", '; filename="b"', b"y")), "one file at a time"),
        (lambda: form(("a", "", b"x"), ("a", "", b"y")), "there twice"),
        (lambda: form(("a", "", b"x" * 5000)), "more than 4096 bytes"),
        (lambda: form(*((f"f{n}", "", b"") for n in range(40))), "more than 32 parts"),
        (lambda: form(("a", f"; x={'y' * 5000}", b"")), "header size"),
        (lambda: form(("a", "", b"x")).replace(b"form-data", b"attachment"), "Content-Disposition"),
        (lambda: b"no form at all", "cannot be read"),
        (lambda: b"", "ends before its last boundary"),
    ],
)
def test_what_is_no_form_is_refused(body: Callable[[], bytes], said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        read_form(TYPE, body())
