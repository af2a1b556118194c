"""Whole federations: link, lead and silos as processes of their own, over TLS on the loopback
address."""

import json
import subprocess
import sys

import numpy as np
import pytest
from flwr.app import Message, RecordDict
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    DeactivateNodeRequest,
    PullMessagesRequest,
    PushMessagesRequest,
)
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.message_pb2 import (
    ConfirmMessageReceivedRequest,
    PullObjectRequest,
    PushObjectRequest,
)

import equipoise
from equipoise.federation.agreement import read_agreement
from equipoise.federation.messages import read_answer
from equipoise.fleets.flower.lead import place_of
from listening import Listener
from members import wait
from problems import run_command
from real_silos import NAMES, RUN, SIZES, check_same, federation
from silo_process import ALONE
from test_flower import hostile_app, hostile_grid, throw

__all__ = ["federation"]  # a fixture
COIN = {"algorithm": "dp-scaffnew", "schedule": "coin", "p": 0.4}


@pytest.mark.slow
@pytest.mark.parametrize(
    "values",
    [
        {**RUN, **COIN, "trust": "secure-aggregation"},
        {**RUN, "unit": "record", "sampling_rate": 0.4, "local_steps": 5},
    ],
    ids=["dp-scaffnew with the coin, masked", "secret samples of records"],
)
def test_separate_processes_make_the_model_of_one(federation, values):
    check_same(federation, **values)


@pytest.mark.slow
def test_a_silo_keeps_to_itself(federation):
    """Silos with records, and a lead with a hostile app in the same link: no app is fetched, no
    process is ever started, nothing is stolen; and the run goes on as if nothing had been."""
    agreement = federation.propose(**RUN, local_steps=5)
    silos = [federation.silo(agreement, name) for name in NAMES]
    for silo in silos:
        wait(lambda silo=silo: "connected" in silo.said(), silo)
        assert not silo.listens()
    assert federation.here.members[0].listens(), "the link, by contrast"
    grid = hostile_grid(place_of(federation.folder / "hub"), hostile_app(federation.folder))
    nodes = [*grid.get_node_ids()]
    assert len(nodes) == 3
    kinds = ("train", "evaluate", "query")
    asked = [Message(RecordDict(), node, kind) for kind in kinds for node in nodes]
    throw(grid, asked)
    for silo in silos:
        wait(lambda s=silo: s.said().count("is no question of a federation") == len(kinds), silo)
    assert not [*grid.pull_messages([message.metadata.message_id for message in asked])]
    grid.close()

    lead = federation.lead(agreement, "alone")
    wait(lambda: lead.process.poll() is not None)
    assert lead.process.returncode == 0, lead.said()
    for name, silo, size in zip(NAMES, silos, SIZES, strict=True):
        wait(lambda silo=silo: silo.process.poll() is not None)
        assert "a process is started" not in silo.said()
        places = [line for line in silo.said().splitlines() if "it connects to" in line]
        assert places == [f"it connects to port {federation.here.port}"]
        assert silo.said().splitlines()[-1] == ALONE
        assert f"{size} records" in silo.said()
        assert f"{size} records" not in lead.said()
        ledger = federation.folder / name / f"{agreement.stem}.db"
        assert ledger.stat().st_mode & 0o077 == 0
    logs = "".join(path.read_text() for path in (federation.folder / "hub").glob("*.log"))
    assert "/v1/fleet/activate-node" in logs
    assert "get-fab" not in logs.lower()
    assert "GetFab" not in logs
    stolen = (federation.folder / "clinic-a" / "mine.csv").read_bytes().splitlines()[1]
    everything = b"".join(path.read_bytes() for path in (federation.folder / "hub").iterdir())
    assert stolen not in everything


