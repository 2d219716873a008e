"""Text comes out of tokens piece by piece, and all pieces together are the text of all tokens."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from worker.engines.torch.text import Detokenizer, Stopper


def of_bytes(tokens: list[int]) -> str:
    """A tokenizer whose tokens are bytes of UTF-8."""
    return bytes(tokens).decode(errors="replace")


def test_half_a_character_is_not_said() -> None:
    text = Detokenizer(of_bytes, [])
    pieces = [text.push(byte) for byte in "né".encode()]
    assert pieces == ["n", "", "é"]


def test_bytes_that_are_no_character_do_not_hold_up_the_rest_for_ever() -> None:
    text = Detokenizer(of_bytes, [])
    assert any(text.push(0x80) for _ in range(12))


@given(st.text(), st.binary(max_size=12))
def test_the_pieces_are_the_whole(said: str, prompt: bytes) -> None:
    context = of_bytes(list(prompt)).encode()  # whole characters, as prompts are
    text = Detokenizer(of_bytes, list(context))
    assert "".join([*map(text.push, said.encode()), text.finish()]) == said


def test_nothing_after_a_stop_string_is_said() -> None:
    stopper = Stopper(["END"])
    assert stopper.push("one E") == ("one ", False)
    assert stopper.push("ND two") == ("", True)


def test_what_only_begins_like_a_stop_string_is_said_after_all() -> None:
    stopper = Stopper(["END"])
    assert stopper.push("E") == ("", False)
    assert stopper.push("NO") == ("ENO", False)
    assert stopper.push("EN") == ("", False)
    assert stopper.finish() == "EN"


@given(st.text("ab", max_size=30), st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3), st.data())
def test_wherever_the_text_is_cut_the_first_stop_string_ends_it(
    said: str, stops: list[str], data: st.DataObject
) -> None:
    stopper = Stopper(stops)
    out, at, stopped = "", 0, False
    while at < len(said) and not stopped:
        size = data.draw(st.integers(1, len(said) - at))
        piece, stopped = stopper.push(said[at : at + size])
        out += piece
        at += size
    if not stopped:
        out += stopper.finish()
    assert said.startswith(out)
    assert not any(stop in out for stop in stops)
    if stopped:
        assert any(said.startswith(stop, len(out)) for stop in stops)
    else:
        assert out == said
