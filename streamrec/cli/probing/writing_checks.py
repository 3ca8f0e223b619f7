"""What `streamrec doctor --write` looks at. All that it writes lies below the URL that was named, and is removed."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Final
from uuid import uuid4

from streamrec import AlreadyExistsError, NotFoundError, UnsupportedOperationError
from streamrec.cli.output import format_bytes
from streamrec.cli.probing.leftovers import unfinished_uploads
from streamrec.cli.probing.rows import CheckError, CheckResult, NotCheckedError, Target, run_check, scheme_of
from streamrec.cli.writing import Rollback

__all__ = ["examine_writing"]

WRITTEN_BYTES: Final = 1_000_000
PARTS_BYTES: Final = 9_000_000
"""More than one part of an upload, which has 8 MiB."""


@dataclass(frozen=True, slots=True)
class Scratch:
    """What is written.

    Attributes:
        target: What is looked at.
        name: The beginning of all URLs that are written.
        rollback: Is told of each before it is written.
    """

    target: Target
    name: str
    rollback: Rollback

    async def write(self, path: str, data: bytes, overwrite: bool = True) -> None:
        """Writes one object."""
        storage = await self.target.storages.at(path)
        async with await storage.upload(path, overwrite=overwrite) as upload:
            await upload.write(data)


async def examine_writing(target: Target) -> AsyncGenerator[CheckResult, None]:
    """Makes the checks that write; removes everything, also where it is interrupted."""
    async with Rollback(target.options) as rollback:
        scratch = Scratch(target, f"{target.folder}streamrec-doctor-{uuid4().hex[:8]}", rollback)
        first = await run_check("write", lambda: check_write(scratch))
        yield first
        if first.ok:
            yield await run_check("exclusive", lambda: check_exclusive(scratch))
            yield await run_check("multipart", lambda: check_multipart(scratch))
            yield await run_check("remove", lambda: check_remove(scratch))
            return
        if first.ok is False:
            await rollback.remove()


async def check_write(scratch: Scratch) -> str:
    path, data = f"{scratch.name}-write", uuid4().bytes * (WRITTEN_BYTES // 16)
    scratch.rollback.expect(path)
    try:
        await scratch.write(path, data)
    except UnsupportedOperationError as error:
        scratch.rollback.forget(path)
        raise NotCheckedError(f"this store is read only: {error}") from error
    storage = await scratch.target.storages.at(path)
    if await storage.read_range(path, 0, len(data)) != data:
        raise CheckError(f"{path} is not what was written: a cache between may be stale")
    return f"{format_bytes(len(data))} written and read again"


async def check_exclusive(scratch: Scratch) -> str:
    path = f"{scratch.name}-exclusive"
    scratch.rollback.expect(path)
    try:
        await scratch.write(path, b"first", overwrite=False)
        await scratch.write(path, b"second", overwrite=False)
    except AlreadyExistsError:
        return "an object that is there is not replaced with overwrite=False"
    except UnsupportedOperationError as error:
        raise NotCheckedError("this store cannot create exclusively: give each writer names of its own") from error
    raise CheckError("overwrite=False replaced an object: give each writer names of its own")


async def check_multipart(scratch: Scratch) -> str:
    """Writes an object in two parts, and gives up another one after its first part."""
    path, data = f"{scratch.name}-parts", uuid4().bytes * (PARTS_BYTES // 16)
    scratch.rollback.expect(path)
    await scratch.write(path, data)
    storage = await scratch.target.storages.at(path)
    if await storage.read_range(path, len(data) - 100, len(data)) != data[-100:]:
        raise CheckError(f"{path} is not what was written in two parts: write shards of at most 8 MB to this store")
    aborted = f"{scratch.name}-aborted"
    scratch.rollback.expect(aborted)
    upload = await storage.upload(aborted)
    await upload.write(data)
    await upload.abort()
    if scheme_of(path) == "s3" and await unfinished_uploads(aborted, scratch.target.options):
        raise CheckError(f"the aborted upload of {aborted} is still there: allow AbortMultipartUpload")
    return f"{format_bytes(len(data))} in 2 parts; an upload that is aborted leaves nothing"


async def check_remove(scratch: Scratch) -> str:
    paths = await scratch.rollback.remove()
    for path in paths:
        try:
            await (await scratch.target.storages.at(path)).stat(path)
        except NotFoundError:
            continue
        raise CheckError(f"{path} cannot be removed: the credentials lack the right to delete; remove it yourself")
    return "everything that was written is removed"
