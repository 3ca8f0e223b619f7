"""The kinds of stores: one row each, with all that the package must know of a kind. Pure.

A new backend is a module of `streamrec/storage/backends/`, a row here, and a test class that
inherits from `tests/storage/contract.py`. A row says only what differs from the defaults. Kinds
without a `module` are used through fsspec; their rows name the package to install.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Final, Literal

__all__ = ["KINDS", "StoreKind", "kind_of_protocol"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreKind:
    """One kind of store.

    Attributes:
        protocols: The schemes of its URLs. All are spellings of the first one: two URLs that differ
            only in the spelling name the same object.
        module: The module in `streamrec.storage.backends` that reads and writes it. Its function
            `connect` makes one client for all URLs. "" if fsspec's filesystem is used.
        filesystem: The module of the class of a user's own `filesystem=` of this kind; also that of
            a base class. "" if such a filesystem is used through fsspec.
        extra: The extra of `pyproject.toml` that installs the client, for messages.
        package: What to install if there is no extra.
        has_buckets: Whether a path is a bucket and a key, compared as text, and one client reads
            all buckets with the same credentials. A path without a scheme is then one in the user's
            own `filesystem=`, if there is one.
        medium: What bytes come over, and what may therefore be the bottleneck.
        login_in_url: Whether the name before an "@" in a URL is a user or a container. In other
            URLs it may be a token, and is masked.
        environment: Prefixes of the environment variables that the client reads.
        host: The server if no other one is named; "" if the URL names it.
        endpoint_variables: The environment variables that name another server.
        misnomers: What people write in place of the scheme, and for each what to write.
    """

    protocols: tuple[str, ...]
    module: str = ""
    filesystem: str = ""
    extra: str = ""
    package: str = ""
    has_buckets: bool = False
    medium: Literal["network", "disk", "memory"] = "network"
    login_in_url: bool = False
    environment: tuple[str, ...] = ()
    host: str = ""
    endpoint_variables: tuple[str, ...] = ()
    misnomers: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The usual protocol."""
        return self.protocols[0]


S3_MISNOMERS: Final = (
    *("ais", "alluxio", "aws", "b2", "backblaze", "bos", "ceph", "cephs3", "cos", "cosn"),
    *("digitalocean", "do", "garage", "ks3", "linode", "minio", "nos", "obs", "ozone", "qs"),
    *("r2", "rados", "rgw", "s3n", "scw", "seaweedfs", "spaces", "storj", "swift", "tigris"),
    *("vultr", "wasabi"),
)
"""Names of stores that speak S3's protocol."""

WRITE_S3: Final = (
    "s3://BUCKET/NAME with storage_options={'endpoint_url': ...} (-o endpoint_url=...), as this "
    "store speaks S3's protocol"
)

