"""The lead's side: an ordinary process on the link's host that asks all silos.

It opens a run at the link over Flower's Control API, takes the run's task over the Runtime API, as
Flower's own ServerApp process would, and sends and collects messages itself.
"""

import json
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from threading import Event, Thread
from time import monotonic, sleep, time
from typing import NamedTuple, Self

import httpx
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicNumbers
from flwr.app import Metadata
from flwr.app.message import make_message
from flwr.common.constant import SUPERLINK_NODE_ID, SubStatus
from flwr.common.serde import message_from_proto
from flwr.proto.control_pb2 import StartRunRequest
from flwr.proto.fab_pb2 import Fab
from flwr.proto.message_pb2 import Message as ProtoMessage
from flwr.proto.message_pb2 import ObjectTree
from flwr.proto.node_pb2 import Node, NodeInfo
from flwr.proto.runtime_pb2 import (
    AcquireTaskRequest,
    GetNodesRequest,
    PullAppMessagesRequest,
    PullTaskInputRequest,
    PushAppMessagesRequest,
    PushAppMessagesResponse,
    PushTaskOutputRequest,
    SendTaskHeartbeatRequest,
)
from flwr.supercore.constant import TaskType
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.interceptors import RuntimeTokenHttpInterceptor, SuperExecAuthHttpInterceptor
from flwr.supercore.primitives.asymmetric import bytes_to_public_key
from flwr.supercore.protobuf.client import (
    ProtobufCall,
    ProtobufClientInterceptor,
    ProtobufRequestContext,
)
from flwr.supercore.runtime import RuntimeHttpClient

from equipoise.errors import EquipoiseError, require
from equipoise.fleets.flower.wire import (
    KIND,
    Caller,
    Request,
    Response,
    RunOver,
    Unknown,
    confirm,
    content,
    data_of,
    is_ours,
    pull,
    push,
)
from equipoise.fleets.keys import node_key
from equipoise.fleets.link import LinkDown, LinkRefused, MissingSilo, Say, pause

PATIENCE = 40.0  # seconds; a link notices after 20 that a silo has died
TELL = 10.0  # seconds; a link takes a lead for dead after 60
VALID = 30 * 86400.0  # seconds that a message may wait for its answer
ASKS = 8  # times that one question is asked of a silo that is there
ACQUIRE = "/flwr.proto.Runtime/AcquireTask"
BUNDLE = """
[project]
name = "equipoise-federation"
version = "1"
[tool.flwr.app]
publisher = "equipoise"
[tool.flwr.app.components]
serverapp = "nothing:here"
clientapp = "nothing:here"
"""


class Place(NamedTuple):
    """Where a link is, as its folder tells a lead."""

    socket: str
    """ADDRESS:PORT on this machine."""
    name: str
    """What its certificate is for."""
    ca: bytes
    secret: bytes
    """What makes a process the lead: whoever reads it may ask."""


def place_of(folder: Path) -> Place:
    """Read a link's folder."""
    try:
        address = json.loads((folder / "address.json").read_text())
        ca, secret = (folder / "ca.pem").read_bytes(), (folder / "lead.secret").read_bytes()
        return Place(address["socket"], address["name"], ca, secret)
    except OSError as error:
        raise EquipoiseError(
            f"link={folder} is not the folder of a link ({error.strerror}): "
            "`equipoise federation link` makes it, on the lead's machine"
        ) from None


@dataclass
class _Silo:
    """How far one silo is with a question."""

    name: str
    seen: float
    """When it was there last."""
    message_id: str = ""
    activated: str = ""
    """When the process came that was asked; another one has not heard the question."""
    asks: int = 0
    answer: bytes | None = None


