"""A link: Flower's SuperLink, which carries messages between a lead and silos and runs nothing.

It knows the silos it was started with and no others. From other machines one reaches the Fleet
API only, where every request carries a silo's signature; the Control and Runtime APIs, which have
no accounts, answer this machine alone. App bundles are handed to nobody.
"""

import json
import logging
import os
import secrets
import signal
import socket
from collections.abc import Callable, Sequence
from ipaddress import ip_address
from logging.handlers import RotatingFileHandler
from pathlib import Path

import uvicorn
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from fastapi import FastAPI
from flwr.common.constant import (
    FLWR_INTERNAL_GRPC_CONTROL_API,
    FLWR_INTERNAL_GRPC_FLEET_API,
    HEARTBEAT_DEFAULT_INTERVAL,
    ISOLATION_MODE_PROCESS,
    NOOP_ACCOUNT_NAME,
    NOOP_FLWR_AID,
    TRANSPORT_TYPE_GRPC_RERE,
)
from flwr.server.superlink.linkstate import LinkState
from flwr.supercore.http_logging import ROUTINE_ACCESS_PATHS
from flwr.superlink.auth_plugin import NoOpControlAuthnPlugin
from flwr.superlink.cli.flower_superlink import SuperLinkLifespan
from flwr.superlink.config_loader import SuperLinkLifespanConfig
from flwr.superlink.main import create_app
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from equipoise.errors import EquipoiseError, require
from equipoise.fleets.certificates import Tls, make_certificate
from equipoise.fleets.keys import PublicKeys, node_key, write_private
from equipoise.fleets.link import Say

log = logging.getLogger("equipoise.link")
FOR_EVERYBODY = "/v1/fleet/"
BUNDLES = "/v1/fleet/get-fab"
LOG_BYTES, LOGS = 10_000_000, 5


def run_link(
    folder: Path,
    silos: Sequence[PublicKeys],
    *,
    name: str,
    port: int,
    bind: str,
    tls: Tls | None = None,
    say: Say,
    ready: Callable[[str], None] | None = None,
) -> None:
    """Run a link until SIGTERM or SIGINT. Its folder holds all that it needs and keeps; started
    again on it, it goes on. `name` is what silos call its machine; port 0 is any that is free.
    `ready` is called with the address NAME:PORT once it is up."""
    names = [silo.name for silo in silos]
    require(len(names) > 0, "silos: a link needs the .pub files of its silos")
    require(len({*names}) == len(names), f"silos={', '.join(names)}: a name stands there twice")
    os.umask(0o077)
    folder.mkdir(parents=True, exist_ok=True)
    files = tls or _own_certificate(folder, name)
    with _socket(bind, port) as listening:
        host, port = listening.getsockname()[:2]
        app = _app(folder, silos, files, host, port)
        _write_address(folder, files, host, port, name)
        _keep_log(folder / "link.log")
        link = f"[{name}]:{port}" if ":" in name else f"{name}:{port}"

        def up() -> None:
            say(f"link {link} is up for {', '.join(names)}; silos need {folder / 'ca.pem'}")
            if ready:
                ready(link)

        _serve(app, files, listening, up)
    say(f"link {link} has ended")


def _own_certificate(folder: Path, name: str) -> Tls:
    files = Tls(folder / "ca.pem", folder / "link.pem", folder / "link.key")
    return files if files.key.exists() else make_certificate(folder, name)


