"""A silo's side: one process that asks a link for questions, and answers them.

It speaks Flower's Fleet protocol itself. A stock SuperNode would run whatever app a lead submits,
report the working time, and send the text of errors.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from threading import Event, Lock, Thread
from time import monotonic, sleep

import httpx
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from flwr.app import Message
from flwr.common.serde import message_from_proto
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    DeactivateNodeRequest,
    PullMessagesRequest,
    PushMessagesRequest,
    PushMessagesResponse,
)
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.message_pb2 import Message as ProtoMessage
from flwr.proto.message_pb2 import ObjectTree, PullObjectRequest
from flwr.proto.node_pb2 import Node
from flwr.supercore.inflatable.inflatable_utils import ObjectPushError
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from equipoise.errors import require
from equipoise.fleets.flower.wire import (
    Caller,
    Refused,
    RunOver,
    Unknown,
    confirm,
    content,
    data_of,
    is_ours,
    pull,
    push,
    read_ca,
)
from equipoise.fleets.link import Answer, LinkDown, LinkRefused, Say, pause

HEARTBEAT = 10.0  # seconds, the shortest that a link allows; after two of them a silo is gone
TOLD = 4  # heartbeats are sent this often in that time
PATIENCE = 75.0  # seconds; a link forgets a dead process after 20, or 60 if it was a stock one


def to_terminal(sentence: str) -> None:
    print(sentence, file=sys.stderr, flush=True)


def serve(
    answer: Answer,
    link: str,
    ca: Path | None,
    key: EllipticCurvePrivateKey,
    *,
    hold: float = 0.0,
    patience: float = PATIENCE,
    say: Say = to_terminal,
) -> None:
    """Answer the questions that come over the link (HOST:PORT) until `answer` says that the run is
    over.

    Only what `answer` returns leaves; what it raises ends the process and stays here. An answer
    leaves when the time since its question came is a whole multiple of `hold` seconds, so that it
    does not show how long the work took. A link that is not there is waited for; one that refuses
    the key is asked again for `patience` seconds, since it does so, too, while it believes that an
    earlier process of this silo lives.
    """
    require(0 <= hold < float("inf"), f"hold={hold:g} is not a number of seconds: give 0 or more")
    with _line(link, ca, key, patience, say) as line:
        while True:
            message, question = line.question()
            begun = monotonic()
            reply = answer(question)
            if hold:
                sleep(hold - (monotonic() - begun) % hold)
            sent = line.reply(message, reply or b"")
            if reply is None:
                line.wait_until_fetched(message.metadata.run_id, sent)
                return


@contextmanager
def _line(
    link: str, ca: Path | None, key: EllipticCurvePrivateKey, patience: float, say: Say
) -> Iterator["_Line"]:
    authority = read_ca(ca)
    signs = NodeAuthHttpInterceptor(key, key.public_key())
    with FleetHttpClient.from_server_address(link, False, authority, [signs]) as client:
        line = _Line(
            client, public_key_to_bytes(key.public_key()), Caller(link, say), patience, say
        )
        line.activate()
        heart = Thread(target=line.beat, daemon=True)
        heart.start()
        try:
            yield line
        finally:
            line.end.set()
            heart.join()
            line.leave()


class _Line:
    """One silo's connection to a link: a node that is active."""

    def __init__(
        self, client: FleetHttpClient, public: bytes, call: Caller, patience: float, say: Say
    ) -> None:
        self._client, self._public, self._call = client, public, call
        self._patience, self._say = patience, say
        self.end, self.node, self._alone = Event(), Node(), Lock()

    def activate(self) -> None:
        """Tell the link that this silo is here."""
        request = ActivateNodeRequest(public_key=self._public, heartbeat_interval=HEARTBEAT)
        begun, waits = monotonic(), False
        while True:
            try:
                response = self._call(self._client.ActivateNode, request)
            except Unknown:
                raise LinkRefused(
                    f"link={self._call.link} does not accept this silo's signature: see that the "
                    "clocks of both machines are right to a minute"
                ) from None
            except (Refused, RunOver):
                waited = monotonic() - begun
                if waited > self._patience:
                    raise LinkRefused(
                        f"link={self._call.link} does not take this silo's key: ask whoever runs "
                        "it to start it with this silo's .pub file, and see that no other process "
                        "uses the key"
                    ) from None
                if not waits:
                    self._say(
                        f"link {self._call.link} does not take this silo yet: its key is not "
                        "registered, or an earlier process of it has just died, which the link "
                        f"forgets within a minute; trying for {self._patience:.0f} seconds"
                    )
                waits = True
                sleep(1.0)
            else:
                self.node = Node(node_id=response.node_id)
                self._say(f"connected to link {self._call.link}")
                return

    def beat(self) -> None:
        """Say that the process lives, until the end; the main thread may be at work for long."""
        while not self.end.wait(HEARTBEAT / TOLD):
            with self._alone, suppress(httpx.HTTPError, ValueError):  # whoever asks next finds out
                self._client.SendNodeHeartbeat(
                    SendNodeHeartbeatRequest(node=self.node, heartbeat_interval=HEARTBEAT)
                )

    def leave(self) -> None:
        """Tell the link that this silo goes, so that it need not find out."""
        with suppress(httpx.HTTPError):
            self._client.DeactivateNode(DeactivateNodeRequest(node_id=self.node.node_id))

    def question(self) -> tuple[Message, bytes]:
        """The next question, whenever it comes. Any other message is left unanswered."""
        begun = monotonic()
        while True:
            failures = self._call.failures
            try:
                if (asked := self._next()) is not None:
                    return asked
                if self._call.failures > failures:  # the link may have sent one that got lost
                    with self._alone:
                        self.leave()
                        self.activate()  # whoever asked sees that, and asks again
            except Unknown:
                self.activate()
            except RunOver:
                self._say("a question came from a run that is over: not answered")
            sleep(pause(monotonic() - begun))

    def _next(self) -> tuple[Message, bytes] | None:
        response = self._call(self._client.PullMessages, PullMessagesRequest(node=self.node))
        if not response.messages_list:
            return None
        head, tree = message_from_proto(response.messages_list[0]), response.message_object_trees[0]
        message = None
        if is_ours(tree):
            message = self._call(partial(pull, self._client, self.node, head), tree)
        self._call(partial(confirm, self._client, self.node, head), tree)
        data = data_of(message) if message else None
        if message is None or data is None:
            self._say("a message came that is no question of a federation: not answered")
            return None
        return message, data

    def reply(self, message: Message, data: bytes) -> str:
        """Send an answer, however long the link is away; if the run has ended meanwhile, it stays
        here. Returns its id."""
        answer = Message(content(data), reply_to=message)
        try:
            return self._call(partial(push, self._client, self.node, self._announce), answer)
        except (RunOver, Unknown, Refused, ObjectPushError):
            self._say("the run that asked is over: its answer stays here")
            return ""

    def wait_until_fetched(self, run_id: int, message_id: str) -> None:
        """Stay until the lead has the last answer: a link hands out none of a silo that left."""
        begun = monotonic()
        request = PullObjectRequest(node=self.node, run_id=run_id, object_id=message_id)
        with suppress(RunOver, Unknown, Refused, LinkDown):
            while message_id and (waited := monotonic() - begun) < self._patience:
                if not self._call(self._client.PullObject, request, self._patience).object_found:
                    return
                sleep(pause(waited))

    def _announce(self, head: ProtoMessage, tree: ObjectTree) -> PushMessagesResponse:
        return self._client.PushMessages(
            PushMessagesRequest(
                node=self.node,
                messages_list=[head],
                message_object_trees=[tree],
                clientapp_runtime_list=[0.0],  # how long a silo works tells how much it has
            )
        )
