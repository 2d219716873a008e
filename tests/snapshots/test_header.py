"""A weight file is accepted only if its tensors cover its bytes exactly once."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from snapshots import WeightsCorrupt, WeightsMissing, read_header
from snapshots.header import DTYPE_BITS, MAX_HEADER_BYTES, parse_header
from tests.depth import examples
from tests.snapshots.checkpoints import encoded, layout

TENSORS = {"a": ("BF16", [4, 8]), "b": ("F32", [3]), "empty": ("I64", [0, 5]), "scalar": ("U8", [])}
FILE = Path("model.safetensors")


def _file(tmp_path: Path, content: bytes) -> Path:
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    return path


def _problem(tmp_path: Path, content: bytes) -> WeightsCorrupt:
    with pytest.raises(WeightsCorrupt) as caught:
        read_header(_file(tmp_path, content))
    assert "model.safetensors" in str(caught.value)
    return caught.value


def test_a_whole_file(tmp_path: Path) -> None:
    header, size = layout(TENSORS)
    found = read_header(_file(tmp_path, encoded({"__metadata__": {"format": "pt"}, **header}, size)))
    assert found.tensors["a"].shape == (4, 8) and found.tensors["a"].data_bytes == 64
    assert found.metadata == {"format": "pt"}
    assert found.data_bytes == size == 64 + 12 + 0 + 1
    assert found.file_bytes == (tmp_path / "model.safetensors").stat().st_size


def test_spaces_may_pad_the_header(tmp_path: Path) -> None:
    header, size = layout(TENSORS)
    assert read_header(_file(tmp_path, encoded(header, size, pad=b" " * 100))).data_bytes == size


def test_other_padding_is_refused(tmp_path: Path) -> None:
    header, size = layout(TENSORS)
    assert "padded" in _problem(tmp_path, encoded(header, size, pad=b"\n\n")).problem


def test_a_truncated_file_names_where_it_ends(tmp_path: Path) -> None:
    header, size = layout(TENSORS)
    whole = encoded(header, size)
    error = _problem(tmp_path, whole[:-5])
    assert "truncated" in error.problem and error.offset == len(whole) - 5


def test_a_file_that_ends_in_its_header(tmp_path: Path) -> None:
    header, size = layout(TENSORS)
    error = _problem(tmp_path, encoded(header, size)[:40])
    assert "truncated" in error.problem and error.offset == 40


@pytest.mark.parametrize("content", [b"", b"\x05\x00"])
def test_too_short_for_a_length(tmp_path: Path, content: bytes) -> None:
    assert "too short" in _problem(tmp_path, content).problem


def test_an_absurd_header_length_is_not_read(tmp_path: Path) -> None:
    error = _problem(tmp_path, (MAX_HEADER_BYTES + 1).to_bytes(8, "little") + b"{}")
    assert error.offset == 0 and "no safetensors file" in error.problem


def test_trailing_bytes(tmp_path: Path) -> None:
    header, size = layout(TENSORS)
    error = _problem(tmp_path, encoded(header, size + 3))
    assert "3 bytes after the last tensor" in error.problem


def test_a_hole(tmp_path: Path) -> None:
    header, size = layout(TENSORS)
    header["b"]["data_offsets"] = [68, 80]
    header["scalar"]["data_offsets"] = [80, 81]
    header["empty"]["data_offsets"] = [80, 80]
    assert "4 bytes before tensor 'b'" in _problem(tmp_path, encoded(header, size + 4)).problem


def test_an_overlap(tmp_path: Path) -> None:
    header, size = layout(TENSORS)
    header["b"]["data_offsets"] = [60, 72]
    assert "overlaps" in _problem(tmp_path, encoded(header, size)).problem


def test_a_key_twice(tmp_path: Path) -> None:
    one = json.dumps(layout({"a": ("U8", [2])})[0])[1:-1]
    assert "twice" in _problem(tmp_path, encoded(f"{{{one},{one}}}".encode(), 2)).problem


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"dtype": "F12"}, "unknown dtype"),
        ({"dtype": ["F32"]}, "unknown dtype"),
        ({"shape": [4, 9]}, "span 64 bytes"),
        ({"shape": [4, -8]}, "list of sizes"),
        ({"shape": [True, 32]}, "list of sizes"),
        ({"shape": "4x8"}, "list of sizes"),
        ({"shape": [2**62, 2**62]}, "span 64 bytes"),
        ({"data_offsets": [64, 0]}, "not [start, stop]"),
        ({"data_offsets": [0, 64.0]}, "not [start, stop]"),
        ({"data_offsets": [0]}, "not [start, stop]"),
        ({"extra": 1}, "exactly dtype, shape and data_offsets"),
    ],
)
def test_a_wrong_entry_is_named(tmp_path: Path, change: dict[str, object], words: str) -> None:
    header, size = layout({"a": ("BF16", [4, 8])})
    header["a"].update(change)
    problem = _problem(tmp_path, encoded(header, size)).problem
    assert words in problem and "'a'" in problem


@pytest.mark.parametrize(
    "raw",
    [
        b"[]",
        b"{",
        b"{}x",
        b'{"__metadata__": 1}',
        b'{"__metadata__": {"a": 1}}',
        b'{"a": NaN}',
        b"\xff",
        b"{\xff}",
        b"{" + b'"a":[' * 100_000 + b"}",
        b'{"a": ' + b"9" * 5000 + b"}",
    ],
)
def test_no_header_at_all(tmp_path: Path, raw: bytes) -> None:
    _problem(tmp_path, encoded(raw, 0))


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(WeightsMissing, match="No such file"):
        read_header(tmp_path / "model.safetensors")


# --- properties
# ------------------------------------------------------------------------------------------------------

_shapes = st.lists(st.integers(0, 6), max_size=3)
_names = st.text(min_size=1, max_size=8).filter(lambda name: name != "__metadata__")
_tensors = st.dictionaries(
    _names, st.tuples(st.sampled_from(sorted(d for d, b in DTYPE_BITS.items() if b >= 8)), _shapes)
)


@given(_tensors, st.integers(0, 20))
def test_every_correct_file_is_accepted(tensors: dict[str, tuple[str, list[int]]], padding: int) -> None:
    header, size = layout(tensors)
    content = encoded(header, size, pad=b" " * padding)
    found = parse_header(FILE, content[8 : len(content) - size], len(content))
    assert {name: (t.dtype, list(t.shape)) for name, t in found.tensors.items()} == tensors
    assert found.file_bytes == len(content)


@given(_tensors.filter(bool), st.data())
@settings(max_examples=examples(300))
def test_a_damaged_file_is_refused_or_still_adds_up(
    tensors: dict[str, tuple[str, list[int]]], data: st.DataObject
) -> None:
    """Whatever is flipped in the header: a typed error, or an answer whose bytes still fill the file. Nothing
    else."""
    header, size = layout(tensors)
    content = encoded(header, size)
    raw = bytearray(content[8 : len(content) - size])
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    try:
        found = parse_header(FILE, bytes(raw), len(content))
    except WeightsCorrupt:
        return
    assert found.file_bytes == len(content)
    assert sum(tensor.data_bytes for tensor in found.tensors.values()) == size


@given(_tensors, st.integers(-40, 40).filter(bool))
def test_a_file_of_another_size_is_refused(tensors: dict[str, tuple[str, list[int]]], difference: int) -> None:
    header, size = layout(tensors)
    content = encoded(header, size)
    with pytest.raises(WeightsCorrupt):
        parse_header(FILE, content[8 : len(content) - size], len(content) + difference)


@given(st.binary(max_size=200))
def test_noise_is_refused(tmp_path_factory: pytest.TempPathFactory, noise: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "noise.safetensors"
    path.write_bytes(noise)
    with contextlib.suppress(WeightsCorrupt):  # nothing else may be raised
        assert read_header(path).file_bytes == len(noise)