class FlowerLink:
    """A link whose folder is on this machine, and the silos of an agreement: their names and
    public node keys, in its order. It is a context manager, which ends the run at the link."""

    def __init__(
        self, folder: Path, silos: Mapping[str, str], say: Say, patience: float = PATIENCE
    ) -> None:
        self._place, self._say, self._patience = place_of(folder), say, patience
        self._names = {node_key(text).public_numbers(): name for name, text in silos.items()}
        require(len(self._names) == len(silos), "silos: two of them have the same node key")
        self._call = Caller(f"{folder}", say)
        self._run: _Run | None = None
        self._away: set[str] = set()
        self._strangers: set[str] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self._end(SubStatus.FAILED if kind else SubStatus.COMPLETED)

    def _end(self, status: str) -> None:
        if self._run:
            self._run.close(status)
        self._run = None

    def ask(self, question: bytes) -> list[bytes]:
        """The answers of all silos. A silo that works for long is waited for as long as its
        process lives; one that is not there for `patience` seconds is missing. A run that the link
        has lost is begun again, and its silos are asked again."""
        begun, ends = monotonic(), 0
        silos = [_Silo(name, begun) for name in self._names.values()]
        while waiting := [silo for silo in silos if silo.answer is None]:
            try:
                self._run = self._run or _Run(self._place, self._call, self._patience)
                self._send(self._run, question, waiting)
                self._collect(self._run, waiting)
            except (Unknown, RunOver):
                ends += 1
                if ends > ASKS:
                    raise LinkDown(f"link={self._call.link} ends every run: see its log") from None
                self._say(f"link {self._call.link} has lost the run: it is begun again")
                self._end(SubStatus.FAILED)
                for silo in waiting:
                    silo.message_id = ""
            self._stop_if_missing(waiting)
            if any(silo.answer is None for silo in silos):
                sleep(pause(monotonic() - begun))
        return [silo.answer for silo in silos if silo.answer is not None]

    def _send(self, run: "_Run", question: bytes, waiting: list[_Silo]) -> None:
        """Ask the silos that are there and have not heard the question."""
        nodes = self._nodes(run)
        for silo in waiting:
            if node := nodes.get(silo.name):
                silo.seen = monotonic()
                if not silo.message_id or silo.activated != node.last_activated_at:
                    silo.message_id = run.send(question, node.node_id)
                    silo.activated = node.last_activated_at
                    silo.asks += 1

    def _collect(self, run: "_Run", waiting: list[_Silo]) -> None:
        asked = {silo.message_id: silo for silo in waiting if silo.message_id}
        for message_id, data in run.replies(list(asked)):
            if silo := asked.get(message_id):
                silo.answer, silo.message_id = data, ""  # without an answer it is asked again

    def _nodes(self, run: "_Run") -> dict[str, NodeInfo]:
        """The silos of the agreement that are connected, each known by its key."""
        silos = {}
        for node in run.nodes():
            name = self._names.get(_numbers(node))
            if name is not None:
                silos[name] = node
            elif node.name in self._names.values():
                raise LinkRefused(
                    f"silo={node.name}: the link knows it by another key than the agreement: "
                    "start the link with the .pub files of the agreement"
                )
            elif node.name not in self._strangers:
                self._strangers.add(node.name)
                self._say(f"{node.name} is connected but not in the agreement: not asked")
        return silos

    def _stop_if_missing(self, waiting: list[_Silo]) -> None:
        now = monotonic()
        away = [silo for silo in waiting if now - silo.seen > 1]
        missing = [silo.name for silo in away if now - silo.seen > self._patience]
        useless = [silo.name for silo in waiting if silo.asks > ASKS]
        if missing:
            raise MissingSilo(
                missing,
                f"silo={', '.join(missing)}: not connected to link {self._call.link} for "
                f"{self._patience:.0f} seconds: the round stops here, since it needs every silo; "
                "when it is there again, run the same command again",
            )
        if useless:
            raise MissingSilo(
                useless,
                f"silo={', '.join(useless)}: asked {ASKS} times without an answer: the round stops "
                "here; its operator sees why on its terminal",
            )
        for silo in waiting:
            if (silo in away) != (silo.name in self._away):
                self._away ^= {silo.name}
                self._say(f"{silo.name} is {'not connected: waiting' if silo in away else 'back'}")


def _numbers(node: NodeInfo) -> EllipticCurvePublicNumbers:
    return bytes_to_public_key(node.public_key).public_numbers()