def _socket(bind: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in bind else socket.AF_INET
    try:
        return socket.create_server((bind, port), family=family)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise EquipoiseError(
            f"bind={bind}, port={port}: cannot listen there ({reason}): choose another port, or an "
            "address of this machine"
        ) from None


def _app(folder: Path, silos: Sequence[PublicKeys], files: Tls, host: str, port: int) -> FastAPI:
    """Flower's SuperLink with our door, without a process that runs apps."""
    secret = folder / "lead.secret"
    if not secret.exists():
        write_private(secret, secrets.token_bytes(32))
    for variable in (FLWR_INTERNAL_GRPC_CONTROL_API, FLWR_INTERNAL_GRPC_FLEET_API):
        os.environ.pop(variable, None)
    config = SuperLinkLifespanConfig(
        control_address="",
        health_server_address=None,
        host=host,
        port=port,
        insecure=False,
        certificates=(
            files.ca.read_bytes(),
            files.certificate.read_bytes(),
            files.key.read_bytes(),
        ),
        superexec_auth_secret=secret.read_bytes(),
        authn_plugin=NoOpControlAuthnPlugin(),
        event_log_plugin=None,
        fleet_event_log_plugin=None,
        enable_event_log=False,
        artifact_provider=None,
        enable_supernode_auth=True,
        fleet_api_type=TRANSPORT_TYPE_GRPC_RERE,
        fleet_api_address=None,
        simulation=False,
        ssl_ca_certfile=str(files.ca),
        ssl_certfile=str(files.certificate),
        ssl_keyfile=str(files.key),
        database=str(folder / "link.db"),
        isolation=ISOLATION_MODE_PROCESS,
        runtime_dependency_install=False,
    )
    app = create_app(config, SuperLinkLifespan)
    app.add_middleware(Door)
    _register(app.state.linkstate_factory.state(), silos)
    return app


def _register(state: LinkState, silos: Sequence[PublicKeys]) -> None:
    """The link knows exactly these silos: keys that are not among them are taken away."""
    wanted = {}
    for silo in silos:
        pem = node_key(silo.node).public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        require(pem not in wanted, f"silos={silo.name}: its node key is another silo's, too")
        wanted[pem] = silo.name
    for node in state.get_node_info():
        if node.status != "unregistered" and wanted.get(node.public_key) != node.name:
            state.delete_node(NOOP_FLWR_AID, node.node_id)
    for pem, name in wanted.items():
        if state.get_node_id_by_public_key(pem) is None:
            state.create_node(
                NOOP_FLWR_AID, NOOP_ACCOUNT_NAME, pem, HEARTBEAT_DEFAULT_INTERVAL, name=name
            )


def _write_address(folder: Path, files: Tls, host: str, port: int, name: str) -> None:
    """What the lead needs to know. It lies beside the secret, so that one folder is enough."""
    own = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    here = f"[{own}]:{port}" if ":" in own else f"{own}:{port}"
    (folder / "address.json").write_text(json.dumps({"socket": here, "name": name}) + "\n")
    if files.ca != folder / "ca.pem":
        (folder / "ca.pem").write_bytes(files.ca.read_bytes())


def _keep_log(path: Path) -> None:
    handler = RotatingFileHandler(path, maxBytes=LOG_BYTES, backupCount=LOGS)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    for name in ("equipoise.link", "flwr", "uvicorn.error"):
        logger = logging.getLogger(name)
        logger.handlers[:] = [handler]
        logger.setLevel(logging.INFO)
        logger.propagate = False


class _Server(uvicorn.Server):
    """Says when it can be reached."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._ready()


def _serve(app: FastAPI, files: Tls, listening: socket.socket, ready: Callable[[], None]) -> None:
    """Until a signal, which is no error: uvicorn raises it again for whoever came before."""
    config = uvicorn.Config(
        app,
        ssl_certfile=str(files.certificate),
        ssl_keyfile=str(files.key),
        log_config=None,
        access_log=False,  # the door keeps one
        proxy_headers=False,  # nobody may say that he is somebody else
        server_header=False,
        timeout_graceful_shutdown=2,
    )
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    try:
        _Server(config, ready).run([listening])
    except OSError as error:  # of the certificate's files; ssl's errors are such, too
        raise EquipoiseError(
            f"certificate={files.certificate}, key={files.key}: cannot be used ({error.strerror})"
        ) from None


class Door:
    """Lets other machines to the Fleet API only, and notes what is not routine."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path = scope["path"]
        if not allowed(path, scope.get("client"), scope.get("server")):
            log.warning("refused: %s to %s", path, (scope.get("client") or ["nobody"])[0])
            await send({"type": "http.response.start", "status": 403, "headers": []})
            await send({"type": "http.response.body", "body": b""})
            return

        async def noted(message: Message) -> None:
            if message["type"] == "http.response.start":
                failed = message["status"] >= 400
                if failed or path not in ROUTINE_ACCESS_PATHS:
                    client = (scope.get("client") or ["nobody"])[0]
                    log.info("%s from %s: %s", path, client, message["status"])
            await send(message)

        await self._app(scope, receive, noted)


def allowed(
    path: str, client: tuple[str, int] | None, server: tuple[str, int | None] | None
) -> bool:
    """Whether a request for `path` may come in: the Fleet API's from everywhere, others from this
    machine alone, which is where a connection comes from its own end or from the loopback."""
    if path == BUNDLES:
        return False
    if path == "/health" or path.startswith(FOR_EVERYBODY):
        return True
    if client is None:
        return False
    return ip_address(client[0]).is_loopback or (server is not None and client[0] == server[0])
