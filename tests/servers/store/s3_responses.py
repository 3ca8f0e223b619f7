"""Answers in the words of Amazon S3 (API reference 2006-03-01): XML bodies and header fields.
Pure.
"""

from collections.abc import Mapping
from email.utils import formatdate
from urllib.parse import quote
from xml.sax.saxutils import escape

from tests.servers.network.http1 import Fields
from tests.servers.store.listing import Found, Page

_XMLNS = 'xmlns="http://s3.amazonaws.com/doc/2006-03-01/"'
_HEAD = '<?xml version="1.0" encoding="UTF-8"?>\n'


def error_xml(code: str, message: str, resource: str) -> bytes:
    """The body of an error; clients decide by `code` (NoSuchKey, SlowDown, ...)."""
    return (
        f"{_HEAD}<Error><Code>{code}</Code><Message>{escape(message)}</Message>"
        f"<Resource>{escape(resource)}</Resource><RequestId>0</RequestId></Error>"
    ).encode()


def object_fields(etag: str, generation: int, written: int) -> Fields:
    """The fields of an object's GET and HEAD except its length; Google's XML API adds the
    generation.
    """
    return (
        ("ETag", etag),
        ("Last-Modified", formatdate(written / 1e9, usegmt=True)),
        ("Accept-Ranges", "bytes"),
        ("Content-Type", "application/octet-stream"),
        ("x-goog-generation", str(generation)),
    )


def list_xml(
    bucket: str, query: Mapping[str, str], page: Page, limit: int, etags: Mapping[str, str]
) -> bytes:
    """A page of ListObjectsV2; `etags` maps keys to entity tags."""
    spell = (lambda text: quote(text, safe="/")) if query.get("encoding-type") == "url" else escape
    lines = [
        f"{_HEAD}<ListBucketResult {_XMLNS}>",
        f"<Name>{escape(bucket)}</Name><Prefix>{spell(query.get('prefix', ''))}</Prefix>",
        f"<MaxKeys>{limit}</MaxKeys><IsTruncated>{'true' if page.token else 'false'}</IsTruncated>",
        f"<KeyCount>{len(page.found) + len(page.prefixes)}</KeyCount>",
    ]
    if query.get("delimiter"):
        lines.append(f"<Delimiter>{spell(query['delimiter'])}</Delimiter>")
    if query.get("encoding-type") == "url":
        lines.append("<EncodingType>url</EncodingType>")
    if page.token:
        lines.append(f"<NextContinuationToken>{page.token}</NextContinuationToken>")
    lines += [_contents(item, spell(item.key), etags[item.key]) for item in page.found]
    lines += [
        f"<CommonPrefixes><Prefix>{spell(name)}</Prefix></CommonPrefixes>" for name in page.prefixes
    ]
    return "".join([*lines, "</ListBucketResult>"]).encode()


def _contents(item: Found, key: str, etag: str) -> str:
    return (
        f"<Contents><Key>{key}</Key><LastModified>{item.time}</LastModified><ETag>{escape(etag)}</ETag>"
        f"<Size>{item.size}</Size><StorageClass>STANDARD</StorageClass></Contents>"
    )
