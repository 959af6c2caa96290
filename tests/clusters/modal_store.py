"""What the Modal stand-in keeps: named objects, blobs, volumes and dictionaries, and the web server for their bytes.

The numbers in brackets are those of the pitfalls of section 4 in ``facts/modal.md``.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import secrets
import string
import threading
import time
from pathlib import Path
from typing import Any, Final

from aiohttp import web
from google.protobuf.timestamp_pb2 import Timestamp
from grpclib import GRPCError, Status
from modal_proto import api_pb2

__all__ = ["Store", "new_id"]

BLOCK: Final = 8 * 1024 * 1024  # of a volume: modal._utils.blob_utils.BLOCK_SIZE
_IMAGE: Final = api_pb2.ImageMetadata(image_builder_version="2025.06")
_LETTERS: Final = string.ascii_letters + string.digits


def new_id(prefix: str) -> str:
    """An id as Modal's: the prefix and 22 letters and digits [10]."""
    return f"{prefix}-" + "".join(secrets.choice(_LETTERS) for _ in range(22))


class Store:
    """Handlers of what is stored. `folder` holds the bytes; `web_url` is set once the web server listens."""

    folder: Path
    web_url: str
    token_secret: str

    def open_store(self) -> None:
        """Start empty."""
        self.named: dict[tuple[str, str], str] = {}
        self.secret_values: dict[str, dict[str, str]] = {}
        self.mounts: dict[str, list[Any]] = {}
        self.images: dict[str, list[Any]] = {}
        self.building = asyncio.Event()
        self.building.set()
        self.rates: dict[str, str] = {}
        self.dicts: dict[str, dict[bytes, bytes]] = {}
        self.path_word = secrets.token_urlsafe(16)
        for name in ("blobs", "blocks", "files", "seen", "volumes"):
            (self.folder / name).mkdir(exist_ok=True)

    def get_or_create(self, kind: str, name: str, how: int) -> tuple[str, bool]:
        """The id of a named object, and whether it is new; unnamed ones are always made."""
        if not name:
            return new_id(kind), True
        known = self.named.get((kind, name))
        if known is None and how == api_pb2.OBJECT_CREATION_TYPE_UNSPECIFIED:
            raise GRPCError(Status.NOT_FOUND, f"'{name}' not found in environment 'main'")
        if known is not None and how == api_pb2.OBJECT_CREATION_TYPE_CREATE_FAIL_IF_EXISTS:
            raise GRPCError(Status.ALREADY_EXISTS, f"'{name}' exists already")
        if known is None:
            self.named[kind, name] = new_id(kind)
        return self.named[kind, name], known is None

    # -- the workspace --------------------------------------------------------------

    async def WorkspaceNameLookup(self, request: Any) -> Any:
        """What hydrates a `Workspace` (the client's `_workspace`)."""
        return api_pb2.WorkspaceNameLookupResponse(workspace_name="team", username="team")

    async def WorkspaceBillingRates(self, request: Any) -> Any:
        """Dollars for "unit per hour" (the protocol's own comment); Modal's names of the rates are not known."""
        return api_pb2.WorkspaceBillingRatesResponse(rates=self.rates)

    # -- environments, secrets, images, mounts --------------------------------------

    async def EnvironmentGetOrCreate(self, request: Any) -> Any:
        """The usual environment is `main` (facts, section 4: ephemeral app)."""
        settings = api_pb2.EnvironmentSettings(image_builder_version="2025.06")
        metadata = api_pb2.EnvironmentMetadata(name=request.deployment_name or "main", settings=settings)
        return api_pb2.EnvironmentGetOrCreateResponse(environment_id="en-main", metadata=metadata)

    async def SecretGetOrCreate(self, request: Any) -> Any:
        """Named, or of a dict (facts, section 4: Secret); keys may be required (the client's `Secret.from_name`)."""
        secret, new = self.get_or_create("st", request.deployment_name, request.object_creation_type)
        if new:
            self.secret_values[secret] = dict(request.env_dict)
        missing = [key for key in request.required_keys if key not in self.secret_values[secret]]
        if missing:
            raise GRPCError(Status.NOT_FOUND, f"Secret is missing key(s): {', '.join(missing)}")
        return api_pb2.SecretGetOrCreateResponse(secret_id=secret)

    async def ImageGetOrCreate(self, request: Any) -> Any:
        """One call for each layer; nothing is built, what is asked for is recorded [12]."""
        image = new_id("im")
        self.images[image] = list(request.image.dockerfile_commands)
        for base in request.image.base_images:
            self.images[image] = [*self.images.get(base.image_id, []), *self.images[image]]
        if any("no-such-" in line or "to-be-built" in line for line in request.image.dockerfile_commands):
            # Without a result the client waits for the build, and gets what it prints (`_image_await_build_result`).
            return api_pb2.ImageGetOrCreateResponse(image_id=image)
        return api_pb2.ImageGetOrCreateResponse(image_id=image, result=_result(""), metadata=_IMAGE)

    async def ImageJoinStreaming(self, stream: Any) -> None:
        """What the build prints, and at last how it ended (the client's `_image_await_build_result`)."""
        request = await stream.recv_message()
        commands = "\n".join(self.images[request.image_id])
        log = api_pb2.TaskLogs(data="Collecting what is asked for\n", file_descriptor=api_pb2.FILE_DESCRIPTOR_STDOUT)
        await stream.send_message(api_pb2.ImageJoinStreamingResponse(task_logs=[log], entry_id="1-0"))
        await self.building.wait()
        if "no-such-" in commands:
            log = api_pb2.TaskLogs(data="ERROR: it is nowhere to be found\n")
            await stream.send_message(api_pb2.ImageJoinStreamingResponse(task_logs=[log], entry_id="2-0"))
        # With and without an exception's text: the client's messages of a failed build have both.
        result = _result("No matching distribution found" if "no-such-package" in commands else "")
        if "no-such-" in commands:
            result.status = api_pb2.GenericResult.GENERIC_STATUS_FAILURE
        await stream.send_message(api_pb2.ImageJoinStreamingResponse(result=result, metadata=_IMAGE, eof=True))

    async def MountGetOrCreate(self, request: Any) -> Any:
        """A list of files by their hashes (facts, section 4: ephemeral app)."""
        mount = new_id("mo")
        self.mounts[mount] = list(request.files)
        return api_pb2.MountGetOrCreateResponse(mount_id=mount)

    async def MountBatchedCheckExistence(self, request: Any) -> Any:
        """Which files are to be sent (facts, section 4: ephemeral app)."""
        missing = [sha for sha in request.sha256_hex_hashes if not (self.folder / "files" / sha).exists()]
        response = api_pb2.MountBatchedCheckExistenceResponse(missing_sha256_hex_hashes=missing)
        response.checked_at.CopyFrom(_now())
        return response

    async def MountPutFile(self, request: Any) -> Any:
        """A small file is in the call, a large one a blob (facts, section 4: ephemeral app)."""
        path = self.folder / "files" / request.sha256_hex
        if request.WhichOneof("data_oneof") == "data":  # an empty file has data=b"" [11]
            path.write_bytes(request.data)
        elif request.data_blob_id:
            path.write_bytes((self.folder / "blobs" / request.data_blob_id).read_bytes())
        return api_pb2.MountPutFileResponse(exists=path.exists(), checked_at=_now())

    def lay_mounts(self, mount_ids: list[str], root: Path) -> None:
        """Put the files of mounts under a container's root."""
        for mount in mount_ids:
            for file in self.mounts.get(mount, []):
                place = root / file.filename.lstrip("/")
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_bytes((self.folder / "files" / file.sha256_hex).read_bytes())

    # -- blobs ------------------------------------------------------------------------

    async def BlobCreate(self, request: Any) -> Any:
        """1.6 reads `upload_urls.items` and `blob_ids` (facts, section 2: blobs)."""
        blob = new_id("bl")
        response = api_pb2.BlobCreateResponse(blob_ids=[blob])
        response.upload_urls.items.append(f"{self.web_url}/{self.path_word}/blobs/{blob}")
        return response

    async def BlobGet(self, request: Any) -> Any:
        """Where its bytes are got (facts, section 2: blobs)."""
        return api_pb2.BlobGetResponse(download_url=f"{self.web_url}/{self.path_word}/blobs/{request.blob_id}")

    # -- volumes, of version 2 only ---------------------------------------------------

    def volume(self, volume_id: str) -> Path:
        """Where a volume's files lie."""
        return self.folder / "volumes" / volume_id

    def _inside(self, volume_id: str, path: str) -> Path:
        place = (self.volume(volume_id) / path.lstrip("/")).resolve()
        if not place.is_relative_to(self.volume(volume_id)):
            raise GRPCError(Status.INVALID_ARGUMENT, f"{path} leaves the volume")
        return place

    async def VolumeGetOrCreate(self, request: Any) -> Any:
        """Always of version 2, so that the calls of version 1 are never used (facts, section 4: Volume)."""
        volume, new = self.get_or_create("vo", request.deployment_name, request.object_creation_type)
        if new:
            self.volume(volume).mkdir()
        version = api_pb2.VOLUME_FS_VERSION_V2
        metadata = api_pb2.VolumeMetadata(version=version, name=request.deployment_name)
        return api_pb2.VolumeGetOrCreateResponse(volume_id=volume, version=version, metadata=metadata)

    async def VolumePutFiles2(self, request: Any) -> Any:
        """Called twice: it names the blocks that are missing, then puts the files (facts, section 4: Volume)."""
        response = api_pb2.VolumePutFiles2Response()
        for file_index, file in enumerate(request.files):
            for block_index, block in enumerate(file.blocks):
                name = block.contents_sha256.hex()
                if not (self.folder / "blocks" / name).exists():
                    url = f"{self.web_url}/{self.path_word}/blocks/{name}"
                    response.missing_blocks.add(file_index=file_index, block_index=block_index, put_url=url)
        if not response.missing_blocks:
            for file in request.files:
                place = self._inside(request.volume_id, file.path)
                if place.exists() and request.disallow_overwrite_existing_files:
                    raise GRPCError(Status.ALREADY_EXISTS, f"{file.path} exists already")
                place.parent.mkdir(parents=True, exist_ok=True)
                temporary = self.folder / "blobs" / new_id("tm")
                with temporary.open("wb") as target:
                    for block in file.blocks:
                        target.write((self.folder / "blocks" / block.contents_sha256.hex()).read_bytes())
                os.replace(temporary, place)
        return response

    async def VolumeListFiles2(self, stream: Any) -> None:
        """A stream of entries; NOT_FOUND of a path that is not there (facts, section 4: Volume)."""
        request = await stream.recv_message()
        start = self._inside(request.volume_id, request.path)
        if not start.exists():
            raise GRPCError(Status.NOT_FOUND, f"{request.path} not found")
        found = [start] if start.is_file() else sorted(start.rglob("*") if request.recursive else start.iterdir())
        response = api_pb2.VolumeListFiles2Response()
        for path in found:
            kind = api_pb2.FileEntry.DIRECTORY if path.is_dir() else api_pb2.FileEntry.FILE
            about = path.stat()
            name = str(path.relative_to(self.volume(request.volume_id)))
            response.entries.add(path=name, type=kind, mtime=int(about.st_mtime), size=about.st_size)
        await stream.send_message(response)

    async def VolumeGetFile2(self, request: Any) -> Any:
        """A URL for each block of 8 MiB (facts, section 4: Volume)."""
        place = self._inside(request.volume_id, request.path)
        if not place.is_file():
            raise GRPCError(Status.NOT_FOUND, f"{request.path} not found")
        # The blocks of one answer are of one file, whatever is put in its place meanwhile: Modal names them by content.
        name = new_id("sn")
        os.link(place, self.folder / "seen" / name)
        size = (self.folder / "seen" / name).stat().st_size
        base = f"{self.web_url}/{self.path_word}/seen/{name}?block="
        urls = [f"{base}{block}" for block in range(-(-size // BLOCK))]
        return api_pb2.VolumeGetFile2Response(get_urls=urls, size=size, start=0, len=size)

    async def VolumeRemoveFile2(self, request: Any) -> Any:
        """A file, or a folder with all in it (the client's `remove_file`)."""
        import shutil

        from google.protobuf.empty_pb2 import Empty

        place = self._inside(request.volume_id, request.path)
        if not place.exists():
            raise GRPCError(Status.NOT_FOUND, f"{request.path} not found")
        if place.is_dir():
            shutil.rmtree(place)
        else:
            place.unlink()
        return Empty()

    async def VolumeReload(self, request: Any) -> Any:
        """A container sees others' commits after this only; here the files are shared (the client's `reload`)."""
        from google.protobuf.empty_pb2 import Empty

        return Empty()  # the files are shared: there is nothing to reload

    async def VolumeCommit(self, request: Any) -> Any:
        """What a container wrote is kept from then on; here at once (the client's `commit`)."""
        return api_pb2.VolumeCommitResponse(skip_reload=True)

    # -- dictionaries -----------------------------------------------------------------

    async def DictGetOrCreate(self, request: Any) -> Any:
        """A named one is made where it is asked for (the client's `Dict.from_name`)."""
        made, new = self.get_or_create("di", request.deployment_name, request.object_creation_type)
        if new:
            self.dicts[made] = {entry.key: entry.value for entry in request.data}
        return api_pb2.DictGetOrCreateResponse(
            dict_id=made, metadata=api_pb2.DictMetadata(name=request.deployment_name)
        )

    async def DictUpdate(self, request: Any) -> Any:
        """`put(skip_if_exists=True)` is told whether it was the first (the client's `Dict.put`)."""
        held = self._dict(request.dict_id)
        created = not request.if_not_exists or all(entry.key not in held for entry in request.updates)
        if created:
            held.update({entry.key: entry.value for entry in request.updates})
        return api_pb2.DictUpdateResponse(created=created)

    async def DictGet(self, request: Any) -> Any:
        """`found` says whether the key is there (the client's `Dict.get`)."""
        value = self._dict(request.dict_id).get(request.key)
        return api_pb2.DictGetResponse(found=value is not None, value=value)

    async def DictContains(self, request: Any) -> Any:
        """As `DictGet`, without the value (the client's `Dict.contains`)."""
        return api_pb2.DictContainsResponse(found=request.key in self._dict(request.dict_id))

    async def DictPop(self, request: Any) -> Any:
        """The value, and whether there was one (the client's `Dict.pop`)."""
        value = self._dict(request.dict_id).pop(request.key, None)
        return api_pb2.DictPopResponse(found=value is not None, value=value)

    async def DictDelete(self, request: Any) -> Any:
        """With its name (the client's `Dict.objects.delete`)."""
        from google.protobuf.empty_pb2 import Empty

        self._dict(request.dict_id)
        del self.dicts[request.dict_id]
        self.named = {key: value for key, value in self.named.items() if value != request.dict_id}
        return Empty()

    def _dict(self, dict_id: str) -> dict[bytes, bytes]:
        if dict_id not in self.dicts:
            raise GRPCError(Status.NOT_FOUND, f"Dict {dict_id} not found")
        return self.dicts[dict_id]

    # -- the web server of blobs and blocks -------------------------------------------

    def web_routes(self) -> list[Any]:
        """Where bytes are put and got; the random word in the path keeps others out."""
        base = f"/{self.path_word}"
        return [
            web.put(base + "/{kind:blobs|blocks}/{name}", self._web_put),
            web.get(base + "/{kind:blobs}/{name}", self._web_get),
            web.get(base + "/seen/{name}", self._web_block),
        ]

    async def _web_put(self, request: Any) -> Any:
        body = await request.read()
        name = request.match_info["name"]
        if request.match_info["kind"] == "blocks" and hashlib.sha256(body).hexdigest() != name:
            return web.Response(status=400, text="the block is not what its name says")
        place = self.folder / request.match_info["kind"] / name
        temporary = place.with_name(f"{name}.{threading.get_ident()}.{time.monotonic_ns()}")
        temporary.write_bytes(body)
        os.replace(temporary, place)
        etag = hashlib.md5(body).hexdigest()  # the client compares it
        return web.Response(body=b"stored", headers={"ETag": f'"{etag}"'})

    async def _web_get(self, request: Any) -> Any:
        with contextlib.suppress(FileNotFoundError):
            return web.Response(body=(self.folder / "blobs" / request.match_info["name"]).read_bytes())
        return web.Response(status=404)

    async def _web_block(self, request: Any) -> Any:
        with (self.folder / "seen" / request.match_info["name"]).open("rb") as file:
            file.seek(int(request.query["block"]) * BLOCK)
            return web.Response(body=file.read(BLOCK))


def _result(exception: str) -> Any:
    status = api_pb2.GenericResult.GENERIC_STATUS_SUCCESS
    return api_pb2.GenericResult(status=status, exception=exception)


def _now() -> Timestamp:
    stamp = Timestamp()
    stamp.GetCurrentTime()
    return stamp
