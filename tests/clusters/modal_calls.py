"""The Modal stand-in's function calls, and the containers that run them: the client's own entrypoint, a process each.

The numbers in brackets are those of the pitfalls of section 4 in ``facts/modal.md``.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
import sys
import time
from pathlib import Path
from typing import Any, Final

from google.protobuf.empty_pb2 import Empty
from grpclib import GRPCError, Status
from modal_proto import api_pb2

from .modal_store import new_id

# The address of a container among those of its cluster.
_NAMES: Final = """\
import socket

_resolve = socket.getaddrinfo
socket.getaddrinfo = lambda host, *rest, **more: _resolve("::1" if host == "i6pn.modal.local" else host, *rest, **more)
"""

__all__ = ["Calls", "Container", "Input"]

_RESULT: Final = api_pb2.GenericResult
# How long a container's heartbeat is held: the client gives up after its HEARTBEAT_INTERVAL of 15 s.
_HEARTBEAT: Final = 14.0
_IDLE: Final = 2.0
# Containers of one function at a time, where it names no limit: the machine is small.
_MOST: Final = 6
# Containers that could not import the function's file until that is the call's own end.
_ESCALATED: Final = 4


class Input:
    """One input of a call: what a container works on."""

    def __init__(self, call: str, function: str, item: Any, invocation: int) -> None:
        self.id = new_id("in")
        self.call = call
        self.function = function
        self.item = item
        self.invocation = invocation
        self.retries = 0
        self.result: Any = None
        self.format = api_pb2.DATA_FORMAT_PICKLE
        self.task = ""
        self.started = 0.0
        self.cancelled = False
        self.not_before = 0.0


class Cluster:
    """Containers that run one input together."""

    def __init__(self, held: Input, size: int) -> None:
        self.id = new_id("cu")
        self.held = held
        self.size = size
        self.members: list[Container] = []
        self.greeted: dict[str, str] = {}  # container -> its address


class Container:
    """A process that runs a function's inputs one after another."""

    def __init__(self, function: str, cluster: Cluster | None = None) -> None:
        self.cluster = cluster
        self.id = new_id("ta")
        self.function = function
        self.word = secrets.token_urlsafe(16)
        self.process: asyncio.subprocess.Process | None = None
        self.input: Input | None = None
        self.cancelling: asyncio.Queue[str] = asyncio.Queue()
        self.used = False
        self.dismissed = False
        self.failure: Any = None


