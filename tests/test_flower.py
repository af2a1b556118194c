"""Flower as transport, with real links and silos as processes of their own on the loopback
address; and what we rely on in Flower, which is not all meant for others.
"""

import asyncio
import inspect
import signal
import sqlite3
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from io import BytesIO
from pathlib import Path
from socketserver import BaseRequestHandler, TCPServer
from threading import Thread
from types import SimpleNamespace
from zipfile import ZipFile

import httpx
import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.proto import control_pb2, fleet_pb2, heartbeat_pb2, message_pb2, node_pb2, runtime_pb2
from flwr.proto.fab_pb2 import Fab, GetFabRequest
from flwr.server.superlink.linkstate import LinkState
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.inflatable import inflatable_utils
from flwr.supercore.interceptors import RuntimeTokenHttpInterceptor, SuperExecAuthHttpInterceptor
from flwr.supercore.protobuf.client import ProtobufClient
from flwr.supercore.run import Run
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.cli.flower_superlink import SuperLinkLifespan
from flwr.superlink.config_loader import SuperLinkLifespanConfig
from flwr.superlink.grid import HttpGrid
from flwr.superlink.main import create_app
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from equipoise.errors import InvalidValue
from equipoise.fleets.certificates import make_certificate
from equipoise.fleets.flower import lead as leading
from equipoise.fleets.flower import silo as serving
from equipoise.fleets.flower.lead import FlowerLink, place_of
from equipoise.fleets.flower.silo import serve
from equipoise.fleets.flower.superlink import Door, _app, allowed
from equipoise.fleets.flower.wire import Caller, content, data_of
from equipoise.fleets.keys import PrivateKeys, write_keys
from equipoise.fleets.link import LinkDown, LinkRefused, MissingSilo
from members import wait, world

SECRET = "Mrs Miller, 1952, HIV positive"


def floats(d):
    return np.arange(d, dtype="<f4").tobytes()


def doubled(data):
    return (2 * np.frombuffer(data, "<f4")).tobytes()


def ignore(sentence):
    pass


@contextmanager
def lead(here, names=None, **others):
    silos = {name: here.public[name] for name in names or here.names}
    with FlowerLink(here.folder / "hub", silos, others.pop("say", ignore), **others) as link:
        yield link


@pytest.fixture(scope="module")
def three(tmp_path_factory):
    """A link with three silos, which tests share that end none of them."""
    with world(tmp_path_factory.mktemp("three") / "world", "a", "b", "c") as here:
        here.link()
        for name in here.names:
            here.silo(name)
        yield here


# what we rely on in Flower


def fields(message):
    return {field.name for field in message.DESCRIPTOR.fields}


MESSAGES = [
    (fleet_pb2.ActivateNodeRequest, "public_key heartbeat_interval"),
    (fleet_pb2.ActivateNodeResponse, "node_id"),
    (fleet_pb2.DeactivateNodeRequest, "node_id"),
    (fleet_pb2.PullMessagesRequest, "node"),
    (fleet_pb2.PullMessagesResponse, "messages_list message_object_trees"),
    (
        fleet_pb2.PushMessagesRequest,
        "node messages_list message_object_trees clientapp_runtime_list",
    ),
    (fleet_pb2.PushMessagesResponse, "objects_to_push session_id"),
    (heartbeat_pb2.SendNodeHeartbeatRequest, "node heartbeat_interval"),
    (message_pb2.PushObjectRequest, "node run_id object_id object_content session_id"),
    (message_pb2.PullObjectRequest, "node run_id object_id"),
    (message_pb2.PullObjectResponse, "object_found object_available object_content"),
    (message_pb2.ConfirmMessageReceivedRequest, "node run_id message_object_id"),
    (node_pb2.NodeInfo, "node_id name public_key last_activated_at status"),
    (control_pb2.StartRunRequest, "fab"),
    (control_pb2.StartRunResponse, "run_id"),
    (runtime_pb2.AcquireTaskRequest, "supported_task_types"),
    (runtime_pb2.AcquireTaskResponse, "task token"),
    (runtime_pb2.GetNodesResponse, "nodes"),
    (runtime_pb2.PushAppMessagesRequest, "messages_list message_object_trees"),
    (runtime_pb2.PushAppMessagesResponse, "objects_to_push session_id"),
    (runtime_pb2.PullAppMessagesRequest, "message_ids"),
    (runtime_pb2.PullAppMessagesResponse, "messages_list message_object_trees"),
    (runtime_pb2.PushTaskOutputRequest, "sub_status details"),
]


