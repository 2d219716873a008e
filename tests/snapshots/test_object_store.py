"""An S3-compatible store: a real server (moto's), spoken to over HTTP."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import obstore
import pytest
from obstore.store import S3Store

from snapshots.capture import capture_checkpoint, weights_digest
from snapshots.errors import SourceChanged, SourceUnavailable
from snapshots.restore import verify_snapshot
from snapshots.sources import DownloadOptions, FetchOptions, fetch, open_source
from tests.snapshots.making import make_checkpoint, make_store


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    command = [sys.executable, "-W", "ignore", "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        assert server.stderr is not None
        for line in server.stderr:
            found = re.search(r"Running on (http://127\.0\.0\.1:\d+)", line)
            if found:
                break
        else:
            pytest.fail("the S3 server did not start")
        yield found[1]
    finally:
        server.kill()
        server.communicate()


@pytest.fixture
def options(endpoint: str) -> FetchOptions:
    return FetchOptions(
        download=DownloadOptions(retry_s=0.001, attempts=2),
        object_store={
            "endpoint": endpoint,
            "region": "us-east-1",
            "access_key_id": "test",
            "secret_access_key": "test",
            "virtual_hosted_style_request": False,
        },
    )


@pytest.fixture
def bucket(endpoint: str, request: pytest.FixtureRequest) -> S3Store:
    import urllib.request

    name = re.sub(r"[^a-z0-9]+", "-", request.node.name)[:50].strip("-")
    urllib.request.urlopen(urllib.request.Request(f"{endpoint}/{name}", method="PUT"))  # noqa: S310 (our own server)
    return S3Store(
        name,
        endpoint=endpoint,
        region="us-east-1",
        access_key_id="test",
        secret_access_key="test",
        client_options={"allow_http": True},
    )


def upload(bucket: S3Store, folder: Path, prefix: str) -> str:
    for path in folder.rglob("*"):
        if path.is_file():
            obstore.put(bucket, f"{prefix}/{path.relative_to(folder).as_posix()}", path.read_bytes())
    return f"s3://{bucket.config['bucket']}/{prefix}"


@pytest.mark.asyncio
async def test_a_checkpoint_from_a_bucket(bucket: S3Store, options: FetchOptions, tmp_path: Path) -> None:
    make_checkpoint(tmp_path / "checkpoint", rows=150_001)
    location = upload(bucket, tmp_path / "checkpoint", "models/tiny")
    store = make_store(tmp_path / "store")
    assert (await fetch(store, "m", location, options)).new
    assert not (await fetch(store, "m", location, options)).new
    with store.lease("m") as lease:
        assert weights_digest(lease.folder) == weights_digest(tmp_path / "checkpoint")
        verify_snapshot(lease)


@pytest.mark.asyncio
async def test_a_snapshot_from_a_bucket(bucket: S3Store, options: FetchOptions, tmp_path: Path) -> None:
    make_checkpoint(tmp_path / "checkpoint")
    there = make_store(tmp_path / "there")
    made = capture_checkpoint(there, "m", tmp_path / "checkpoint")
    location = upload(bucket, there.find("m").folder, "snapshots/m")
    store = make_store(tmp_path / "store")
    assert (await fetch(store, "m", location, options)).manifest == made


@pytest.mark.asyncio
async def test_an_object_that_is_replaced_is_noticed(bucket: S3Store, options: FetchOptions, tmp_path: Path) -> None:
    make_checkpoint(tmp_path / "checkpoint", shards=1)
    location = upload(bucket, tmp_path / "checkpoint", "m")
    source = open_source(location, options)
    listing = await source.listing()
    make_checkpoint(tmp_path / "checkpoint", shards=1, seed=2)
    upload(bucket, tmp_path / "checkpoint", "m")
    file = listing.find("model-00001-of-00001.safetensors")
    assert file is not None
    with pytest.raises(SourceChanged):
        async for _ in source.read(file, 0, 100):
            pass


@pytest.mark.asyncio
async def test_what_is_not_there_is_said(bucket: S3Store, options: FetchOptions, tmp_path: Path) -> None:
    store = make_store(tmp_path / "store")
    name = bucket.config["bucket"]
    with pytest.raises(SourceUnavailable, match="neither a snapshot"):
        await fetch(store, "m", f"s3://{name}/empty", options)
    with pytest.raises(SourceUnavailable):
        await fetch(store, "m", "s3://no-such-bucket-here/x", options)
    with pytest.raises(SourceUnavailable, match=r"gguf is not there"):
        await fetch(store, "m", f"s3://{name}/x/model.gguf", options)
    with pytest.raises(SourceUnavailable, match="write s3"):
        open_source("s3://", options)
    assert list((store.root / "fetch").iterdir()) == []
