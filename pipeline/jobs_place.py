"""Where an export lies: a folder, or what else Spark can write to, such as `hdfs://` or `s3a://`.

It is seen through Hadoop's own file systems, in the driver's JVM, because that is what Spark's
tasks write through: what one of them can reach, so can the other.

One rule: nothing is removed but what an export has left. A folder with anything else in it is
refused, whatever was asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shardnode.pipeline.jobs_manifest import NAME, Manifest, decode, encode
from shardnode.wire.errors import InvalidRequest, NotFound

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_TEMPORARY = f"{NAME}.tmp"
_OF_SPARK = ("_SUCCESS", "_temporary")
_ROWS = "shard="


class Place:
    """A directory by its path or URL."""

    def __init__(self, spark: SparkSession, url: str) -> None:
        from py4j.protocol import Py4JJavaError

        self.url = url
        jvm: Any = spark._jvm
        self._path_of = jvm.org.apache.hadoop.fs.Path
        self._to_bytes = jvm.org.apache.commons.io.IOUtils.toByteArray
        java: Any = spark._jsc
        try:
            self._root = self._path_of(url)
            system = self._root.getFileSystem(java.hadoopConfiguration())
        except Py4JJavaError as error:
            raise InvalidRequest(
                f"{url}: expected a folder, or a URL that Spark can write to, found"
                f" {str(error.java_exception.getMessage())[:200]}; other file systems need their"
                " package: --conf spark.jars.packages=…"
            ) from error
        # Of the raw one, so that no checksum files lie beside what we write ourselves.
        is_local = system.getScheme() == "file"
        self._system = system.getRawFileSystem() if is_local else system

    def names(self) -> list[str]:
        """What lies in it; nothing if it is not there."""
        return [name for name, _, _ in self._list(self._root)]

    def sizes(self) -> dict[str, int]:
        """The files of rows, as `shard=0/part-….parquet`."""
        found = {}
        for folder, is_folder, _ in self._list(self._root):
            if is_folder and folder.startswith(_ROWS):
                for name, _, size in self._list(self._path_of(self._root, folder)):
                    if not name.startswith((".", "_")):
                        found[f"{folder}/{name}"] = size
        return found

    def make_ready(self, *, overwrite: bool) -> None:
        """Raise `InvalidRequest` unless it is empty; with `overwrite`, remove the export there."""
        names = self.names()
        strangers = [name for name in names if not _is_ours(name)]
        if strangers:
            raise InvalidRequest(
                f"{self.url}: expected a folder that is absent or empty, found {strangers[0]!r}"
                " there; export to another one"
            )
        if names and not overwrite:
            raise InvalidRequest(
                f"{self.url}: expected a folder that is absent or empty, found"
                f" {'an export' if NAME in names else 'what an interrupted export left'}; give"
                " --overwrite to replace it, or export to another one"
            )
        # The manifest first: without it the rest is no export any more.
        for name in sorted(names, key=lambda name: name != NAME):
            self._system.delete(self._path_of(self._root, name), True)

    def manifest(self) -> Manifest:
        """That of the export; raises `NotFound` when there is none."""
        if NAME not in self.names():
            raise NotFound(
                f"{self.url}: expected an export with its {NAME}, found none: it was interrupted,"
                " or is something else; give --no-manifest to import any Parquet"
            )
        stream = self._system.open(self._path_of(self._root, NAME))
        try:
            return decode(bytes(self._to_bytes(stream)), f"{self.url}/{NAME}")
        finally:
            stream.close()

    def publish(self, manifest: Manifest) -> None:
        """From here on it is an export."""
        data, temporary = bytearray(encode(manifest)), self._path_of(self._root, _TEMPORARY)
        stream = self._system.create(temporary, True)
        try:
            stream.write(data)
            stream.hsync()
        finally:
            stream.close()
        if not self._system.rename(temporary, self._path_of(self._root, NAME)):
            raise InvalidRequest(f"{self.url}: its {NAME} could not be written; export again")

    def _list(self, folder: Any) -> list[tuple[str, bool, int]]:
        """(name, whether it is a folder, size)."""
        if not self._system.exists(folder):
            return []
        found = self._system.listStatus(folder)
        return [(each.getPath().getName(), each.isDirectory(), each.getLen()) for each in found]


def has_manifest(spark: SparkSession, url: str) -> bool:
    """Whether an export lies there."""
    return NAME in Place(spark, url).names()


def _is_ours(name: str) -> bool:
    if name.startswith("."):  # checksums of what is beside
        return name.endswith(".crc")
    return name in (NAME, _TEMPORARY, *_OF_SPARK) or name.startswith(_ROWS)