@pytest.mark.parametrize(("message", "names"), MESSAGES, ids=lambda m: getattr(m, "__name__", ""))
def test_messages_of_flower_have_the_fields_that_we_fill(message, names):
    """A silo fills these and no others: what else Flower may come to ask for, it does not say."""
    missing = {*names.split()} - fields(message)
    assert not missing, f"this Flower is another one: {message.__name__} lacks {missing}"


CALLS = [
    (ProtobufClient.from_server_address, "server_address insecure root_certificates interceptors"),
    (NodeAuthHttpInterceptor.__init__, "self private_key public_key"),
    (SuperExecAuthHttpInterceptor.__init__, "self master_secret protected_methods"),
    (RuntimeTokenHttpInterceptor.__init__, "self token"),
    (inflatable_utils.pull_objects, "object_ids pull_object_fn initial_backoff"),
    (inflatable_utils.push_objects, "objects push_object_fn object_ids_to_push"),
    (inflatable_utils.inflate_object_from_contents, "object_id object_contents"),
    (create_app, "config superlink_lifespan_class"),
    (SuperLinkLifespan.__init__, "self config state_factory"),
    (LinkState.create_node, "owner_aid owner_name public_key heartbeat_interval name"),
    (LinkState.delete_node, "owner_aid node_id"),
    (LinkState.get_node_info, ""),
    (LinkState.get_node_id_by_public_key, "public_key"),
    *((getattr(FleetHttpClient, name), "self request") for name in (
        "ActivateNode", "DeactivateNode", "SendNodeHeartbeat", "PullMessages", "PushMessages",
        "PullObject", "PushObject", "ConfirmMessageReceived",
    )),
    *((getattr(RuntimeHttpClient, name), "self request") for name in (
        "AcquireTask", "PullTaskInput", "GetNodes", "PullMessages", "PushMessages", "PullObject",
        "PushObject", "ConfirmMessageReceived", "SendTaskHeartbeat", "PushTaskOutput",
    )),
    (ControlHttpClient.StartRun, "self request"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "names"), CALLS, ids=lambda c: getattr(c, "__qualname__", ""))
def test_calls_of_flower_take_what_we_give(call, names):
    taken = inspect.signature(call).parameters
    missing = {*names.split()} - {*taken}
    assert not missing, f"this Flower is another one: {call.__qualname__} lacks {missing}"
    needed = {
        name
        for name, parameter in taken.items()
        if parameter.default is parameter.empty and parameter.kind.name.endswith("KEYWORD")
    }
    assert needed - {"self"} <= {*names.split()}, f"{call.__qualname__} wants {needed}"


def test_a_link_is_configured_with_what_flower_knows():
    known = {*SuperLinkLifespanConfig.__dataclass_fields__}
    source = inspect.getsource(sys.modules["equipoise.fleets.flower.superlink"])
    given = source.partition("SuperLinkLifespanConfig(\n")[2].partition("\n    )\n")[0]
    assert {line.partition("=")[0].strip() for line in given.splitlines() if "=" in line} == known


# bytes


@pytest.mark.parametrize("d", [10**5, 10**6])
def test_questions_of_any_size_come_back_answered_by_every_silo(three, d):
    with lead(three) as link:
        for _ in range(2):
            assert link.ask(floats(d)) == [doubled(floats(d))] * 3


def test_answers_come_in_the_order_of_the_agreement(three):
    """Each silo's own answer, known by its key: `c` alone is asked here, then `b` and `c`."""
    with lead(three, ["c"]) as link:
        c_before = three.members[3].said().count("working")
        link.ask(floats(3))
        assert three.members[3].said().count("working") == c_before + 1
    sentences = []
    with lead(three, ["c", "b"], say=sentences.append) as link:
        a_before = three.members[1].said()
        assert link.ask(floats(4)) == [doubled(floats(4))] * 2
        assert three.members[1].said() == a_before
    assert sentences == ["a is connected but not in the agreement: not asked"]


def test_nobody_starts_a_process_and_nobody_touches_home(three):
    with lead(three) as link:
        link.ask(floats(10))
        assert all(member.children() == [] for member in three.members)
    assert not [*(three.folder / "home").rglob("*")]


