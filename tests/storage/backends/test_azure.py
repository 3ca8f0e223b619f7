"""Azure's Blob storage, through adlfs: before Azurite."""

from uuid import uuid4

import pytest

import streamrec
from streamrec.storage.backends.fsspec import common
from streamrec.storage.faults import Cause, TransientError
from tests.servers.answering import Answer, Asked, answering
from tests.servers.real import Store
from tests.storage.contract import QUICK_RETRIES, NotExclusiveTests, Place, check

adlfs = pytest.importorskip("adlfs")
ClientAuthenticationError = pytest.importorskip("azure.core.exceptions").ClientAuthenticationError


@pytest.fixture(scope="module")
def store(azure: Store) -> Store:
    return azure


@pytest.mark.filterwarnings(
    "ignore:Sending a large body:ResourceWarning"
)  # azure-core's own way of uploading
class TestAzure(NotExclusiveTests):
    @pytest.fixture
    def place(self, store: Store) -> Place:
        return Place(f"az://streamrec/{uuid4().hex}", store.options)


@pytest.mark.parametrize("scheme", ["az", "abfs"])
def test_shards_in_azure_are_written_found_read_and_resumed(store: Store, scheme: str) -> None:
    """Written, found by a pattern, read by several readers and in pieces, and gone on with from a
    state.
    """
    url = f"{scheme}://streamrec/{uuid4().hex}"
    assert check(url, store.options) == 0
    with pytest.raises(
        streamrec.StorageError, match=rf"this is a directory: write {url}/\*.tfrecord\*"
    ):
        list(streamrec.TFRecordDataset(url, storage_options=store.options))


async def test_a_wrong_key_is_refused_at_once(store: Store) -> None:
    wrong = {
        "connection_string": store.options["connection_string"].replace(
            "AccountKey=Eby8", "AccountKey=AAAA"
        )
    }
    with pytest.raises(streamrec.errors.PermissionDeniedError, match="check the credentials"):
        [_ async for _ in streamrec.TFRecordDataset("az://streamrec/x", storage_options=wrong)]


@pytest.mark.parametrize(("status", "cause"), [(None, Cause.CREDENTIALS), (403, Cause.REFUSED)])
def test_credentials_that_fail_may_pass(status: int | None, cause: Cause) -> None:
    """The service that gives tokens is busy, or a token expired just now: each is waited for as its
    cause says.
    """
    error = ClientAuthenticationError("no token, or not this one")
    error.status_code = status
    with pytest.raises(TransientError) as caught, common.translate_errors("az://streamrec/x"):
        raise error
    assert caught.value.cause is cause


async def test_the_retry_policy_is_the_only_one(store: Store) -> None:
    asked: list[Asked] = []

    def busy(request: Asked) -> Answer:
        asked.append(request)
        return Answer(503, headers={"x-ms-error-code": "ServerBusy"})

    with answering(busy) as url:
        account = store.options["connection_string"].rpartition("BlobEndpoint=")[0]
        options = {"connection_string": f"{account}BlobEndpoint={url}/account;"}
        dataset = streamrec.TFRecordDataset(
            "az://streamrec/x", storage_options=options, retry=QUICK_RETRIES
        )
        with pytest.raises(streamrec.errors.ThrottledError, match=r"in 3 attempts in a row"):
            [_ async for _ in dataset]
    assert len(asked) == QUICK_RETRIES.attempts
