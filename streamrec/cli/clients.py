"""Other clients that `streamrec bench --against` compares with.

Each is opened with the storage options that were typed, and reads ranges in the way that its own
documentation shows for async programs. Packages are imported where they are used: none of them
belongs to the command line.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
    contextmanager,
)
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import version
from typing import Any, Final, TypeAlias

import click

import streamrec
from streamrec.cli.library import (
    MissingExtraError,
    display_name,
    install_command,
    kind_of_protocol,
    mask_secrets,
)

Read: TypeAlias = Callable[[str, int, int], Awaitable[int]]
"""Reads a range of an object, from a byte to a byte; returns how many bytes came."""

Open: TypeAlias = Callable[[Mapping[str, Any], int], AbstractAsyncContextManager[Read]]
"""Opens a client with storage options, for so many requests at the same time."""

S3_OPTIONS: Final = {
    "key": "access_key_id",
    "secret": "secret_access_key",
    "token": "session_token",
    "anon": "skip_signature",
    "endpoint_url": "endpoint",
}
"""The storage options of S3 that obstore has, and its names for them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """A client to compare with.

    Attributes:
        name: Its package.
        open: Opens it.
        kinds: The kinds of stores that it reads, by their usual protocols.
        extra: The extra of streamrec that installs it; "" if none does.
    """

    name: str
    open: Open
    kinds: tuple[str, ...]
    extra: str = ""

    @property
    def label(self) -> str:
        """Its name and version."""
        return f"{self.name} {version(self.name)}"

    def check(self, path: str) -> None:
        """Checks that it is installed, and reads this kind of store.

        Raises:
            click.UsageError: It does not read what is at such a URL.
            MissingExtraError: It is not installed.
        """
        protocol = path.partition("://")[0] if "://" in path else "file"
        if kind_of_protocol(protocol).name not in self.kinds:
            reads = ", ".join(f"{kind}://" for kind in self.kinds)
            raise click.UsageError(
                f"--against {self.name} reads {reads}, not {display_name(path)}: "
                f"{advice(kind_of_protocol(protocol).name)}"
            )
        try:
            import_module(self.name)
        except ImportError as error:
            command = install_command(self.extra) if self.extra else f"pip install {self.name}"
            raise MissingExtraError(
                f"--against {self.name} needs another package: {command}"
            ) from error


def advice(kind: str) -> str:
    """What to compare with at a kind of store.

    Examples:
        >>> advice("s3"), advice("sftp")
        ('use s3fs or obstore', 'no client is compared there')
    """
    fitting = [client.name for client in CLIENTS.values() if kind in client.kinds]
    return f"use {' or '.join(fitting)}" if fitting else "no client is compared there"


@asynccontextmanager
async def opened(client: Client, options: Mapping[str, Any], most: int) -> AsyncIterator[Read]:
    """A client that is open, for at most so many requests at the same time.

    Raises:
        StorageError: It did not open, or a request failed. The message has the client's own words.
    """
    async with AsyncExitStack() as stack:
        with explained(client, ""):
            read = await stack.enter_async_context(client.open(options, most))

        async def read_or_explain(path: str, start: int, end: int) -> int:
            with explained(client, path):
                return await read(path, start, end)

        yield read_or_explain


@contextmanager
def explained(client: Client, path: str) -> Iterator[None]:
    """Says which client failed: the errors of a dozen packages, none of them with a traceback."""
    try:
        yield
    except click.ClickException:
        raise
    except Exception as error:
        words = mask_secrets(f"{type(error).__name__}: {error}")
        raise streamrec.StorageError(
            f"{client.label} failed ({words}): leave out --against {client.name}", path or None
        ) from error


@asynccontextmanager
async def open_s3fs(options: Mapping[str, Any], most: int) -> AsyncIterator[Read]:
    """One S3FileSystem, as async programs use it."""
    package = import_module("s3fs")
    # Its pool has ten connections unless it is told otherwise: that would decide the comparison.
    config = {"max_pool_connections": most, **options.get("config_kwargs", {})}
    filesystem = package.S3FileSystem(
        **{**options, "config_kwargs": config}, asynchronous=True, skip_instance_cache=True
    )
    session = await filesystem.set_session()
    try:
        yield by_fsspec(filesystem)
    finally:
        await session.close()


@asynccontextmanager
async def open_gcsfs(options: Mapping[str, Any], _: int) -> AsyncIterator[Read]:
    """One GCSFileSystem, as async programs use it. aiohttp opens up to 100 connections for it."""
    # For the kind of each bucket, the usual class asks a second service of Google's, which other
    # servers do not have: it waits for a minute for each.
    emulated = "endpoint_url" in options or "STORAGE_EMULATOR_HOST" in os.environ
    package = import_module("gcsfs.core" if emulated else "gcsfs")
    filesystem = package.GCSFileSystem(**options, asynchronous=True, skip_instance_cache=True)
    try:
        yield by_fsspec(filesystem)
    finally:
        # It opens its session with its first request.
        if filesystem.session is not None:
            await filesystem.session.close()


def by_fsspec(filesystem: Any) -> Read:
    """Reads with fsspec's `_cat_file`, which is the name for async programs."""

    async def read(path: str, start: int, end: int) -> int:
        return len(await filesystem._cat_file(path, start=start, end=end))

    return read