def test_a_link_does_not_learn_how_long_a_silo_works(three):
    with lead(three) as link:
        link.ask(floats(10))
    with sqlite3.connect(three.folder / "hub" / "link.db") as database:
        times = database.execute("SELECT clientapp_runtime FROM run").fetchall()
    assert times
    assert {*times} == {(0.0,)}


def test_an_answer_is_held_until_a_multiple_of_the_holding_time(monkeypatch):
    """The silo's own clock decides, not how fast this machine is: work of 0.5 and of 1.9 seconds
    leaves two seconds after its question, work of 2.5 seconds after four."""
    clock, left = [100.0], []
    monkeypatch.setattr(serving, "monotonic", lambda: clock[0])
    monkeypatch.setattr(serving, "sleep", lambda seconds: clock.__setitem__(0, clock[0] + seconds))

    class Line:
        def question(self):
            return SimpleNamespace(metadata=SimpleNamespace(run_id=1)), b""

        def reply(self, message, data):
            left.append(clock[0])

        def wait_until_fetched(self, run_id, message_id):
            pass

    @contextmanager
    def line(*arguments):
        yield Line()

    monkeypatch.setattr(serving, "_line", line)
    works = [0.5, 1.9, 2.5]

    def answer(question):
        if not works:
            return None
        clock[0] += works.pop(0)
        return b"answer"

    serve(answer, "nowhere:1", None, None, hold=2.0)
    assert left[:3] == pytest.approx([102, 104, 108])
    with pytest.raises(InvalidValue, match="hold=-1 is not a number of seconds"):
        serve(answer, "nowhere:1", None, None, hold=-1)


# who may come in


def test_wrong_certificates_and_plain_text_are_refused(three, tmp_path):
    make_certificate(tmp_path, "localhost")
    key = three.keys["a"].node
    with pytest.raises(LinkRefused, match="certificate that does not fit"):
        serve(doubled, three.address, tmp_path / "ca.pem", key, say=ignore)
    with pytest.raises(LinkRefused, match="certificate that does not fit"):  # its name is localhost
        serve(doubled, f"127.0.0.1:{three.port}", three.folder / "hub/ca.pem", key, say=ignore)
    with pytest.raises(LinkRefused, match="certificate that does not fit"):  # those of this machine
        serve(doubled, three.address, None, key, say=ignore)
    with pytest.raises(httpx.TransportError):
        httpx.post(f"http://{three.address}/v1/fleet/pull-messages", content=b"")


def test_a_silo_sends_nothing_to_a_link_without_tls(three):
    """A server that answers in the clear learns nothing but that somebody began TLS."""
    heard = []

    class Plain(BaseRequestHandler):
        def handle(self):
            heard.append(self.request.recv(10_000))
            self.request.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

    with TCPServer(("127.0.0.1", 0), Plain) as plain:
        Thread(target=plain.handle_request).start()
        address, ca = f"localhost:{plain.server_address[1]}", three.folder / "hub/ca.pem"
        with pytest.raises(LinkRefused, match="does not speak TLS: nothing is sent in the clear"):
            serve(doubled, address, ca, three.keys["a"].node, say=ignore)
    assert heard[0][:2] == b"\x16\x03", "a TLS handshake"
    assert b"fleet" not in heard[0]


def test_unknown_keys_and_those_in_use_are_refused(three):
    write_keys(PrivateKeys.new("stranger"), three.folder)
    unknown = three.silo("stranger", "patience=1.5", ready=False)
    second = three.silo("second", "patience=1.5", key="b", ready=False)
    for member in (unknown, second):
        assert member.process.wait(60) == 1
        first, last = member.said().splitlines()
        assert "does not take this silo yet: its key is not registered, or" in first
        assert "does not take this silo's key: ask whoever runs it to start it with" in last
    with lead(three) as link:
        assert len(link.ask(floats(2))) == 3, "the silo whose key was tried works on"


def test_a_silo_with_the_key_of_another_is_not_taken_for_itself(three):
    """The agreement says who has which key; what the link believes does not matter."""
    keys = {**three.public, "b": PrivateKeys.new("b").public().node}
    with (
        FlowerLink(three.folder / "hub", keys, ignore) as link,
        pytest.raises(LinkRefused, match="silo=b: the link knows it by another key than the agr"),
    ):
        link.ask(floats(2))
    with pytest.raises(InvalidValue, match="two of them have the same node key"):
        FlowerLink(three.folder / "hub", {"a": three.public["a"], "z": three.public["a"]}, ignore)