class _Run:
    """A run at a link, in which silos can be asked."""

    def __init__(self, place: Place, call: Caller, patience: float) -> None:
        self._place, self._patience = place, patience
        self._calls = call
        self._node = Node(node_id=SUPERLINK_NODE_ID)
        self.run_id, token = self._begin()
        self._client = self._runtime(RuntimeTokenHttpInterceptor(token))
        self._call(self._client.PullTaskInput, PullTaskInputRequest())
        self._over = Event()
        self._heart = Thread(target=self._beat, daemon=True)
        self._heart.start()

    def _call(self, call: Callable[[Request], Response], request: Request) -> Response:
        return self._calls(call, request, self._patience)

    def _runtime(self, *interceptors: ProtobufClientInterceptor) -> RuntimeHttpClient:
        named = _Named(self._place.name)
        return RuntimeHttpClient.from_server_address(
            self._place.socket, False, self._place.ca, [named, *interceptors]
        )

    def _begin(self) -> tuple[int, str]:
        """Start a run and take its task; tasks of runs that nobody leads are ended."""
        bundle = _bundle()
        fab = Fab(hash_str=sha256(bundle).hexdigest(), content=bundle)
        named = _Named(self._place.name)
        with ControlHttpClient.from_server_address(
            self._place.socket, False, self._place.ca, [named]
        ) as control:
            run_id = self._call(control.StartRun, StartRunRequest(fab=fab)).run_id
        proof = SuperExecAuthHttpInterceptor(
            master_secret=self._place.secret, protected_methods={ACQUIRE}
        )
        with self._runtime(proof) as client:
            want = AcquireTaskRequest(supported_task_types=[TaskType.SERVER_APP])
            while True:
                task = self._call(client.AcquireTask, want)
                if not task.token:
                    raise Unknown
                if task.task.run_id == run_id:
                    return run_id, task.token
                with self._runtime(RuntimeTokenHttpInterceptor(task.token)) as other:
                    self._call(other.PushTaskOutput, _output(SubStatus.FAILED))

    def _beat(self) -> None:
        while not self._over.wait(TELL):
            with suppress(httpx.HTTPError, ValueError):  # whoever asks next finds out
                self._client.SendTaskHeartbeat(SendTaskHeartbeatRequest())

    def nodes(self) -> list[NodeInfo]:
        return list(self._call(self._client.GetNodes, GetNodesRequest()).nodes)

    def send(self, data: bytes, node_id: int) -> str:
        """Ask a node; returns the message's id."""
        metadata = Metadata(
            run_id=self.run_id,
            message_id="",
            src_node_id=SUPERLINK_NODE_ID,
            dst_node_id=node_id,
            reply_to_message_id="",
            group_id="",
            created_at=time(),
            ttl=VALID,
            message_type=KIND,
        )
        message = make_message(metadata, content(data))
        return self._call(partial(push, self._client, self._node, self._announce), message)

    def _announce(self, head: ProtoMessage, tree: ObjectTree) -> PushAppMessagesResponse:
        return self._client.PushMessages(
            PushAppMessagesRequest(messages_list=[head], message_object_trees=[tree])
        )

    def replies(self, message_ids: list[str]) -> Iterator[tuple[str, bytes | None]]:
        """What has come for these messages: their ids, and the answers; None says that this
        message will get none."""
        if not message_ids:
            return
        request = PullAppMessagesRequest(message_ids=message_ids)
        pulled = self._call(self._client.PullMessages, request)
        for head, tree in zip(pulled.messages_list, pulled.message_object_trees, strict=True):
            reply = message_from_proto(head)
            data = None
            if not reply.has_error() and is_ours(tree):
                whole = self._call(partial(pull, self._client, self._node, reply), tree)
                data = data_of(whole) if whole else None
            self._call(partial(confirm, self._client, self._node, reply), tree)
            yield reply.metadata.reply_to_message_id, data

    def close(self, status: str) -> None:
        """End the run at the link, if that is still there."""
        self._over.set()
        self._heart.join()
        with suppress(httpx.HTTPError):
            self._client.PushTaskOutput(_output(status))
        self._client.close()


def _output(status: str) -> PushTaskOutputRequest:
    return PushTaskOutputRequest(sub_status=status, details="")


class _Named:
    """Connects to the socket of a link on this machine, and expects the certificate of its name."""

    def __init__(self, name: str) -> None:
        self._name = name

    def intercept(self, context: ProtobufRequestContext, call_next: ProtobufCall) -> httpx.Response:
        context.request.extensions["sni_hostname"] = self._name
        return call_next(context)


def _bundle() -> bytes:
    """An app in name only, without which a link begins no run. Nobody fetches or runs it."""
    packed = BytesIO()
    with zipfile.ZipFile(packed, "w") as bundle:
        bundle.writestr(zipfile.ZipInfo("pyproject.toml"), BUNDLE)
    return packed.getvalue()