@asynccontextmanager
async def open_obstore(options: Mapping[str, Any], _: int) -> AsyncIterator[Read]:
    """Stores of obstore, one a bucket; they need not be closed."""
    package = import_module("obstore")
    stores: dict[str, Any] = {}

    async def read(path: str, start: int, end: int) -> int:
        place, name = split_for_obstore(path)
        if place not in stores:
            stores[place] = obstore_for(place, options)
        return len(await package.get_range_async(stores[place], name, start=start, end=end))

    yield read


def split_for_obstore(path: str) -> tuple[str, str]:
    """What a store of obstore is made for, and the name of an object in it.

    Examples:
        >>> split_for_obstore("s3a://bucket/a/b.tfrecord")
        ('s3://bucket', 'a/b.tfrecord')
        >>> split_for_obstore("https://host:80/a/b.tfrecord"), split_for_obstore("/data/b.tfrecord")
        (('https://host:80', 'a/b.tfrecord'), ('file:///', 'data/b.tfrecord'))
    """
    protocol, separator, rest = path.partition("://")
    kind = kind_of_protocol(protocol).name if separator else "file"
    if kind == "file":
        return "file:///", os.path.abspath(rest if separator else path).lstrip("/")
    bucket, _, name = rest.partition("/")
    return f"{kind}://{bucket}", name


def obstore_for(place: str, options: Mapping[str, Any]) -> Any:
    """A store of obstore with the storage options that were typed.

    Raises:
        click.UsageError: obstore has no counterpart of an option.
    """
    stores = import_module("obstore.store")
    kind, _, bucket = place.partition("://")
    if kind == "file":
        return stores.LocalStore()
    if kind in ("http", "https"):
        refuse_others(options, ())
        return stores.HTTPStore(place, client_options={"allow_http": True})
    insecure = str(options.get("endpoint_url", "")).startswith("http://")
    settings: dict[str, Any] = {"client_options": {"allow_http": insecure}}
    if kind == "gs":
        refuse_others(options, ("token", "endpoint_url"))
        if "endpoint_url" in options:
            settings["base_url"] = options["endpoint_url"]
        return stores.GCSStore(bucket, **settings, **gcs_credentials(options.get("token")))
    refuse_others(options, (*S3_OPTIONS, "client_kwargs", "profile"))
    settings |= {name: options[ours] for ours, name in S3_OPTIONS.items() if ours in options}
    client = options.get("client_kwargs", {})
    refuse_others(client, ("region_name", "endpoint_url"))
    if "endpoint_url" in client:
        settings["endpoint"] = client["endpoint_url"]
        settings["client_options"]["allow_http"] = str(client["endpoint_url"]).startswith("http://")
    if "key" not in options and not options.get("anon"):
        settings |= aws_credentials(options.get("profile"))
    # Servers on one's own network have no region, and obstore does not sign without one.
    region = client.get("region_name") or ("us-east-1" if "endpoint" in settings else None)
    return stores.S3Store(bucket, **settings, **({"region": region} if region else {}))


def refuse_others(options: Mapping[str, Any], known: tuple[str, ...]) -> None:
    """Checks that all options are known.

    Raises:
        click.UsageError: One is not.
    """
    for name in options:
        if name not in known:
            raise click.UsageError(
                f"--against obstore has no counterpart of the storage option {name!r}: leave out "
                "the option, or compare with s3fs or gcsfs"
            )


def gcs_credentials(token: Any) -> dict[str, Any]:
    """The settings of obstore for gcsfs's `token`: "anon", a file, or what the machine has.

    Examples:
        >>> gcs_credentials("anon"), gcs_credentials(None), gcs_credentials("/key.json")
        ({'skip_signature': True}, {}, {'service_account': '/key.json'})
    """
    if token == "anon":
        return {"skip_signature": True}
    if token in (None, "google_default", "cloud"):
        return {}
    if isinstance(token, str) and token.endswith(".json"):
        return {"service_account": token}
    raise click.UsageError(
        "--against obstore takes -o token=anon, the path of a JSON file, or no token: set "
        "GOOGLE_APPLICATION_CREDENTIALS, or compare with gcsfs"
    )


def aws_credentials(profile: str | None) -> dict[str, Any]:
    """The keys that botocore finds in profiles, variables and roles: obstore reads no profiles."""
    session = import_module("botocore.session").Session(profile=profile)
    found = session.get_credentials()
    if found is None:
        return {}
    keys = found.get_frozen_credentials()
    named = {
        "access_key_id": keys.access_key,
        "secret_access_key": keys.secret_key,
        "session_token": keys.token,
        "region": session.get_config_variable("region"),
    }
    return {name: value for name, value in named.items() if value}


CLIENTS: Final = {
    client.name: client
    for client in (
        Client(name="s3fs", open=open_s3fs, kinds=("s3",), extra="s3"),
        Client(name="gcsfs", open=open_gcsfs, kinds=("gs",), extra="gcs"),
        Client(name="obstore", open=open_obstore, kinds=("s3", "gs", "http", "https", "file")),
    )
}
