"""The manifest: what was written is read back, and nothing else is accepted."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from snapshots.errors import ManifestInvalid, ManifestVersion
from snapshots.manifest import Canary, File, FileKind, Measured, encode, parse
from tests.snapshots.making import small_manifest

PATH = Path("/store/rewarm-snapshot.json")

_digests = st.binary(min_size=32, max_size=32).map(bytes.hex)
_names = st.from_regex(r"\A[A-Za-z0-9_][A-Za-z0-9._]{0,20}[A-Za-z0-9_]\Z")


@st.composite
def files(draw: st.DrawFn) -> File:
    size = draw(st.integers(0, 3 * 4096))
    chunks = draw(st.binary(min_size=16 * -(-size // 4096), max_size=16 * -(-size // 4096)))
    return File(draw(_names), draw(st.sampled_from(FileKind)), size, draw(_digests), chunks.hex())


def test_what_was_written_is_read_back() -> None:
    manifest = small_manifest(
        canary=Canary("What is the capital of France?", (1, 2, 3), "Paris"),
        measured=Measured({"weights": 5000}, {"restoring": 0.25}),
    )
    assert parse(encode(manifest), PATH) == manifest


@given(st.lists(files(), min_size=1, max_size=5, unique_by=lambda file: file.name), st.floats(0, 1e12))
def test_every_manifest_that_is_sound_survives(found: list[File], created: float) -> None:
    manifest = small_manifest(files=tuple(found), created=created)
    if manifest.weight_files:
        assert parse(encode(manifest), PATH) == manifest
    else:
        with pytest.raises(ManifestInvalid, match="no file with weights"):
            parse(encode(manifest), PATH)


@given(st.data())
def test_a_flipped_bit_is_found_wherever_it_is(data: st.DataObject) -> None:
    raw = bytearray(encode(small_manifest()))
    at = data.draw(st.integers(0, len(raw) - 1))
    raw[at] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(ManifestInvalid):
        parse(bytes(raw), PATH)


@given(st.binary(max_size=300) | st.text(max_size=200).map(str.encode))
def test_noise_is_refused_with_a_typed_error(raw: bytes) -> None:
    with pytest.raises(ManifestInvalid) as error:
        parse(raw, PATH)
    assert str(PATH) in str(error.value)


@given(st.integers(0, 1500))
def test_a_truncated_manifest_is_refused(length: int) -> None:
    raw = encode(small_manifest())
    with pytest.raises(ManifestInvalid):
        parse(raw[: min(length, len(raw) - 1)], PATH)


def test_another_version_is_named_and_refused_before_anything_else_is_looked_at() -> None:
    raw = json.dumps({"format": "rewarm-snapshot", "version": 2, "new": ["fields"]}).encode()
    with pytest.raises(ManifestVersion, match="version 2"):
        parse(raw, PATH)


def test_the_manifest_of_something_else_is_refused() -> None:
    with pytest.raises(ManifestVersion, match="other"):
        parse(b'{"format": "other", "version": 1}', PATH)


def test_a_duplicate_key_is_refused() -> None:
    raw = encode(small_manifest()).replace(b'"model": "org/model"', b'"model": "x",\n  "model": "org/model"')
    with pytest.raises(ManifestInvalid, match="damaged, or was edited") as error:
        parse(raw, PATH)
    assert error.value.offset is not None


@pytest.mark.parametrize(
    "name",
    [
        "../outside.safetensors",
        "/etc/passwd",
        "a/../../b",
        "a//b",
        ".hidden",
        "a/.hidden",
        "",
        "a\\b",
        "a\nb",
        "nul\x00",
        "trailing.",
        "a/b/c/d/e/f/g/h/i",
        "x" * 300,
        "ä.json",
    ],
)
def test_a_name_that_could_lead_elsewhere_is_refused(name: str) -> None:
    good = small_manifest()
    raw = encode(small_manifest(files=(good.files[0], msgspec.structs.replace(good.files[1], name=name))))
    with pytest.raises(ManifestInvalid, match=r"not a plain relative file name|folders deep"):
        parse(raw, PATH)


def test_two_files_of_one_name_and_a_file_that_is_also_a_folder_are_refused() -> None:
    weights, extra = small_manifest().files
    with pytest.raises(ManifestInvalid, match="there twice"):
        parse(encode(small_manifest(files=(weights, weights))), PATH)
    folder = msgspec.structs.replace(extra, name="tokenizer")
    with pytest.raises(ManifestInvalid, match="a file and a folder"):
        parse(encode(small_manifest(files=(weights, extra, folder))), PATH)


def test_a_file_that_takes_the_manifests_own_name_is_refused() -> None:
    weights, extra = small_manifest().files
    own = msgspec.structs.replace(extra, name="rewarm-snapshot.json")
    with pytest.raises(ManifestInvalid, match="names the manifest itself"):
        parse(encode(small_manifest(files=(weights, own))), PATH)


@pytest.mark.parametrize("model", ["../x", "", "-x", "a b", "x" * 97, "a\x00"])
def test_a_model_name_that_no_configuration_allows_is_refused(model: str) -> None:
    with pytest.raises(ManifestInvalid):
        parse(encode(small_manifest(model=model)), PATH)


def test_too_few_digests_are_refused() -> None:
    weights = msgspec.structs.replace(small_manifest().files[0], chunks="0f" * 16)
    with pytest.raises(ManifestInvalid, match="2 chunks"):
        parse(encode(small_manifest(files=(weights,))), PATH)


def test_the_version_follows_the_content_and_nothing_else() -> None:
    base = small_manifest()
    assert small_manifest(created=99.0, measured=Measured({"x": 1})).version == base.version
    assert base.version.startswith("portable-")
    other = msgspec.structs.replace(base.files[0], blake3="00" * 32)
    assert small_manifest(files=(other, base.files[1])).version != base.version
