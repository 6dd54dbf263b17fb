"""A destination in an object store, through `obstore`, which the extra `tiering` installs.

The one rule: an object is put whole or not at all, so nothing here needs a temporary name. Keys and
secrets are those of the environment, as each store's own tools read them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from shardnode.backup.store import missing
from shardnode.wire.errors import InvalidRequest, NotFound, Unavailable


class ObjectStore:
    """Objects below the URL of a bucket and a path."""

    def __init__(self, url: str, store: Any = None) -> None:
        """`store`: one that is open already, of `obstore`."""
        try:
            import obstore
            from obstore.exceptions import BaseError, NotFoundError
        except ImportError as error:
            raise InvalidRequest(
                f"{url}: expected the package obstore for an object store, found none; install"
                " shardnode[tiering], or use a folder"
            ) from error
        self._api, self._url = obstore, url
        self._failed, self._not_found = BaseError, NotFoundError
        try:
            self._store = obstore.store.from_url(url) if store is None else store
        except (BaseError, ValueError) as error:
            raise InvalidRequest(
                f"{url}: expected the URL of an object store, such as s3://bucket/folder:"
                f" {_first_line(error)}"
            ) from error

    @property
    def place(self) -> str:
        return self._url

    def put(self, key: str, data: bytes) -> None:
        with self._translated(key):
            self._api.put(self._store, key, data)

    def get(self, key: str) -> bytes:
        with self._translated(key):
            return bytes(self._api.get(self._store, key).bytes())

    def exists(self, key: str) -> int | None:
        try:
            with self._translated(key):
                return int(self._api.head(self._store, key)["size"])
        except NotFound:
            return None

    def list(self, prefix: str) -> Iterator[str]:
        with self._translated(prefix):
            for page in self._api.list(self._store, prefix.rstrip("/") or None):
                yield from (str(each["path"]) for each in page)

    def settle(self) -> None:
        """An object is there when it was put."""

    def alone(self) -> AbstractContextManager[None]:
        """Objects are put whole, and equal names have equal content: two backups may meet there."""
        return nullcontext()

    @contextmanager
    def _translated(self, key: str) -> Iterator[None]:
        """The library's errors as ours; the first line of what it says tells enough."""
        try:
            yield
        except (FileNotFoundError, self._not_found) as error:
            raise missing(self._url, key) from error
        except self._failed as error:
            raise Unavailable(f"{self._url}: {key}: {_first_line(error)}") from error


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)