OTHERS = ["10.1.2.3", "192.168.0.7", "2001:db8::1"]


@pytest.mark.parametrize("client", OTHERS)
def test_from_other_machines_only_silos_come_in(client):
    def may(path):
        return allowed(path, (client, 50000), ("10.9.9.9", 9092))

    assert may("/v1/fleet/pull-messages")
    assert may("/health")
    for path in ("/v1/control/start-run", "/v1/control/register-node", "/v1/runtime/acquire-task"):
        assert not may(path)
        assert allowed(path, ("127.0.0.1", 50000), ("127.0.0.1", 9092))
        assert allowed(path, (client, 50000), (client, 9092)), "this machine, by its own address"
        assert not allowed(path, None, None)
    for path in ("/docs", "/openapi.json", "/v1/fleet", "/v1/fleetx", "/v1/responses", ""):
        assert not may(path)
    assert not allowed("/v1/fleet/get-fab", ("127.0.0.1", 50000), ("127.0.0.1", 9092))


@pytest.mark.parametrize("client", OTHERS)
def test_the_door_stands_before_every_route_of_flower(client, tmp_path):
    """Whatever routes this Flower has: of all that it serves, another machine reaches the Fleet
    API, and that is closed to those without a silo's signature."""
    keys = PrivateKeys.new("a").public()
    files = make_certificate(tmp_path, "localhost")
    app = _app(tmp_path, [keys], files, "127.0.0.1", 9092)
    assert app.user_middleware[0].cls is Door
    paths = {*app.openapi()["paths"]}
    assert {"/v1/fleet/pull-messages", "/v1/control/start-run", "/v1/runtime/get-nodes"} <= paths
    transport = httpx.ASGITransport(app, client=(client, 50000))

    async def statuses():
        async with httpx.AsyncClient(transport=transport, base_url="https://link") as outside:
            return {path: (await outside.post(path)).status_code for path in paths}

    status = asyncio.run(statuses())
    inside = {path for path, code in status.items() if code != 403}
    assert inside == {p for p in paths if p.startswith("/v1/fleet/")} - {"/v1/fleet/get-fab"} | {
        "/health"
    }


def test_only_a_lead_with_the_secret_takes_a_task(three):
    place = place_of(three.folder / "hub")
    with pytest.raises(httpx.HTTPStatusError, match="401"):
        hostile_grid(place._replace(secret=b"x" * 32))


def test_whoever_is_connected_gets_no_app(three):
    """Not even with a silo's own key and signature."""
    keys = three.keys["a"].node
    with (
        FleetHttpClient.from_server_address(
            three.address,
            False,
            (three.folder / "hub/ca.pem").read_bytes(),
            [NodeAuthHttpInterceptor(keys, keys.public_key())],
        ) as client,
        pytest.raises(httpx.HTTPStatusError, match="403"),
    ):
        client.GetFab(GetFabRequest(node=node_pb2.Node(node_id=1), hash_str="0", run_id=1))


# a hostile lead

HOSTILE = """
from pathlib import Path
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


@app.train()
def train(message, context):
    stolen = "".join(path.read_text() for path in Path({folder!r}).glob("*.csv"))
    return Message(RecordDict({{"stolen": ConfigRecord({{"text": stolen}})}}), reply_to=message)
"""


def hostile_app(folder):
    """A stock app bundle whose client side sends home all tables that it finds."""
    packed = BytesIO()
    with ZipFile(packed, "w") as bundle:
        project = leading.BUNDLE.replace('clientapp = "nothing:here"', 'clientapp = "thief:app"')
        bundle.writestr("pyproject.toml", project)
        bundle.writestr("thief.py", HOSTILE.format(folder=str(folder)))
    return packed.getvalue()


def hostile_grid(place, app=b""):
    """Flower's own Grid, in a run of this app: what a ServerApp has in its hands."""
    bundle = app or leading._bundle()
    named = leading._Named(place.name)
    with ControlHttpClient.from_server_address(place.socket, False, place.ca, [named]) as control:
        run_id = control.StartRun(control_pb2.StartRunRequest(fab=Fab(content=bundle))).run_id
    proof = SuperExecAuthHttpInterceptor(
        master_secret=place.secret, protected_methods={leading.ACQUIRE}
    )
    with RuntimeHttpClient.from_server_address(
        place.socket, False, place.ca, [named, proof]
    ) as client:
        request = runtime_pb2.AcquireTaskRequest(supported_task_types=["flwr-serverapp"])
        while (task := client.AcquireTask(request)).task.run_id != run_id:
            pass  # left by another test that had no secret
    port = place.socket.rpartition(":")[2]
    grid = HttpGrid(f"localhost:{port}", root_certificates=place.ca, token=task.token)
    given = grid._runtime_client.PullTaskInput(runtime_pb2.PullTaskInputRequest())
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = given.task_id, run_id, 1
    grid.set_run(Run.create_empty(run_id))
    return grid