# What a silo may send, by its request: all fields of the protocol that it fills. Identities, times
# and names of messages are the link's; the rest is said below.
SENT = {
    "activate-node": (ActivateNodeRequest, {"public_key", "heartbeat_interval"}),
    "deactivate-node": (DeactivateNodeRequest, {"node_id"}),
    "send-node-heartbeat": (SendNodeHeartbeatRequest, {"node", "heartbeat_interval"}),
    "pull-messages": (PullMessagesRequest, {"node"}),
    "pull-object": (PullObjectRequest, {"node", "run_id", "object_id"}),
    "confirm-message-received": (
        ConfirmMessageReceivedRequest,
        {"node", "run_id", "message_object_id"},
    ),
    "push-messages": (
        PushMessagesRequest,
        {"node", "messages_list", "message_object_trees", "clientapp_runtime_list"},
    ),
    "push-object": (
        PushObjectRequest,
        {"node", "run_id", "object_id", "object_content", "session_id"},
    ),
}
HEADERS = {
    *("host", "accept", "accept-encoding", "connection", "user-agent", "content-type"),
    *("content-length", "flwr-timestamp", "flwr-public-key", "flwr-signature"),
}


METADATA = {
    *("run_id", "message_id", "src_node_id", "dst_node_id", "reply_to_message_id", "group_id"),
    *("created_at", "ttl", "message_type"),
}


def sent_in(requests):
    """What a silo sent, of which every field is looked at: the names of its answers, which are
    their SHA-256, and the answers by name. (The link does not ask for one that it has.)"""
    kinds, names, answers = set(), [], {}
    for path, headers, body in requests:
        kind = path.removeprefix("/v1/fleet/")
        message, fields = SENT[kind]
        assert {*headers} <= HEADERS, headers
        sent = message.FromString(body)
        assert {field.name for field, _ in sent.ListFields()} <= fields
        sent.DiscardUnknownFields()
        assert sent.ByteSize() == len(body)
        kinds.add(kind)
        if kind == "push-messages":
            assert {*sent.clientapp_runtime_list} <= {0.0}, "a working time"
            (head,), (tree,) = sent.messages_list, sent.message_object_trees
            assert {field.name for field, _ in head.ListFields()} <= {"metadata", "content"}
            assert head.content.ByteSize() == 0
            assert {field.name for field, _ in head.metadata.ListFields()} <= METADATA
            ((leaf,),) = (part.children for part in tree.children)
            names.append(leaf.object_id)
        if kind == "push-object":
            start = sent.object_content.find(b"EQP1")
            if start >= 0:
                answers[sent.object_id] = sent.object_content[start:]
            else:  # the form around it, with the names of its parts
                assert len(sent.object_content) < 500
    assert {*SENT} - kinds <= {"send-node-heartbeat"}, "a short run has none"
    return names, answers


@pytest.mark.slow
def test_on_the_wire_there_are_a_round_and_a_vector_and_nothing_of_records(federation, tmp_path):
    """TLS is ended by a listener. Two silos, with other records and another number of them, get the
    same noise, and take steps too small for the lattice: what they send is the same."""
    path = federation.propose(**RUN, local_steps=5, eta=1e-30)
    agreement, there = read_agreement(path), federation.here.address
    ca = federation.folder / "hub" / "ca.pem"
    heard = [Listener(tmp_path / name, there, ca) for name in NAMES[:2]]
    with heard[0], heard[1]:
        silos = [
            federation.silo(path, name, noise="0", link=way.address, ca=str(way.ca))
            for name, way in zip(NAMES, heard, strict=False)
        ]
        silos.append(federation.silo(path, NAMES[2]))
        lead = federation.lead(path, "heard")
        wait(lambda: lead.process.poll() is not None)
        assert lead.process.returncode == 0, lead.said()
        for silo in silos:
            wait(lambda silo=silo: silo.process.poll() is not None)
    (first, some), (second, others) = (sent_in(way.requests()) for way in heard)
    assert first == second
    assert len(first) == 3  # two rounds, and the empty answer to "it is over"
    answers = {**some, **others}
    rounds = [read_answer(answers[name], agreement.digest) for name in first[:2]]
    assert [message.round for message in rounds] == [1, 2]
    for message in rounds:
        assert message.numbers.shape == (agreement.dimension,)
    everything = b"".join(stream for way in heard for stream in way.bytes())
    for word in (b"mine.csv", b"outcome", b"ledger", b"clinic"):
        assert word not in everything


