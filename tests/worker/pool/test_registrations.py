"""What a pool knows of models: order of use, refusals that expire, proofs that belong to the files."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from tests.worker.pool.rig import spec
from tests.worker.pool.toy import KIND
from worker.engines.hostfile import HostFile
from worker.pool.kind import key
from worker.pool.plan import ANY
from worker.pool.registrations import Registrations


def host(model: str = "m", *args: str, **fields: object) -> HostFile:
    return HostFile(replica="", agent_pid=0, spec=spec(model, *args, **fields), socket="", report="", token="")


def registered(*hosts: HostFile) -> Registrations:
    out = Registrations()
    out.replace({key(one): one for one in hosts}, KIND)
    return out


def test_what_is_one_replicas_own_is_no_part_of_the_key() -> None:
    own = {"replica": "r-1", "agent_pid": 7, "socket": "/s", "report": "/r", "token": "t", "secret": "x", "attempt": 2}
    one = msgspec.structs.replace(host(), **own, need_bytes=1, read_bytes=2, advertise="here")
    assert key(one) == key(host())
    for changed in ({"kv_bytes": 5}, {"snapshots": "/elsewhere"}, {"spec": spec("m", "--other")}):
        assert key(msgspec.structs.replace(host(), **changed)) != key(host()), changed


def test_a_touched_checkpoint_has_another_key(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("a")
    before = key(host(source=str(tmp_path)))
    (tmp_path / "tokenizer.json").write_text("ab")
    assert key(host(source=str(tmp_path))) != before


def test_a_snapshot_that_comes_or_is_written_to_makes_another_key(tmp_path: Path) -> None:
    """What is built ahead maps it, and what was proved was proved of its bytes."""
    one = msgspec.structs.replace(host(), snapshots=str(tmp_path))
    keys = [key(one)]
    folder = tmp_path / "snapshots" / "m" / "packed-1"
    folder.mkdir(parents=True)
    (folder / "weights.safetensors").write_text("w")
    keys.append(key(one))
    os.utime(folder / "weights.safetensors", (1, 1))
    keys.append(key(one))
    assert len(set(keys)) == 3
    (tmp_path / "state" / "m").mkdir(parents=True)
    (tmp_path / "state" / "m" / "packed-1.used").write_text("now")  # each load notes that; it is no change
    assert key(one) == keys[-1]


def test_the_model_that_was_used_last_comes_first() -> None:
    models = registered(host("a"), host("b"), host("c"))
    models.use(host("c"))
    assert [one.spec.model for one in models.known.values()] == ["c", "a", "b"]
    assert models.use(host("unknown")) == ANY


def test_a_catalogue_that_says_the_same_changes_nothing_and_keeps_the_order() -> None:
    models = registered(host("a"), host("b"))
    models.use(host("b"))
    assert not models.replace({key(one): one for one in (host("a"), host("b"))}, KIND)
    assert [one.spec.model for one in models.known.values()] == ["b", "a"]


def test_a_refusal_expires_or_goes_with_its_files() -> None:
    models = registered(host("a"), host("b"))
    models.refuse(key(host("a")), "lost", until=10.0)
    models.refuse(key(host("b")), "broken")
    assert models.refused(9.0) == {key(host("a")), key(host("b"))}
    assert models.refused(10.0) == {key(host("b"))}
    models.replace({key(host("b", "fixed")): host("b", "fixed")}, KIND)
    assert models.refused(10.0) == frozenset()


def test_a_proof_is_of_weights_with_these_files_and_arguments() -> None:
    models = registered(host("a"))
    models.prove(host("a"), "packed a@1")
    models.prove(host("unknown"), "packed a@1")
    assert models.proven(host("a")) == ("packed a@1",)
    assert models.proven(host("a", "--other")) == ()
    assert models.proven(host("unknown")) == ()
    models.replace({}, KIND)
    assert models.proven(host("a")) == ()


def test_other_versions_void_what_was_learnt_with_the_old_ones() -> None:
    models, name = registered(host("a")), key(host("a"))
    models.prove(host("a"), "packed a@1")
    models.refuse(name, "broken")
    models.in_parts[name] = "its snapshot was made by another version"
    models.forget_all_learnt()
    assert models.proven(host("a")) == ()
    assert models.refused(0.0) == frozenset()
    (told,) = models.reports({name: 1})
    assert (told.state, told.reason) == ("ready", "")


def test_a_proof_is_of_one_preparation() -> None:
    models = registered(host("a"), host("b"))
    models.prove(host("a"), "packed a@1")
    models.prove(host("b"), "packed b@1")
    models.unprove(key(host("a")))
    assert (models.proven(host("a")), models.proven(host("b"))) == ((), ("packed b@1",))


@pytest.mark.parametrize(("fields", "state"), [({}, "waiting"), ({"env": {"A": "1"}}, "unsuitable")])
def test_each_model_is_told_with_its_state(fields: dict[str, object], state: str) -> None:
    (told,) = registered(host("a", **fields)).reports({})
    assert (told.model, told.state, bool(told.reason)) == ("a", state, state == "unsuitable")