def throw(grid, messages):
    """Send them to the silos, which may throw one away before all of it is there."""
    for message in messages:
        with suppress(inflatable_utils.ObjectPushError):
            grid.push_messages([message])


def test_a_hostile_app_gets_nothing(three):
    (three.folder / "records.csv").write_text(SECRET)
    place = place_of(three.folder / "hub")
    grid = hostile_grid(place, hostile_app(three.folder))
    nodes = [*grid.get_node_ids()]
    assert len(nodes) == 3
    contents = [
        RecordDict(),
        RecordDict({"equipoise": ArrayRecord([np.zeros(3)])}),
        RecordDict({"equipoise": ConfigRecord({"bytes": "text"})}),
        RecordDict({"other": ConfigRecord({"bytes": b"question"})}),
        RecordDict({"equipoise": ConfigRecord({"bytes": b"1234", "more": 1})}),
        RecordDict({"equipoise": ConfigRecord(), "other": ConfigRecord()}),
    ]
    kinds = ["train", "evaluate", "query", "query.anything"]
    messages = [Message(what, node, kind) for what in contents for kind in kinds for node in nodes]
    before = [member.said().count("is no question") for member in three.members[1:4]]
    throw(grid, messages)
    each = len(messages) // 3
    for member, seen in zip(three.members[1:4], before, strict=True):
        wait(lambda m=member, s=seen: m.said().count("is no question") == s + each, member)
    assert not [*grid.pull_messages([m.metadata.message_id for m in messages])]
    grid._runtime_client.PushTaskOutput(leading._output("failed"))
    grid.close()
    with lead(three) as link:
        assert link.ask(floats(5)) == [doubled(floats(5))] * 3, "the silos work on"
    assert all(member.children() == [] for member in three.members[:4])
    log = (three.folder / "hub" / "link.log").read_text()
    assert "/v1/fleet/activate-node" in log
    asked = [line for line in log.splitlines() if "get-fab" in line]
    assert all(line.endswith("refused: /v1/fleet/get-fab to 127.0.0.1") for line in asked)
    assert len(asked) <= 1, "that of the test that asks for it by hand"
    everything = b"".join(path.read_bytes() for path in (three.folder / "hub").iterdir())
    assert SECRET.encode() not in everything


def test_what_an_answer_raises_stays_at_home(tmp_path):
    with world(tmp_path / "world", "a") as here:
        here.link()
        silo = here.silo("a")
        with lead(here, patience=2) as link, pytest.raises(MissingSilo) as missing:
            link.ask(b"fail")
        assert missing.value.silos == ("a",)
        assert silo.process.wait(20) == 1
        assert "the record of Mrs Miller" in silo.said()
        everything = b"".join(path.read_bytes() for path in (here.folder / "hub").iterdir())
        assert b"Miller" not in everything
        assert b"Miller" not in str(missing.value).encode()


# members come and go


def test_members_come_and_go(tmp_path):
    """A silo that is slow works once; one that leaves is missing, by name; one that comes back is
    asked again; a link that is killed goes on where it was; the end is heard by all."""
    with world(tmp_path / "world", "a", "b") as here, ThreadPoolExecutor(1) as pool:
        link = here.link()
        a, b = here.silo("a"), here.silo("b", "work=3")
        sentences = []
        with lead(here, say=sentences.append, patience=30) as ask:
            assert ask.ask(floats(9)) == [doubled(floats(9))] * 2
            assert a.said().count("working") == b.said().count("working") == 1

            asked = pool.submit(ask.ask, floats(8))  # the link dies while b works
            wait(lambda: b.said().count("working") == 2, b)
            link.kill()
            link = here.link()
            assert asked.result(60) == [doubled(floats(8))] * 2

            asked = pool.submit(ask.ask, floats(7))  # b ends while it works, and comes back
            seen = b.said().count("working")
            wait(lambda: b.said().count("working") > seen, b)
            assert b.end() == 0
            b = here.silo("b")
            assert asked.result(60) == [doubled(floats(7))] * 2
            assert b.end() == 0
        with lead(here, patience=2) as ask, pytest.raises(MissingSilo) as missing:
            ask.ask(floats(6))
        assert missing.value.silos == ("b",)
        assert str(missing.value).startswith("silo=b: not connected to link")
        b = here.silo("b")
        with lead(here) as ask:
            assert ask.ask(b"over") == [b"", b""]
        assert [a.process.wait(20), b.process.wait(20)] == [0, 0]
        assert link.end() == 0
        assert "has ended" in link.said()
        with lead(here, patience=0.5) as ask, pytest.raises(LinkDown, match="has not answered for"):
            ask.ask(floats(5))


