"""A stand-in for Modal's servers on the loopback device: python -m tests.clusters.modal_server FOLDER.

It speaks the protocol of the installed client (``modal_proto.api_grpc.ModalClientBase``), and a function really runs,
in the client's own container entrypoint, in a process of its own. It knows about fifty calls. One that it does not
know fails with UNIMPLEMENTED, and is noted in ``FOLDER/unknown``, which the tests look at. ``FOLDER/calls`` lists all.

It runs whatever it is sent, as the user that started it: it listens on the loopback device only, and only who knows
the random token is heard [13].

It prints one line of JSON: the server's URL, the token, and where faults are asked for (see `Faults`).

What it shows of Modal is one reading of ``facts/modal.md``, the protocol files and Modal's guides; it cannot show
Modal's own checks, queues, builds, prices or texts.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import secrets
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from aiohttp import web
from grpclib import GRPCError, Status
from grpclib.const import Handler
from grpclib.server import Server
from modal._utils.grpc_utils import custom_detail_codec
from modal_proto import api_pb2
from modal_proto.api_grpc import ModalClientBase

from .modal_apps import Apps
from .modal_calls import Calls, Container
from .modal_store import Store

# What a container may ask of another's: nothing; what it may ask at all, as its own.
_OF_CONTAINERS: Final = {
    "ContainerHello",
    "ContainerHeartbeat",
    "FunctionGetInputs",
    "FunctionPutOutputs",
    "TaskResult",
    "TaskClusterHello",
}


class Faults:
    """What goes wrong on request: rules as ``{"method", "status", "times", "after", "delay"}``.

    `after` fails a call that was carried out: its answer gets lost.
    """

    def __init__(self) -> None:
        self.rules: list[dict[str, Any]] = []

    def take(self, method: str, *, after: bool) -> dict[str, Any] | None:
        """The rule that this call meets, counted down."""
        for rule in self.rules:
            if rule["method"] in (method, "*") and rule.get("after", False) is after and rule.get("times", 1) > 0:
                rule["times"] = rule.get("times", 1) - 1
                return rule
        return None


class ModalServer(Store, Apps, Calls):
    """All handlers, and the two servers around them.

    Parameters
    ----------
    folder : Path
        Holds what is stored, the containers' files and the trace.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.token_id = f"ak-{secrets.token_hex(11)}"
        self.token_secret = f"as-{secrets.token_hex(11)}"
        self.control_word = secrets.token_urlsafe(16)
        self.faults = Faults()
        self.port = 0
        self._server: Server | None = None

    def __mapping__(self) -> Mapping[str, Handler]:
        """The service as grpclib wants it: the known handlers wrapped, the others failing loudly."""
        base = _Everything().__mapping__()
        made = {}
        for path, handler in base.items():
            name = path.rpartition("/")[2]
            known = getattr(self, name, None)
            made[path] = Handler(
                self._wrapped(name, known), handler.cardinality, handler.request_type, handler.reply_type
            )
        return made

    def _wrapped(self, name: str, known: Callable[..., Any] | None) -> Callable[..., Any]:
        parameters = list(inspect.signature(known).parameters) if known is not None else []

        async def serve(stream: Any) -> None:
            container = self._caller(stream.metadata)
            if container is None and name in _OF_CONTAINERS:
                raise GRPCError(Status.PERMISSION_DENIED, f"{name} is for containers")
            self._trace("calls", f"{name}{' ' + container.id if container else ''}")
            if known is None:
                self._trace("unknown", name)
                raise GRPCError(Status.UNIMPLEMENTED, f"tests/clusters/modal_server.py does not know {name}")
            await self._fault(name, after=False)
            if parameters == ["stream"]:
                await known(stream)
                return
            request = await stream.recv_message()
            response = await (known(request, container) if len(parameters) == 2 else known(request))
            await self._fault(name, after=True)
            await stream.send_message(response)

        return serve

    def _trace(self, kind: str, line: str) -> None:
        with open(self.folder / kind, "a") as trace:
            trace.write(f"{line}\n")

    async def _fault(self, name: str, *, after: bool) -> None:
        if rule := self.faults.take(name, after=after):
            await asyncio.sleep(rule.get("delay", 0.0))
            if rule.get("status"):
                raise GRPCError(Status[rule["status"]], "a fault that was asked for")

    def _caller(self, metadata: Any) -> Container | None:
        """The container that calls; None for a client with the token.

        Raises
        ------
        GRPCError
            It is neither.
        """
        word = metadata.get("x-loop-task")
        if word is not None and (container := self.by_word.get(str(word))) is not None:
            return container
        if (
            metadata.get("x-modal-token-id") == self.token_id
            and metadata.get("x-modal-token-secret") == self.token_secret
        ):
            return None
        raise GRPCError(Status.UNAUTHENTICATED, "Token validation failed")

    # -- faults that are asked for ----------------------------------------------------

    async def _control(self, request: web.Request) -> web.Response:
        """Any of ``rules`` (see `Faults`), ``rates``, ``build`` (False: it waits), ``kill``, ``end`` and ``down``."""
        wanted = await request.json()
        if "rules" in wanted:
            self.faults.rules = wanted["rules"]
        if "build" in wanted:
            (self.building.set if wanted["build"] else self.building.clear)()
        if "rates" in wanted:
            self.rates = wanted["rates"]
        if "end" in wanted:  # what runs ends as the server says, which no container tells
            for container in [each for each in self.containers.values() if each.input is not None]:
                self._finish(container.input, _ended(**wanted["end"]))
                self.kill(container)
            await self._tell()
        if wanted.get("kill"):
            for container in list(self.containers.values()):
                if container.input is not None:
                    self.kill(container)
        if "down" in wanted:
            self._go(self._pause(wanted["down"]))
        definitions = [str(definition) for definition in self.functions.values()]
        return web.json_response(
            {
                "containers": [each.id for each in self.containers.values() if each.input is not None],
                "queued": len(self.queued),
                "crashes": sum(self.crashes.values()),
                "calls": len(self.calls),
                "functions": definitions,
                "images": list(self.images.values()),
                "dicts": [name for kind, name in self.named if kind == "di"],
                "apps": {app: about["state"] for app, about in self.apps.items()},
                "volumes": {name: self.named[kind, name] for kind, name in self.named if kind == "vo"},
                "rules": self.faults.rules,
            }
        )

    async def _pause(self, seconds: float) -> None:
        """Be away, as a network that is cut: no connection is taken, and those that stand are dropped."""
        assert self._server is not None
        self._server.close()
        await asyncio.sleep(seconds)
        await self._listen()

    # -- life -------------------------------------------------------------------------

    async def _listen(self) -> None:
        self._server = Server([self], status_details_codec=custom_detail_codec)
        await self._server.start("127.0.0.1", self.port, reuse_address=True)

    async def serve(self) -> None:
        """Listen until told to end."""
        self.open_store()
        self.open_apps()
        self.open_calls()
        app = web.Application(client_max_size=1 << 30)
        app.add_routes(self.web_routes())
        app.add_routes([web.post(f"/{self.control_word}/control", self._control)])
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.web_url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        await self._listen()
        assert self._server is not None
        assert self._server._server is not None
        self.port = self._server._server.sockets[0].getsockname()[1]  # a free one, and then kept [11]
        self.grpc_url = f"http://127.0.0.1:{self.port}"
        about = {
            "url": self.grpc_url,
            "token_id": self.token_id,
            "token_secret": self.token_secret,
            "control": f"{self.web_url}/{self.control_word}/control",
        }
        print(json.dumps(about), flush=True)
        ended = asyncio.Event()
        for signum in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(signum, ended.set)
        asyncio.get_running_loop().add_reader(sys.stdin, ended.set)  # whoever started us is gone
        await ended.wait()
        self._server.close()
        await self.end_all()
        await runner.cleanup()


def _ended(status: str, text: str) -> Any:
    return api_pb2.GenericResult(status=f"GENERIC_STATUS_{status}", exception=text)


class _Unknown:
    """Stands for a handler while the table of all calls is made."""

    async def __call__(self, stream: Any) -> None:
        raise NotImplementedError


_Everything = type(
    "_Everything", (ModalClientBase,), dict.fromkeys(ModalClientBase.__abstractmethods__, staticmethod(_Unknown()))
)


def main() -> None:
    """The command line."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    asyncio.run(ModalServer(folder.resolve()).serve())


if __name__ == "__main__":
    main()
