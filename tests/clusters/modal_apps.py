"""The Modal stand-in's apps and functions: what is declared, recorded as it was sent."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any, Final

from google.protobuf.empty_pb2 import Empty
from grpclib import GRPCError, Status
from modal_proto import api_pb2

from .modal_store import new_id

__all__ = ["Apps"]

# Some of those of Modal's guide on regions; what it says of others is not known.
_REGIONS: Final = {"us", "us-east", "us-west", "us-central", "eu", "eu-west", "ap", "uk", "ca"}


class Apps:
    """Handlers of apps and functions."""

    def open_apps(self) -> None:
        """Start empty."""
        self.apps: dict[str, dict[str, Any]] = {}
        self.deployed: dict[str, str] = {}
        self.functions: dict[str, Any] = {}
        self.function_apps: dict[str, str] = {}
        self.handles: dict[str, Any] = {}

    async def ClientHello(self, request: Any) -> Any:
        """Only `client.hello` asks for it (facts, section 2)."""
        return api_pb2.ClientHelloResponse()

    async def AppGetByDeploymentName(self, request: Any) -> Any:
        """The first call of a deployment; no id where the name is new (facts, section 4: deploy)."""
        return api_pb2.AppGetByDeploymentNameResponse(app_id=self.deployed.get(request.name, ""))

    async def AppGetOrCreate(self, request: Any) -> Any:
        """Of `App.lookup`: NOT_FOUND becomes the client's NotFoundError (facts, section 2: status map)."""
        app = self.deployed.get(request.app_name)
        if app is None:
            raise GRPCError(Status.NOT_FOUND, f"App '{request.app_name}' not found in environment 'main'")
        return api_pb2.AppGetOrCreateResponse(app_id=app)

    async def AppList(self, request: Any) -> Any:
        """Of `Environment.apps.list`: an app has a name from when it is deployed (the client's `AppListItem`)."""
        names = {app: name for name, app in self.deployed.items()}
        response = api_pb2.AppListResponse()
        for app, about in self.apps.items():
            response.apps.add(app_id=app, description=about["name"], state=about["state"], name=names.get(app, ""))
        return response

    async def AppCreate(self, request: Any) -> Any:
        """An id as Modal gives, `ap-` and 22 letters and digits [10]."""
        app = new_id("ap")
        self.apps[app] = {"state": request.app_state, "name": request.description, "tags": dict(request.tags)}
        return api_pb2.AppCreateResponse(app_id=app, app_page_url=f"https://modal.invalid/{app}")

    async def AppGetLayout(self, request: Any) -> Any:
        """What a redeployment is told of the app's functions (facts, section 4: deploy)."""
        layout = api_pb2.AppLayout()
        for function, app in self.function_apps.items():
            if app == request.app_id:
                handle = self.handle(function)
                layout.function_ids[handle.function_name] = function
                layout.objects.add(object_id=function, function_handle_metadata=handle)
        return api_pb2.AppGetLayoutResponse(app_layout=layout)

    async def AppHeartbeat(self, request: Any) -> Any:
        """The client sends it every 15 s while an app runs (facts, section 4: ephemeral app)."""
        return Empty()

    async def AppPublish(self, request: Any) -> Any:
        """`state=DEPLOYED` gives the app its name (facts, section 4: deploy)."""
        app = self.apps[request.app_id]
        app.update(state=request.app_state, tags=dict(request.tags))
        if request.app_state == api_pb2.APP_STATE_DEPLOYED:
            self.deployed[request.name] = request.app_id
        return api_pb2.AppPublishResponse(url=f"https://modal.invalid/{request.app_id}", deployed_at=time.time())

    async def AppClientDisconnect(self, request: Any) -> Any:
        """An ephemeral app ends with its client; a detached one goes on [7]."""
        app = self.apps[request.app_id]
        if app["state"] in (api_pb2.APP_STATE_EPHEMERAL, api_pb2.APP_STATE_INITIALIZING):
            self._stop(request.app_id)  # a detached app goes on [7]
        return Empty()

    async def AppStop(self, request: Any) -> Any:
        """A stopped app has no functions, and its containers end (the client's `App.stop`)."""
        self._stop(request.app_id)
        return Empty()

    def _stop(self, app: str) -> None:
        self.apps[app]["state"] = api_pb2.APP_STATE_STOPPED
        self.deployed = {name: known for name, known in self.deployed.items() if known != app}
        self.stopped_apps.add(app)  # type: ignore[attr-defined]
        for container in list(self.containers.values()):  # type: ignore[attr-defined]
            if self.function_apps[container.function] == app and container.input is not None:
                self.kill(container)  # type: ignore[attr-defined]

    # -- functions ----------------------------------------------------------------------

    def handle(self, function: str) -> Any:
        """What a client is told of a function [2]."""
        return self.handles[function]

    async def FunctionPrecreate(self, request: Any) -> Any:
        """The handle has name, type and app, and a definition of its own [2]."""
        function = request.existing_function_id or new_id("fu")
        self.function_apps[function] = request.app_id
        handle = api_pb2.FunctionHandleMetadata(
            function_name=request.function_name,
            function_type=request.function_type,
            app_id=request.app_id,
            definition_id=new_id("de"),
            function_schema=request.function_schema,
            supported_input_formats=request.supported_input_formats,
            supported_output_formats=request.supported_output_formats,
        )
        self.handles[function] = handle
        return api_pb2.FunctionPrecreateResponse(function_id=function, handle_metadata=handle)

    async def FunctionCreate(self, request: Any) -> Any:
        """Of GPUs in an order of choice each is a ranked function; there is at least one [2]. Regions: its guide."""
        function = request.existing_function_id
        ranked = request.function_data.ranked_functions
        for region in (ranked[0].function if ranked else request.function).scheduler_placement.regions:
            if region not in _REGIONS:
                raise GRPCError(Status.INVALID_ARGUMENT, f"Unknown region: {region}")
        for mount in (ranked[0].function if ranked else request.function).volume_mounts:
            if not Path(mount.mount_path).is_relative_to(tempfile.gettempdir()):  # it would be one of this machine [8]
                text = f"the stand-in mounts below {tempfile.gettempdir()} only, and not at {mount.mount_path}"
                raise GRPCError(Status.INVALID_ARGUMENT, text)
        # Of several GPU types the first is given.
        self.functions[function] = ranked[0].function if ranked else request.function
        data = api_pb2.FunctionData(function_name=self.functions[function].function_name)
        data.ranked_functions.add(rank=0, function=self.functions[function])
        return api_pb2.FunctionCreateResponse(
            function_id=function,
            function=self.functions[function],
            handle_metadata=self.handle(function),
            function_data=data,
        )

    async def FunctionGet(self, request: Any) -> Any:
        """`Function.from_name`: with ranked functions, too [2]."""
        app = self.deployed.get(request.app_name)
        for function, owner in self.function_apps.items():
            if owner == app and self.handle(function).function_name == request.object_tag:
                data = api_pb2.FunctionData(function_name=request.object_tag)
                data.ranked_functions.add(rank=0, function=self.functions[function])
                return api_pb2.FunctionGetResponse(
                    function_id=function, handle_metadata=self.handle(function), function=data
                )
        raise GRPCError(Status.NOT_FOUND, f"Function '{request.object_tag}' of app '{request.app_name}' not found")