@pytest.mark.slow
def test_a_silo_that_is_killed_is_missing_or_comes_back(tmp_path):
    """kill -9, about which a link must find out by itself."""
    with world(tmp_path / "world", "a", "b") as here, ThreadPoolExecutor(1) as pool:
        here.link()
        here.silo("a")
        b = here.silo("b", "work=1000")
        with lead(here) as ask:
            asked = pool.submit(ask.ask, floats(9))
            wait(lambda: "working" in b.said(), b)
            b.kill()
            b = here.silo("b", ready=False)  # refused until the link has forgotten the other
            assert asked.result(100) == [doubled(floats(9))] * 2
            assert "an earlier process of it has just died" in b.said()
            b.kill()
            start = time.monotonic()
            with pytest.raises(MissingSilo) as missing:
                ask.ask(floats(8))
            assert missing.value.silos == ("b",)
            assert time.monotonic() - start > leading.PATIENCE


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_a_link_ends_on_a_signal_and_keeps_who_may_come(tmp_path, how):
    with world(tmp_path / "world", "a", "b") as here:
        link = here.link()
        silo = here.silo("a")
        link.process.send_signal(how)
        assert link.process.wait(20) == 0
        assert link.said().splitlines()[-1] == f"link {here.address} has ended"
        here.names = ("b",)  # a's key is taken away
        link = here.link()
        wait(lambda: "does not take this silo yet" in silo.said(), silo)
        with sqlite3.connect(here.folder / "hub" / "link.db") as database:
            active = database.execute(
                "SELECT name FROM node WHERE status != 'unregistered'"
            ).fetchall()
        assert active == [("b",)]


def test_a_question_that_got_lost_on_its_way_is_asked_for_again():
    """The link believes that it has handed out what a broken connection swallowed; a silo that
    comes anew is asked anew."""
    calls = []

    class Fleet:
        def ActivateNode(self, request):  # noqa: N802
            calls.append("activate")
            return fleet_pb2.ActivateNodeResponse(node_id=7)

        def DeactivateNode(self, request):  # noqa: N802
            calls.append("leave")

        def PullMessages(self, request):  # noqa: N802
            calls.append("pull")
            if calls.count("pull") == 1:
                raise httpx.ReadError("broken")
            if calls.count("pull") == 4:
                raise InterruptedError
            return fleet_pb2.PullMessagesResponse()

    line = serving._Line(Fleet(), b"", Caller("somewhere", ignore), 1.0, ignore)
    line.activate()
    with pytest.raises(InterruptedError):
        line.question()
    assert calls == ["activate", "pull", "pull", "leave", "activate", "pull", "pull"]


def test_bytes_are_bytes():
    for data in (b"", b"\x00\xff", floats(1000)):
        message = Message.__new__(Message)
        message.__dict__.update(_content=content(data), _error=None, _metadata=None)
        assert data_of(message) == data


def test_members_die_with_their_parent(tmp_path):
    """The tests leave nothing running, whatever becomes of them."""
    script = (
        "import os, sys; sys.path.insert(0, sys.argv[1])\n"
        "from pathlib import Path; from members import Member\n"
        "member = Member(Path(sys.argv[2]), 'child', ['sleep', '1000'])\n"
        "print(member.process.pid, flush=True); os._exit(1)\n"
    )
    command = [sys.executable, "-c", script, str(Path(__file__).parent), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    stat = Path(f"/proc/{int(done.stdout)}/stat")
    wait(lambda: not stat.exists() or stat.read_text().rpartition(") ")[2][0] == "Z", seconds=20)
