"""The URLs that the names in a manifest or an index mean, and the directories that these may be in.

Pure.

A manifest may come from anywhere, and its reader has credentials and files of its own. So:

- A name is relative to the directory of the manifest and stays below it, or is the full URL of an
  object below it.
- Shards elsewhere need `shard_root`: the caller passes the one other directory that they may be in.
  If the caller names the shards and takes only their numbers of records from the manifest, the
  manifest's names are not followed.
- Storage options are for one store. So the manifest and `shard_root` are in one store, or one of
  them is local.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from typing import Any
from urllib.parse import unquote, urlsplit

from streamrec.errors import ManifestError
from streamrec.storage import is_url, local_path, split_chain
from streamrec.storage.identity import PORTS
from streamrec.store_kinds import kind_of_protocol


def absolute(path: str, name: str) -> str:
    """A name in a manifest at `path` as a URL.

    >>> absolute("s3://b/d/m.json", "train-0"), absolute("m.json", "/x")
    ('s3://b/d/train-0', '/x')
    >>> absolute("https://h/d/m.json?v=a/b", "x")
    'https://h/d/x'
    """
    if name.startswith("./"):
        name = name[2:]
    elif "://" in name or name.startswith("/"):
        return name
    before, url, after = split_chain(path)
    return before + _directory(url) + name + after


def relative(path: str, url: str) -> str:
    """A URL as a manifest at `path` names it.

    The manifest's directory is left out, if the object is below that.
    """
    before, link, after = split_chain(path)
    directory = before + _directory(link)
    name = url.removeprefix(directory).removesuffix(after)
    if name.startswith("./") or (
        directory and url.startswith(directory) and ("://" in name or name.startswith("/"))
    ):
        name = f"./{name}"
    return name if absolute(path, name) == url and not _climbs(name) else url


def portable(path: str, url: str) -> str:
    """A shard's URL as a manifest at `path` can name it.

    A relative path that is not below it becomes absolute.

    >>> portable("d/m.json", "d/train-0"), portable("d/m.json", "/data/train-0")
    ('d/train-0', '/data/train-0')
    """
    name = relative(path, url)
    if "://" in url or (
        absolute(path, name) == url and not name.startswith("~") and not _climbs(name)
    ):
        return url
    return os.path.abspath(os.path.expanduser(url))


def check_name(value: Any, path: str) -> str:
    """Returns a name in the manifest at `path`.

    A ValueError if no object has it, or it leads out of the directory.
    """
    if not isinstance(value, str) or not value or "\0" in value:
        raise ValueError(f"{value!r} is not a name of an object")
    try:
        os.fsencode(value) if "://" not in path else value.encode()
    except UnicodeEncodeError:
        raise ValueError(
            f"{value!r} is not a name of an object: it holds half a character"
        ) from None
    if _climbs(value):
        raise ValueError(f"the name {value!r} leads out of the manifest's directory")
    return value


def find_repeated(urls: Iterable[str]) -> str | None:
    """The first URL of an object that an earlier one names too; None if there is none."""
    seen = set[tuple[str, str]]()
    for url in urls:
        if (location := location_of(url)) in seen:
            return url
        seen.add(location)
    return None


def check_named_once(urls: Iterable[str]) -> None:
    """Refuses a list that names a shard twice: a manifest or an index of it could not be read."""
    if (repeated := find_repeated(urls)) is not None:
        raise ManifestError(f"{repeated}: this shard is named twice: name it once")


def check_places(path: str, urls: Iterable[str], shard_root: str | None) -> None:
    """Refuses a manifest at `path` that names objects outside its directory.

    They may also be in `shard_root`, if that is given.
    """
    before, link, after = split_chain(path)
    roots = [_root(before + (_directory(link) or "./") + after)]
    if shard_root is not None:
        roots.append(_root(shard_root))
        # A local manifest of shards in a store is usual, and its directory is of another store.
        stores = {store for store, _ in roots} - {"file://"}
        if len(stores) > 1:
            raise ManifestError(
                f"{path}: shard_root={shard_root!r} is in another store, and storage options are "
                "for one store: copy the manifest to a local directory, or next to the shards"
            )
    for url in urls:
        if not any(_is_in(url, root) for root in roots):
            raise ManifestError(
                f"{path}: it names {url}, which is not below the manifest's directory: if this is "
                "right, pass the directory of its shards: "
                f"shard_root={split_chain(url).before + _directory(split_chain(url).url)!r} "
                "(--shard-root on the command line)"
            )


def is_below(url: str, directory: str) -> bool:
    """Whether an object is below a directory, in all spellings of both, and through local links.

    >>> urls = "s3a://b/d/x", "s3://b/d/../x", "s3://b/dx"
    >>> [is_below(url, "s3://b/d") for url in urls]
    [True, False, False]
    """
    (store, key) = location_of(url)
    (root_store, root) = _root(directory)
    if "\0" in key or _climbs(key):
        return False
    if store == "file://":
        key = os.path.realpath(key)
        root = os.path.join(os.path.realpath(root), "")
    return store == root_store and key.startswith(root) and key != root


def _is_in(url: str, root: tuple[str, str]) -> bool:
    store, key = location_of(url)
    return store == root[0] and key.startswith(root[1]) and not _climbs(key)


def location_of(url: str) -> tuple[str, str]:
    """The store of a URL, and the key in it: equal for all spellings of one URL or path.

    >>> location_of("s3a://b/x") == location_of("s3://b/x"), location_of("HTTPS://Host:443/x")
    (True, ('https://host', '/x'))
    >>> location_of("file:///data/x") == location_of("/data/./x")
    True
    """
    before, link, after = split_chain(url)
    scheme, _, rest = link.partition("://") if is_url(link) else ("file", "", link)
    kind = kind_of_protocol(scheme.lower())
    scheme = kind.name
    if before or after:
        return f"{before}{scheme}://{after}", rest
    if scheme == "file":
        return "file://", os.path.abspath(local_path(link))
    if kind.has_buckets:
        return f"{scheme}://", rest.lstrip("/")
    host, slash, key = rest.partition("/")
    if scheme in PORTS:
        parts = urlsplit(f"//{host}")
        host = host.lower().removesuffix(f":{PORTS[scheme]}") if parts.username is None else host
    return f"{scheme}://{host}", slash + key


def _root(directory: str) -> tuple[str, str]:
    store, key = location_of(directory)
    return store, key if key.endswith("/") or not key else key + "/"


def _directory(url: str) -> str:
    """The directory of a URL, with a slash at its end; nothing for a plain name."""
    if re.match("https?://", url, re.IGNORECASE):
        url = re.split("[?#]", url, maxsplit=1)[0]
    return url[: url.rfind("/") + 1]


def _climbs(name: str) -> bool:
    """Whether a name has a `..`, in any form that a store may understand."""
    return ".." in re.split(r"[/\\]", unquote(name))