@pytest.mark.slow
def test_the_same_lead_started_again_tells_the_silos_that_it_is_over(federation):
    agreement = federation.propose(**RUN, local_steps=5, seed=8)
    result = federation.train(agreement, "twice")
    again = [federation.silo(agreement, name) for name in NAMES]
    lead = federation.lead(agreement, "twice")
    wait(lambda: lead.process.poll() is not None)
    assert "holds the result of this agreement" in lead.said()
    for silo in again:
        wait(lambda silo=silo: silo.process.poll() is not None)
    assert np.array_equal(equipoise.load(federation.folder / "twice").x, result.x)


@pytest.mark.slow
def test_a_silo_that_is_over_its_cap_refuses_before_anything_leaves(federation):
    agreement = federation.propose(**{**RUN, "epsilon": 40.0}, local_steps=5)
    fresh = ["--ledger", "small.db", "--cap-epsilon", "1", "--cap-delta", "2e-5"]
    words = [agreement.name, "--key", "clinic-a.key", "--data", "clinic-a/mine.csv", *fresh]
    words += ["--link", federation.here.address, "--ca", "hub/ca.pem"]
    member = federation.here.start("refusing", "-m", "equipoise", "silo", "run", *words)
    wait(lambda: member.process.poll() is not None)
    assert member.process.returncode == 2
    assert "error: run=" in member.said()
    assert "connected" not in member.said()
    assert "Traceback" not in member.said()


def command(folder, *words):
    done = subprocess.run(
        [sys.executable, "-m", "equipoise", *words], cwd=folder, capture_output=True, text=True
    )
    assert "Traceback" not in done.stderr
    return done


@pytest.mark.slow
def test_commands_refuse_in_one_sentence(federation, monkeypatch, capsys):
    """Without a link, where none is needed to see it."""
    folder = federation.folder
    monkeypatch.chdir(folder)
    agreement = federation.propose(**RUN, local_steps=5).name
    look = ["silo", "check", agreement]
    mine = ["--data", "clinic-a/mine.csv"]
    for words, sentence in (
        (look, "silo is missing: give your key"),
        ([*look, "--silo", "clinic-x", *mine], "silo=clinic-x is not in the agreement"),
        ([*look, "--silo", "clinic-a"], "needs your own records"),
        ([*look, "--silo", "clinic-a", "--data", "no.csv"], "no.csv"),
        ([*look, "--silo", "clinic-a", *mine, "--cap-epsilon", "3"], "cap"),
        (["silo", "check", "clinic-a.pub", "--silo", "a"], "clinic-a.pub is no agreement"),
        (["federation", "lead", agreement, "--link", "nowhere", "--out", "x"], "link=nowhere"),
        (["federation", "propose", "--silos", "clinic-a.key", "--out", "y", *_settings()], "pub"),
    ):
        code, _, said = run_command(capsys, *words)
        assert code == 2, (words, said)
        assert said.startswith("error: ")
        assert said.count("\n") == 1
        assert sentence in said
    assert run_command(capsys, "keys", "new", "stranger")[0] == 0
    words = [*look, "--silo", "clinic-a", *mine, "--fellows", "stranger.pub"]
    assert "none of the agreement" in run_command(capsys, *words)[2]
    assert not (folder / "x").exists()


def _settings():
    return ["--task", "breast-cancer", "--epsilon", "2", "--clip", "1"]


@pytest.mark.slow
def test_a_proposal_by_command_is_one_by_python(federation):
    folder = federation.folder
    plan = ["--task", "csv", "--label", "outcome", "--bounds", "bounds.toml", "--epsilon", "4"]
    silos = [f"{name}.pub" for name in NAMES]
    words = [*plan, "--clip", "0.5", "--iterations", "10", "--silos", *silos, "--out", "mine.json"]
    assert command(folder, "federation", "propose", *words).returncode == 0
    document = json.loads((folder / "mine.json").read_text())
    other = json.loads(federation.propose(**RUN).read_text())
    for part in ("nonce",):
        assert document.pop(part) != other.pop(part)
    assert document == other
    assert command(folder, "federation", "propose", *words).returncode == 2  # it is there already