KINDS: Final = (
    StoreKind(
        protocols=("s3", "s3a"),
        module="s3",
        filesystem="s3fs.core",
        extra="s3",
        has_buckets=True,
        environment=("AWS_", "BOTO"),
        host="s3.amazonaws.com",
        endpoint_variables=("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"),
        misnomers=dict.fromkeys(S3_MISNOMERS, WRITE_S3),
    ),
    StoreKind(
        protocols=("gs", "gcs"),
        module="gcs",
        filesystem="gcsfs.core",
        extra="gcs",
        has_buckets=True,
        environment=("GOOGLE_", "GCE_", "CLOUDSDK_", "STORAGE_EMULATOR_HOST"),
        host="storage.googleapis.com",
        endpoint_variables=("STORAGE_EMULATOR_HOST",),
        misnomers=dict.fromkeys(("gcloud", "gcp", "google"), "gs://BUCKET/NAME"),
    ),
    StoreKind(
        protocols=("http",),
        module="http",
        filesystem="fsspec.implementations.http",
        extra="http",
    ),
    StoreKind(protocols=("https",), module="http", extra="http"),
    StoreKind(
        protocols=("file", "local"),
        module="local",
        filesystem="fsspec.implementations.local",
        medium="disk",
    ),
    StoreKind(
        protocols=("memory",),
        module="memory",
        filesystem="fsspec.implementations.memory",
        has_buckets=True,
        medium="memory",
        login_in_url=True,
    ),
    StoreKind(
        protocols=("az", "abfs", "abfss", "adl"),
        extra="azure",
        login_in_url=True,
        environment=("AZURE_",),
        misnomers=dict.fromkeys(("azure", "blob", "wasb", "wasbs"), "az://CONTAINER/NAME"),
    ),
    StoreKind(protocols=("asynclocal",), package="morefs"),
    StoreKind(protocols=("box",), package="boxfs"),
    StoreKind(protocols=("dask",), package="dask distributed"),
    StoreKind(protocols=("dbfs",), package="requests"),
    StoreKind(protocols=("dropbox",), package="dropboxdrivefs"),
    StoreKind(protocols=("gdrive",), package="gdrive-fsspec"),
    StoreKind(protocols=("git",), package="pygit2"),
    StoreKind(protocols=("github",), package="requests"),
    StoreKind(protocols=("hdfs",), package="pyarrow", login_in_url=True),
    StoreKind(
        protocols=("hf",),
        package="huggingface_hub",
        misnomers={"huggingface": "hf://"},
    ),
    StoreKind(protocols=("jupyter", "jlab"), package="requests"),
    StoreKind(protocols=("lakefs",), package="lakefs-spec"),
    StoreKind(protocols=("libarchive",), package="libarchive-c"),
    StoreKind(protocols=("oci", "ocilake"), package="ocifs"),
    StoreKind(protocols=("oss",), package="ossfs"),
    StoreKind(protocols=("root",), package="fsspec-xrootd"),
    StoreKind(protocols=("sftp", "ssh"), package="paramiko", login_in_url=True),
    StoreKind(protocols=("smb",), package="smbprotocol", login_in_url=True),
    StoreKind(protocols=("wandb",), package="wandbfs"),
    StoreKind(
        protocols=("webdav",),
        misnomers={
            **dict.fromkeys(("dav", "davs"), "webdav://"),
            "webdavs": "webdav://, with a base_url of https://",
        },
    ),
    StoreKind(protocols=("webhdfs",), package="requests", login_in_url=True),
)

_BY_PROTOCOL: Final = {protocol: kind for kind in KINDS for protocol in kind.protocols}

MISNOMERS: Final = {name: advice for kind in KINDS for name, advice in kind.misnomers.items()}
"""Names of no scheme, and what to write in place of each."""

OWN_PROTOCOLS: Final = tuple(protocol for protocol, kind in _BY_PROTOCOL.items() if kind.module)
"""The protocols with a backend of our own."""


@cache
def kind_of_protocol(protocol: str) -> StoreKind:
    """The kind of a protocol in lower case; one with all defaults if the table does not have it.

    >>> kind_of_protocol("s3a").name, kind_of_protocol("s3a").module
    ('s3', 's3')
    >>> kind_of_protocol("ftp").name, kind_of_protocol("ftp").module
    ('ftp', '')
    """
    return _BY_PROTOCOL.get(protocol) or StoreKind(protocols=(protocol,))


def kind_of_filesystem(module: str) -> StoreKind | None:
    """The kind of a user's own filesystem whose class, or a base class, is in this module."""
    return next((kind for kind in KINDS if kind.filesystem == module), None)


def shows_login(scheme: str) -> bool:
    """Whether the name before an "@" in URLs of this scheme, or misnomer, is no secret.

    >>> shows_login("sftp"), shows_login("wasbs"), shows_login("https")
    (True, True, False)
    """
    if scheme in MISNOMERS:
        return any(kind.login_in_url and scheme in kind.misnomers for kind in KINDS)
    return kind_of_protocol(scheme).login_in_url