class Calls:
    """Handlers of function calls and of what containers ask."""

    folder: Path
    grpc_url: str
    functions: dict[str, Any]
    function_apps: dict[str, str]
    secret_values: dict[str, dict[str, str]]

    def open_calls(self) -> None:
        """Start empty."""
        self.inputs: dict[str, Input] = {}
        self.calls: dict[str, list[Input]] = {}
        self.queued: list[Input] = []
        self.containers: dict[str, Container] = {}
        self.changed = asyncio.Condition()
        self.running: set[asyncio.Task[None]] = set()
        self.by_word: dict[str, Container] = {}
        self.stopped_apps: set[str] = set()
        self.links: set[Path] = set()
        self.crashes: dict[str, int] = {}  # of a function's containers that ended before they took an input
        self.tasks_of: dict[str, list[str]] = {}  # app -> all its containers so far

    def _go(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self.running.add(task)
        task.add_done_callback(self.running.discard)

    async def _tell(self) -> None:
        async with self.changed:
            self.changed.notify_all()

    # -- calls ------------------------------------------------------------------------

    async def FunctionMap(self, request: Any) -> Any:
        """A call of `.spawn` with its input pipelined (facts, section 4: from_name.spawn)."""
        if request.function_id not in self.functions:
            raise GRPCError(Status.NOT_FOUND, f"Function {request.function_id} not found")
        if self.function_apps[request.function_id] in self.stopped_apps:
            raise GRPCError(Status.FAILED_PRECONDITION, "The App is stopped")
        call = new_id("fc")
        response = api_pb2.FunctionMapResponse(function_call_id=call)
        self.calls[call] = []
        for item in request.pipelined_inputs:
            made = Input(call, request.function_id, item.input, request.function_call_invocation_type)
            self.calls[call].append(made)
            self.inputs[made.id] = made
            self.queued.append(made)
            response.pipelined_inputs.add(idx=item.idx, input_id=made.id, input_jwt=made.id)
        self._dispatch()
        return response

    async def FunctionGetOutputs(self, request: Any) -> Any:
        """A long poll, at most as long as the client asks (facts, section 4: get)."""
        inputs = self.calls.get(request.function_call_id)
        if inputs is None:
            raise GRPCError(Status.NOT_FOUND, f"Function call {request.function_call_id} not found")
        deadline = time.monotonic() + request.timeout
        async with self.changed:
            while inputs[0].result is None and (left := deadline - time.monotonic()) > 0:
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self.changed.wait(), left)
        unfinished = sum(one.result is None for one in inputs)
        response = api_pb2.FunctionGetOutputsResponse(last_entry_id="1-0", num_unfinished_inputs=unfinished)
        if (done := inputs[0]).result is not None:
            response.outputs.add(
                result=done.result,
                idx=0,
                input_id=done.id,
                data_format=done.format,
                task_id=done.task,
                retry_count=done.retries,
            )
        return response

    async def FunctionCallCancel(self, request: Any) -> Any:
        """What waits is TERMINATED; what runs hears of it in a heartbeat, or is killed (facts, section 4: cancel)."""
        inputs = self.calls.get(request.function_call_id)
        if inputs is None:
            raise GRPCError(Status.NOT_FOUND, f"Function call {request.function_call_id} not found")
        for one in inputs:
            if one.result is not None:
                continue
            one.cancelled = True
            holder = next((each for each in self.containers.values() if each.input is one), None)
            if holder is None:
                self._finish(one, _RESULT(status=_RESULT.GENERIC_STATUS_TERMINATED))
            elif request.terminate_containers:
                self._finish(one, _RESULT(status=_RESULT.GENERIC_STATUS_TERMINATED))
                self.kill(holder)
            else:
                holder.cancelling.put_nowait(one.id)
        await self._tell()
        return Empty()

    def _finish(self, one: Input, result: Any) -> None:
        if one.result is None:
            one.result = result
            if one in self.queued:
                self.queued.remove(one)

    # -- containers -------------------------------------------------------------------

    def _dispatch(self) -> None:
        """Start containers for what waits."""
        now = time.monotonic()
        for function in {one.function for one in self.queued if one.not_before <= now}:
            waiting = sum(one.function == function and one.not_before <= now for one in self.queued)
            here = [each for each in self.containers.values() if each.function == function]
            free = sum(each.input is None and not each.used for each in here)
            most = self._definition(function).autoscaler_settings.max_containers or _MOST
            if size := self._definition(function)._experimental_group_size:
                for held in [one for one in self.queued if one.function == function and one.not_before <= now]:
                    self.queued.remove(held)
                    cluster = Cluster(held, size)
                    for _ in range(size):
                        cluster.members.append(self._start(Container(function, cluster)))
                continue
            for _ in range(min(waiting - free, most - len(here))):
                self._start(Container(function))

    def _start(self, container: Container) -> Container:
        self.containers[container.id] = self.by_word[container.word] = container
        self._go(self._run(container))
        return container

    def _definition(self, function: str) -> Any:
        return self.functions[function]

    async def _run(self, container: Container) -> None:
        """A container's life: start it, wait for its end, and speak for what it leaves behind [4]."""
        definition = self._definition(container.function)
        folder = self.folder / "tasks" / container.id
        root = folder / "root"
        root.mkdir(parents=True)
        self.lay_mounts([*definition.mount_ids], folder)  # type: ignore[attr-defined]
        self.tasks_of.setdefault(self.function_apps[container.function], []).append(container.id)
        arguments = api_pb2.ContainerArguments(
            task_id=container.id,
            function_id=container.function,
            app_id=self.function_apps[container.function],
            function_def=definition,
            environment_name="main",
        )
        layout = arguments.app_layout
        layout.function_ids[definition.function_name] = container.function
        handle = self.handle(container.function)  # type: ignore[attr-defined]
        layout.objects.add(object_id=container.function, function_handle_metadata=handle)
        for needed in definition.object_dependencies:  # each must be there [3]
            made = layout.objects.add(object_id=needed.object_id)
            if needed.object_id.startswith("vo-"):
                made.volume_metadata.version = api_pb2.VOLUME_FS_VERSION_V2
        if container.cluster is not None:
            (root / "sitecustomize.py").write_text(_NAMES)  # each has its own network on Modal [9]
        for mount in definition.volume_mounts:
            # FunctionCreate has looked at the path.
            self._mount(Path(mount.mount_path), mount.volume_id)
        (folder / "arguments").write_bytes(arguments.SerializeToString())
        environ = {
            name: value for name, value in os.environ.items() if not name.startswith(("MODAL_", "CLUSTERKERNEL_"))
        }
        for secret in definition.secret_ids:
            environ.update(self.secret_values.get(secret, {}))
        environ.update(  # never the token [5]
            MODAL_SERVER_URL=self.grpc_url,
            MODAL_TASK_ID=container.id,
            MODAL_IS_REMOTE="1",
            MODAL_CONTAINER_ARGUMENTS_PATH=str(folder / "arguments"),
            MODAL_IMAGE_ID=definition.image_id,
            MODAL_CLOUD_PROVIDER="CLOUD_PROVIDER_AWS",
            MODAL_CONFIG_PATH="/dev/null",
            MODAL_OVERRIDE_HEADERS=f"x-loop-task:{container.word}",  # the calls do not say which task sends them [1]
            PYTHONPATH=str(root),
            PYTHONUNBUFFERED="1",
            PYTHONDONTWRITEBYTECODE="1",
            NO_PROXY="127.0.0.1",
        )
        with (folder / "log").open("wb") as log:
            container.process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "modal._container_entrypoint"),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=root,
                env=environ,
                start_new_session=True,
            )
            code = await container.process.wait()
        _kill_session(container.process.pid)
        del self.containers[container.id]
        if (held := container.input) is not None and held.result is None:
            container.input = None
            for other in container.cluster.members if container.cluster else ():
                other.input = None  # all nodes start again together
                self.kill(other)
            self._dropped(held, code)
        elif not container.used and not container.dismissed:
            self._crashed(container)
        self._dispatch()
        await self._tell()

    def _mount(self, place: Path, volume: str) -> None:
        """Let a container see a volume: by a link, and so only at a path that is nobody else's [8]."""
        target = self.volume(volume)  # type: ignore[attr-defined]
        if place.is_symlink() and place.readlink() != target:
            place.unlink()  # of a stand-in that was killed
        if not place.is_symlink():
            place.symlink_to(target)
        self.links.add(place)

    def _dropped(self, held: Input, code: int) -> None:
        """A container died with an input: Modal runs it again in another (its guides on retries and pre-emption)."""
        if held.cancelled:
            self._finish(held, _RESULT(status=_RESULT.GENERIC_STATUS_TERMINATED))
        else:
            held.task = ""
            self.queued.append(held)

    def _crashed(self, container: Container) -> None:
        """A container ended before it took an input: the call waits [4].

        A deployed function's containers are started again for ever, with a pause (Modal's guide on retries). What the
        file raised when it was imported is made the call's own end in time ("crash looping that eventually got
        escalated to input failures": the client's `_process_result`); after how many containers is not known.
        """
        function = container.function
        self.crashes[function] = self.crashes.get(function, 0) + 1
        if (cluster := container.cluster) is not None:
            for other in cluster.members:
                other.dismissed = True
                self.kill(other)
            self.queued.append(cluster.held)
        pause = min(0.1 * 2 ** self.crashes[function], 5.0)
        for held in [one for one in self.queued if one.function == function]:
            held.not_before = time.monotonic() + pause
            if container.failure is not None and self.crashes[function] >= _ESCALATED:
                self._finish(held, container.failure)
        asyncio.get_running_loop().call_later(pause + 0.01, self._dispatch)

    async def AppFetchLogs(self, request: Any) -> Any:
        """What the containers of an app printed, a batch each (facts, section 4: RPCs of logs)."""
        response = api_pb2.AppFetchLogsResponse()
        for task in self.tasks_of.get(request.app_id, []):
            path = self.folder / "tasks" / task / "log"
            lines = path.read_text(errors="replace").splitlines(keepends=True) if path.exists() else []
            if lines:
                batch = response.batches.add(task_id=task)
            for line in lines[-(request.limit or 100) :]:
                stderr = api_pb2.FILE_DESCRIPTOR_STDERR
                batch.items.add(data=line, file_descriptor=stderr, timestamp=path.stat().st_mtime)
        return response

    def kill(self, container: Container) -> None:
        """End a container as a host that is taken away does."""
        if container.process is not None and container.process.returncode is None:
            _kill_session(container.process.pid)

    async def _limit(self, container: Container, held: Input, seconds: float) -> None:
        """The function's time limit: of each attempt."""
        await asyncio.sleep(seconds)
        if container.input is held and held.result is None:
            if not self._retry(held):
                text = f"Task's current input hit its timeout of {seconds:g}s"
                self._finish(held, _RESULT(status=_RESULT.GENERIC_STATUS_TIMEOUT, exception=text))
            container.input = None
            self.kill(container)
            await self._tell()

    def _retry(self, held: Input) -> bool:
        policy = self._definition(held.function).retry_policy
        if held.retries >= policy.retries or held.cancelled:
            return False
        delay = policy.initial_delay_ms / 1000 * policy.backoff_coefficient**held.retries
        held.retries += 1
        held.not_before = time.monotonic() + delay
        self.queued.append(held)
        asyncio.get_running_loop().call_later(delay + 0.01, self._dispatch)
        return True

    async def ContainerHello(self, request: Any) -> Any:
        """The first call of a container (facts, section 4: container)."""
        return Empty()

    async def ContainerHeartbeat(self, request: Any, container: Container) -> Any:
        """A long poll, which carries a cancel (facts, section 4: container)."""
        response = api_pb2.ContainerHeartbeatResponse()
        with contextlib.suppress(asyncio.TimeoutError):
            one = await asyncio.wait_for(container.cancelling.get(), _HEARTBEAT)
            response.cancel_input_event.input_ids.append(one)
        return response

    async def FunctionGetInputs(self, request: Any, container: Container) -> Any:
        """A long poll; an idle container is told to end by `kill_switch` [6]."""
        deadline = time.monotonic() + _IDLE
        response = api_pb2.FunctionGetInputsResponse()
        if container.cluster is not None:
            return self._give(container, container.cluster.held, response)
        async with self.changed:
            while True:
                now = time.monotonic()
                ready = [one for one in self.queued if one.function == container.function and one.not_before <= now]
                if ready:
                    held = ready[0]
                    break
                if deadline <= now:
                    # An idle container does not end by a signal, but by this [6].
                    container.dismissed = True
                    response.inputs.add(kill_switch=True)
                    return response
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self.changed.wait(), min(0.05, deadline - now))
        self.queued.remove(held)
        return self._give(container, held, response)

    def _give(self, container: Container, held: Input, response: Any) -> Any:
        container.input, container.used = held, True
        held.task, held.started = container.id, time.time()
        if seconds := self._definition(held.function).timeout_secs:
            self._go(self._limit(container, held, seconds))
        response.inputs.add(
            input_id=held.id,
            input=held.item,
            function_call_id=held.call,
            function_call_invocation_type=held.invocation,
            retry_count=held.retries,
        )
        return response

    async def FunctionPutOutputs(self, request: Any, container: Container) -> Any:
        """A failure is tried again by the function's policy, each time with a limit of its own (guide on retries)."""
        for item in request.outputs:
            held = self.inputs[item.input_id]
            if container.input is not held:
                continue
            container.input = None
            if container.cluster is not None and container.cluster.members[0] is not container:
                continue  # the head's value counts
            failed = item.result.status == _RESULT.GENERIC_STATUS_FAILURE
            if not (failed and self._retry(held)):
                held.format = item.data_format
                self._finish(held, item.result)
        await self._tell()
        return Empty()

    async def TaskClusterHello(self, request: Any, container: Container) -> Any:
        """It waits for all nodes; ranks are in the order of the containers (the client's `_cluster`; pitfall [9])."""
        cluster = container.cluster
        if cluster is None:
            raise GRPCError(Status.FAILED_PRECONDITION, "The container is in no cluster")
        cluster.greeted[container.id] = request.container_ip
        async with self.changed:
            self.changed.notify_all()
            while len(cluster.greeted) < cluster.size:
                await self.changed.wait()
        ips = [cluster.greeted[each.id] for each in cluster.members]
        rank = cluster.members.index(container)
        return api_pb2.TaskClusterHelloResponse(cluster_id=cluster.id, cluster_rank=rank, container_ips=ips)

    async def TaskResult(self, request: Any, container: Container) -> Any:
        """A container that could not import the function's file (facts, section 4: container)."""
        container.failure = request.result
        return Empty()

    async def end_all(self) -> None:
        """Kill what runs."""
        for container in list(self.containers.values()):
            self.kill(container)
        for task in list(self.running):
            task.cancel()
        await asyncio.gather(*self.running, return_exceptions=True)
        for link in self.links:
            link.unlink(missing_ok=True)


def _kill_session(leader: int) -> None:
    """Kill a container's processes, whatever sessions they have made since: a container takes all along."""
    parents: dict[int, int] = {}
    sessions: dict[int, int] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError, IndexError, ValueError):
                fields = Path(f"/proc/{name}/stat").read_text().rpartition(") ")[2].split()
                parents[int(name)], sessions[int(name)] = int(fields[1]), int(fields[3])
    doomed = {pid for pid, session in sessions.items() if session == leader} | {leader}
    while more := {pid for pid, parent in parents.items() if parent in doomed} - doomed:
        doomed |= more
    for pid in doomed:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
