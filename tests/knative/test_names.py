"""Names that manifests, controller and workers agree on."""

from __future__ import annotations

import re
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from rewarm.knative.names import hold_url, place_name, places

MODEL_NAMES = st.from_regex(r"^[A-Za-z0-9][A-Za-z0-9._:/-]{0,95}$", fullmatch=True)
DNS_1035 = re.compile(r"^[a-z]([-a-z0-9]*[a-z0-9])?$")


def test_a_model_has_one_place_for_each_replica_it_may_have() -> None:
    assert [place.name for place in places({"chat": 2, "embed": 1})] == [
        "model-chat-0",
        "model-chat-1",
        "model-embed-0",
    ]


def test_a_name_that_kubernetes_cannot_have_is_made_fit_and_stays_itself() -> None:
    assert place_name("Qwen/Qwen3-8B", 0).startswith("model-qwen-qwen3-8b-")
    assert place_name("Qwen/Qwen3-8B", 0) != place_name("qwen-qwen3-8b", 0)


@given(MODEL_NAMES, st.integers(0, 9999))
def test_any_model_has_names_that_knative_takes(model: str, index: int) -> None:
    """A Revision is named after its Service, ``-00001`` behind it, and has to stay within 63 characters."""
    name = place_name(model, index)
    assert DNS_1035.match(name)
    assert len(name) <= 52


@given(MODEL_NAMES, MODEL_NAMES)
def test_two_models_never_share_a_place(one: str, other: str) -> None:
    assert (place_name(one, 0) == place_name(other, 0)) == (one == other)


def test_the_wake_up_goes_to_the_services_address_in_the_cluster() -> None:
    url = hold_url("model-chat-0", "rewarm", "cluster.local")
    assert url == "http://model-chat-0.rewarm.svc.cluster.local/rewarm/place/hold"


def test_nothing_here_needs_a_cluster() -> None:
    folder = Path(__file__).resolve().parents[2] / "rewarm" / "knative"
    for path in folder.glob("*.py"):
        assert not re.search(r"^(import|from) (aiohttp|socket|asyncio|subprocess|urllib)", path.read_text(), re.M), path
