"""A program for credentials that begins to fail: one error, and no traceback for each request."""

import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from tests.runs import in_new_interpreter

PROGRAM = """
import datetime, json, pathlib, sys
calls = pathlib.Path(sys.argv[1])
calls.write_text(calls.read_text() + "x")
if len(calls.read_text()) > 1:
    sys.exit("the broker's token has expired: log in again")
end = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=2)
print(json.dumps({"Version": 1, "AccessKeyId": "a", "SecretAccessKey": "b", "SessionToken": "c",
                  "Expiration": end.strftime("%Y-%m-%dT%H:%M:%SZ")}))
"""

READER = """
import logging, sys
import streamrec
logging.basicConfig(stream=sys.stdout)
names = [f"s3://bucket/{number}" for number in range(40)]
options = {"endpoint_url": sys.argv[1]}
retry = streamrec.RetryPolicy(first_contact=4)
dataset = streamrec.TFRecordDataset(
    names, num_parallel_reads=16, storage_options=options, retry=retry
)
try:
    list(dataset)
except streamrec.StreamrecError as error:
    print(f"{type(error).__name__}: {error}")
"""


class Objects(BaseHTTPRequestHandler):
    """Every object is empty; signatures are not checked."""

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.send_header("ETag", '"d41d8cd98f00b204e9800998ecf8427e"')
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Prints nothing."""


def test_failing_renewal_is_one_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("s3fs")
    program, calls = tmp_path / "program.py", tmp_path / "calls"
    program.write_text(PROGRAM)
    calls.write_text("")
    config = tmp_path / "config"
    config.write_text(f"[default]\ncredential_process = {sys.executable} {program} {calls}\n")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    server = ThreadingHTTPServer(("127.0.0.1", 0), Objects)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        said = in_new_interpreter(READER, f"http://127.0.0.1:{server.server_port}")
    finally:
        server.shutdown()
        server.server_close()
    assert "Traceback" not in said
    assert "PermissionDeniedError: s3://bucket/" in said
    assert "the broker's token has expired: log in again" in said
    assert len(said.splitlines()) < 8
    assert len(calls.read_text()) < 12
