"""What a store keeps beside the bytes: unfinished uploads of writers that were killed, and checksums."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from streamrec import UnsupportedOperationError
from streamrec.cli.output import plural
from streamrec.cli.probing.rows import CheckError, NotCheckedError, Target, ask_client, scheme_of
from streamrec.cli.sources import Found
from streamrec.storage import is_temporary, secured_of

__all__ = ["check_checksum", "check_leftovers", "check_replaced", "unfinished_uploads"]

OLD: Final = timedelta(days=1)
"""A younger upload may be a writer's that is at work."""

NO_CHECKSUM: Final = "none: damage in the store shows only in the CRC32C of each record"


async def unfinished_uploads(prefix: str, options: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """The first thousand multipart uploads under way to keys of S3 that begin so.

    Raises:
        CheckError: The store does not list them.
    """

    def ask(client: Any, inner: str) -> Any:
        bucket, _, key = inner.partition("/")
        return client.call_s3("list_multipart_uploads", Bucket=bucket, Prefix=key)

    try:
        page: Mapping[str, Any] = await ask_client(prefix, options, ask)
    except CheckError as error:
        if "NoSuchUpload" in str(error):
            return ()  # `rclone serve s3` says so of a bucket in which no upload was begun
        raise CheckError(
            f"{error}: allow ListBucketMultipartUploads, or set a lifecycle rule that ends them"
        ) from error
    bucket_key = prefix.partition("://")[2].partition("/")[2]
    return [upload for upload in page.get("Uploads") or () if upload["Key"].startswith(bucket_key)]


async def check_leftovers(target: Target) -> str:
    """Looks for uploads that killed writers left: the store keeps and bills their parts."""
    if scheme_of(target.url) == "gs":
        raise NotCheckedError("Google Cloud Storage lists no unfinished uploads, and drops them after a week")
    if scheme_of(target.url) != "s3":
        raise NotCheckedError("only S3 lists unfinished uploads")
    found = await unfinished_uploads(target.folder, target.options)
    limit = datetime.now(UTC) - OLD
    old = [upload for upload in found if upload["Initiated"] < limit]
    if old:
        raise CheckError(
            f"{plural(len(old), 'unfinished upload')} older than a day, of {old[0]['Key']} ...: the store bills their "
            "parts; set a lifecycle rule AbortIncompleteMultipartUpload"
        )
    return f"{plural(len(found), 'upload')} under way, none older than a day" if found else "no unfinished upload"


async def check_replaced(target: Target) -> str:
    """Looks for what objects were before a run that was to replace them was killed."""
    storage = await target.storages.at(target.folder)
    try:
        hidden = [info.path async for info in storage.list(target.folder, hidden=True) if is_temporary(info.path)]
    except UnsupportedOperationError as error:
        raise NotCheckedError(str(error)) from error
    old = [(path, name) for path in hidden if (name := secured_of(path)) is not None]
    if old:
        path, name = old[0]
        raise CheckError(
            f"{path} is what {name} was before a run that replaced it ended half way, or is at work; there are "
            f"{len(old):,} such objects: copy each over its name to have the old data back, or remove them all"
        )
    others = f"; {plural(len(hidden), 'hidden object')} of writers, at work or killed" if hidden else ""
    return f"no object was replaced half way{others}"


async def check_checksum(target: Target, item: Found) -> str:
    """Which checksums the store gives of an object."""
    scheme = scheme_of(item.path)
    if scheme not in ("s3", "gs"):
        raise NotCheckedError("this kind of store gives none; each record has its own CRC32C")

    def ask(client: Any, inner: str) -> Any:
        bucket, _, key = inner.partition("/")
        if scheme == "gs":
            return client.call("GET", "b/{}/o/{}", bucket, key, json_out=True)
        return client.call_s3("head_object", Bucket=bucket, Key=key, ChecksumMode="ENABLED")

    head: Mapping[str, Any] = await ask_client(item.path, target.options, ask)
    return ", ".join(checksums_of(head)) or NO_CHECKSUM


def checksums_of(head: Mapping[str, Any]) -> list[str]:
    """The checksums in what S3 or Google Cloud Storage tell of an object.

    Examples:
        >>> checksums_of({"ETag": '"d41d8cd98f00b204e9800998ecf8427e"', "ChecksumCRC32C": "AAAAAA==", "Size": 0})
        ['CRC32C AAAAAA==', 'MD5 d41d8cd98f00b204e9800998ecf8427e']
        >>> checksums_of({"crc32c": "AAAAAA==", "etag": "CAE="}), checksums_of({"ETag": '"d41d-3"'})
        (['CRC32C AAAAAA=='], [])
    """
    found = [
        f"{key.removeprefix('Checksum')} {value}"
        for key, value in head.items()
        if key.startswith("Checksum") and key != "ChecksumType"
    ]
    names = {"crc32c": "CRC32C", "md5Hash": "MD5"}
    found += [f"{name} {head[key]}" for key, name in names.items() if head.get(key)]
    etag = str(head.get("ETag", "")).strip('"')
    return [*found, *([f"MD5 {etag}"] if len(etag) == 32 and etag.isalnum() else [])]
