"""What obstore is configured with, from the options that s3fs and gcsfs take. Pure; makes no client.

So a user adds `"backend": "obstore"` to the storage options and changes nothing else. An option without a
counterpart is an error that names it: half of a configuration is worse than none.

Time limits and retries are not options: they are the retry policy's. Where one request of ours is one
request of obstore's, its retries are off. What it does with many requests and hands out as one (a listing,
a multipart upload) can only be tried again from within, request by request: for these, and only these, its
own retries are on, set from the same policy, and ours take no part.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from streamrec.errors import StorageError
from streamrec.storage.resilience.retry import RetryPolicy

__all__ = ["Settings", "settings", "several_tries", "single_try"]

_NO_LIMIT: Final = timedelta(days=365)
_S3_NAMES: Final = {
    "key": "access_key_id",
    "username": "access_key_id",
    "secret": "secret_access_key",
    "password": "secret_access_key",
    "token": "session_token",
    "anon": "skip_signature",
    "endpoint_url": "endpoint",
    "requester_pays": "request_payer",
}
_S3_CLIENT_NAMES: Final = {
    "region_name": "region",
    "endpoint_url": "endpoint",
    "aws_access_key_id": "access_key_id",
    "aws_secret_access_key": "secret_access_key",
    "aws_session_token": "session_token",
}
_GCS_NO_MEANING: Final = frozenset({"project", "access", "consistency"})
"""Options of gcsfs that say nothing about reading and writing objects."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How to reach a store, whichever bucket.

    Attributes:
        config: Of `obstore.store.S3Store` or `GCSStore`.
        client: Their `client_options`.
    """

    config: Mapping[str, Any]
    client: Mapping[str, Any]


def settings(protocol: str, options: Mapping[str, Any], policy: RetryPolicy) -> Settings:
    """Translates storage options.

    Args:
        protocol: "s3", "s3a", "gs" or "gcs".
        options: What the user gave, without "backend".
        policy: Whose time limits hold.

    Raises:
        StorageError: Another protocol, or an option that obstore has no counterpart of.

    >>> settings("s3", {"key": "k", "secret": "s", "endpoint_url": "http://h:1"}, RetryPolicy()).config["endpoint"]
    'http://h:1'
    """
    if protocol in ("s3", "s3a"):
        config, client = _s3(options)
    elif protocol in ("gs", "gcs"):
        config, client = _gcs(options)
    else:
        raise StorageError(f"backend='obstore' serves s3:// and gs://, not {protocol}://: leave it out for these")
    endpoint = str(config.get("endpoint") or config.get("base_url") or "")
    limits = {
        "connect_timeout": timedelta(seconds=policy.connect_timeout),
        "read_timeout": timedelta(seconds=policy.stall_timeout),
        "timeout": _NO_LIMIT,  # obstore's own is 30 s for a whole body
        "allow_http": endpoint.startswith("http:"),
    }
    return Settings(config, {**client, **limits})


def single_try() -> dict[str, Any]:
    """The `retry_config` that tries nothing again."""
    return {"max_retries": 0, "retry_timeout": timedelta(0)}


def several_tries(policy: RetryPolicy) -> dict[str, Any]:
    """The `retry_config` that does what the policy says, for each request by itself."""
    return {
        "max_retries": policy.attempts - 1,
        "retry_timeout": timedelta(seconds=policy.budget),
        "backoff": {
            "init_backoff": timedelta(seconds=policy.backoff_base),
            "max_backoff": timedelta(seconds=policy.backoff_cap),
            "base": 2,
        },
    }


def _s3(options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    config: dict[str, Any] = {}
    client: dict[str, Any] = {}
    for name, value in options.items():
        if name == "client_kwargs":
            for inner, setting in value.items():
                if inner == "verify":
                    client.update(_trust(setting))
                else:
                    config[_renamed(_S3_CLIENT_NAMES, inner, f"client_kwargs[{inner!r}]")] = setting
        elif name == "use_ssl":
            _check_ssl(value, options)
        elif value is not None:
            config[_renamed(_S3_NAMES, name, repr(name))] = value
    config.setdefault("region", "us-east-1")  # as botocore's default for servers that are not Amazon's
    return {name: value for name, value in config.items() if value is not None and value != ""}, client


def _renamed(names: Mapping[str, str], name: str, shown: str) -> str:
    if name not in names:
        raise _unknown(shown)
    return names[name]


def _trust(verify: Any) -> dict[str, Any]:
    """Botocore's `verify`: True, False, or a file of certificates."""
    if isinstance(verify, bool):
        return {"allow_invalid_certificates": not verify}
    with open(verify, "rb") as file:
        return {"root_certificate": file.read()}


def _check_ssl(use_ssl: Any, options: Mapping[str, Any]) -> None:
    endpoint = str(options.get("endpoint_url") or "")
    if bool(use_ssl) == endpoint.startswith("http:"):
        raise StorageError(f"use_ssl is {use_ssl!r}: with backend='obstore' the endpoint_url says http or https")


def _gcs(options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    config: dict[str, Any] = {}
    for name, value in options.items():
        if name == "endpoint_url":
            config.update({"base_url": value} if value else {})
        elif name == "token":
            config.update(_gcs_token(value))
        elif name not in _GCS_NO_MEANING:
            raise _unknown(repr(name))
    return config, {}


def _gcs_token(token: Any) -> dict[str, Any]:
    """Gcsfs's `token`: "anon", a key (a file or its content), or None for what the machine offers."""
    if token in (None, "google_default", "cloud"):
        return {}
    if token == "anon":
        return {"skip_signature": True, "bearer_token": "anonymous"}  # it would look for a token to write with
    if isinstance(token, Mapping):
        return {"service_account_key": json.dumps(dict(token))}
    if isinstance(token, str) and token.endswith(".json"):
        return {"service_account": token}
    raise StorageError(
        "this token has no counterpart in obstore: pass 'anon', 'google_default', a key file's path (.json) or its "
        "content as a dict, or leave out backend='obstore'"
    )


def _unknown(shown: str) -> StorageError:
    return StorageError(f"the storage option {shown} is unknown to backend='obstore': leave one of the two out")
