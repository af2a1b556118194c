"""Bytes as Flower messages, and back: what both ends share.

A message of ours holds one ConfigRecord with one value, the bytes. Flower sends it as three
objects, one HTTP request each.
"""

import ssl
from collections.abc import Callable
from pathlib import Path
from time import monotonic, sleep
from typing import Any, Protocol, TypeVar

import httpx
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.app.message import remove_content_from_message
from flwr.common.serde import message_to_proto
from flwr.proto.message_pb2 import (
    ConfirmMessageReceivedRequest,
    ConfirmMessageReceivedResponse,
    ObjectTree,
    PullObjectRequest,
    PullObjectResponse,
    PushObjectRequest,
    PushObjectResponse,
)
from flwr.proto.message_pb2 import Message as ProtoMessage
from flwr.proto.node_pb2 import Node
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_protobuf_utils import (
    make_pull_object_fn_protobuf,
    make_push_object_fn_protobuf,
)
from flwr.supercore.inflatable.inflatable_utils import (
    inflate_object_from_contents,
    pull_objects,
    push_objects,
)

from equipoise.errors import EquipoiseError
from equipoise.fleets.link import LinkDown, LinkRefused, Say, pause

KIND, RECORD, VALUE = "query", "equipoise", "bytes"
OBJECTS = 3  # message, RecordDict, ConfigRecord
FIRST_WAIT = 0.05  # seconds until an object is asked for again; Flower's own is a second

Request = TypeVar("Request")
Response = TypeVar("Response")


class Client(Protocol):
    """What the clients of the Fleet and of the Runtime API have in common."""

    def PushObject(self, request: PushObjectRequest) -> PushObjectResponse: ...  # noqa: N802
    def PullObject(self, request: PullObjectRequest) -> PullObjectResponse: ...  # noqa: N802
    def ConfirmMessageReceived(  # noqa: N802
        self, request: ConfirmMessageReceivedRequest
    ) -> ConfirmMessageReceivedResponse: ...


class Pushed(Protocol):
    """What a link says to a message: which objects of it it wants."""

    @property
    def session_id(self) -> str: ...
    @property
    def objects_to_push(self) -> Any: ...


class Unknown(Exception):
    """The link does not know who asks: another database, a finished run, a key taken away."""


class RunOver(Exception):
    """The run that a message belongs to is over."""


class Refused(Exception):
    """The link says no for a reason of its own; the HTTP status says which."""

    def __init__(self, status: int) -> None:
        super().__init__(f"HTTP status {status}")
        self.status = status


def content(data: bytes) -> RecordDict:
    return RecordDict({RECORD: ConfigRecord({VALUE: data})})


def data_of(message: Message) -> bytes | None:
    """The bytes of a message of ours; None of any other."""
    if not message.has_content() or list(message.content) != [RECORD]:
        return None
    record = message.content[RECORD]
    if not isinstance(record, ConfigRecord) or list(record) != [VALUE]:
        return None
    data = record[VALUE]
    return data if isinstance(data, bytes) else None


def is_ours(tree: ObjectTree) -> bool:
    """Whether a message has the shape of ours; of another, nothing is fetched."""
    return len(list(iterate_object_tree(tree))) == OBJECTS


def push(
    client: Client,
    node: Node,
    announce: Callable[[ProtoMessage, ObjectTree], Pushed],
    message: Message,
) -> str:
    """Send a message: first its head, by `announce`, then what the link lacks of it. Returns its
    id. The same message may be sent again, if a connection broke on the way."""
    with no_object_id_recompute():
        message.metadata.__dict__["_message_id"] = message.object_id
        head = message_to_proto(remove_content_from_message(message))
        pushed = announce(head, get_object_tree(message))
        run_id = message.metadata.run_id
        push_objects(
            get_all_nested_objects(message),
            make_push_object_fn_protobuf(client.PushObject, node, run_id, pushed.session_id),
            object_ids_to_push=set(pushed.objects_to_push),
        )
        return message.object_id


def pull(client: Client, node: Node, head: Message, tree: ObjectTree) -> Message | None:
    """What a message holds; None if the link has lost it, or if it is not what it says. It may be
    fetched again until it is confirmed."""
    fetch = make_pull_object_fn_protobuf(client.PullObject, node, head.metadata.run_id)
    try:
        ids = [part.object_id for part in iterate_object_tree(tree)]
        objects = pull_objects(ids, fetch, initial_backoff=FIRST_WAIT)
        message = inflate_object_from_contents(tree.object_id, objects)
    except httpx.HTTPError:
        raise
    except Exception:  # a message may be made to break whoever reads it
        return None
    if not isinstance(message, Message):
        return None
    message.metadata.__dict__["_message_id"] = head.metadata.message_id
    return message


def confirm(client: Client, node: Node, head: Message, tree: ObjectTree) -> None:
    """Let the link forget a message."""
    client.ConfirmMessageReceived(
        ConfirmMessageReceivedRequest(
            node=node, run_id=head.metadata.run_id, message_object_id=tree.object_id
        )
    )


def read_ca(path: Path | None) -> bytes | None:
    """The certificates that vouch for a link; None for those that this machine trusts anyway."""
    if path is None:
        return None
    try:
        pem = path.read_bytes()
        ssl.create_default_context(cadata=pem.decode("ascii"))
    except OSError as error:
        raise EquipoiseError(f"ca={path} cannot be read: {error.strerror}") from None
    except ValueError:  # no text, or no certificate: ssl's error is one, too
        raise EquipoiseError(f"ca={path} is no certificate in PEM format") from None
    return pem


class Caller:
    """Calls a link until it answers; says what it waits for, once."""

    def __init__(self, link: str, say: Say) -> None:
        self.link, self._say, self._silent = link, say, False
        self.failures = 0

    def __call__(
        self, call: Callable[[Request], Response], request: Request, patience: float | None = None
    ) -> Response:
        """The response. A link that does not answer is called again for `patience` seconds, or
        for ever, and then is LinkDown; what it refuses is Unknown, RunOver or Refused."""
        begun = monotonic()
        while True:
            try:
                response = call(request)
            except httpx.TransportError as error:
                self._refuse_another(error)
            except httpx.HTTPStatusError as error:
                self._sort(error.response.status_code)
            else:
                if self._silent:
                    self._say(f"link {self.link} answers again")
                self._silent = False
                return response
            self.failures += 1
            if not self._silent:
                self._say(f"link {self.link} does not answer: trying again")
            self._silent = True
            waited = monotonic() - begun
            if patience is not None and waited > patience:
                raise LinkDown(
                    f"link={self.link} has not answered for {waited:.0f} seconds: see that it runs "
                    "and can be reached, then start this again"
                )
            sleep(pause(waited))

    def _sort(self, status: int) -> None:
        if status == httpx.codes.UNAUTHORIZED:
            raise Unknown from None
        if status == httpx.codes.FORBIDDEN:
            raise RunOver from None
        if status < 500:
            raise Refused(status) from None

    def _refuse_another(self, error: httpx.TransportError) -> None:
        """Who answers, but not as our link does, will not do so a second later."""
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, ssl.SSLError):
            cause = cause.__cause__ or cause.__context__
        if isinstance(cause, ssl.SSLCertVerificationError):
            raise LinkRefused(
                f"link={self.link} shows a certificate that does not fit "
                f"({cause.verify_message}): give the ca.pem of this link, and the name that its "
                "certificate is for"
            ) from None
        if isinstance(cause, ssl.SSLError) and cause.reason in ("WRONG_VERSION_NUMBER",):
            raise LinkRefused(
                f"link={self.link} does not speak TLS: nothing is sent in the clear"
            ) from None
