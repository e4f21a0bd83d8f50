"""Trial records in an object store through fsspec: ``s3://``, ``gs://``, ``memory://`` and other protocols.

An object store cannot rename, but writes single objects atomically. A commit writes the arrays first, each under its
digest, so writers of different bytes never collide. It writes ``record.json`` last and only if it does not exist
(``If-None-Match``). Readers ignore arrays without a record.
"""

import hashlib
import os
import shutil
import tempfile
import time
import uuid
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from dpspec.errors import UsageError
from dpspec.stores.folder import CONTENT, KEY, MARK, RECORD, check_key, check_mark, require_unused, shown

#: Seconds before repeated writes of a record. A store may reject both of two simultaneous writes.
_PAUSES = (0.1, 0.4, 1.6)


class RemoteStorage:
    """Stores records under a prefix of an object store. Safe for writers on several machines."""

    def __init__(self, files: Any, root: str, location: str) -> None:
        """``files``: an fsspec file system; ``root``: its prefix; ``location``: the URL."""
        self._files, self._root, self._url = files, root.rstrip("/"), location
        self._local = Path(tempfile.mkdtemp(prefix="dpspec-store-"))
        self.location = shown(location)
        self._looked = self._marked = False
        weakref.finalize(self, shutil.rmtree, self._local, ignore_errors=True)

    @classmethod
    def open(cls, url: str) -> "RemoteStorage":
        import fsspec

        try:
            files, root = fsspec.core.url_to_fs(url, use_listings_cache=False)
        except (ImportError, ValueError) as error:
            protocol = url.split("://", 1)[0]
            extra = {"s3": "s3", "gs": "gs", "gcs": "gs"}.get(protocol)
            hint = f"; pip install 'dpspec[{extra}]'" if extra else ""
            raise UsageError(f"cannot use the store {shown(url)}: {error}{hint}") from None
        except Exception as error:  # implementations raise different errors, some when they connect
            text = (" ".join(str(error).split()) or type(error).__name__).replace(url, shown(url))
            raise UsageError(f"cannot use the store {shown(url)}: {text}") from None
        return cls(files, root, url)

    def exists(self) -> bool:
        """True: a prefix exists as soon as it has an object, and checking costs a request."""
        return True

    def require_store(self) -> None:
        """Do nothing. The first request checks the prefix."""

    def mark(self) -> None:
        self._look()
        if not self._marked:
            with self._asked():
                self._files.pipe_file(f"{self._root}/{MARK}", CONTENT)
            self._marked = True

    def refusal(self) -> str | None:
        probe = f"{self._root}/tmp/{self._local.name}"
        try:
            self.mark()
            with self._asked():
                self._files.pipe_file(probe, b"")
                self._files.rm_file(probe)
        except UsageError as error:
            return str(error)
        return None

    def holds(self, key: str) -> bool:
        self._look()
        with self._asked():
            return bool(self._files.exists(f"{self._folder(key)}/{RECORD}"))

    def file(self, key: str, name: str, digest: str = "") -> Path:
        place = self._read(key) / _stored_name(name, digest)
        if not (digest and place.exists()):
            place.parent.mkdir(parents=True, exist_ok=True)
            arriving = place.with_name(uuid.uuid4().hex)
            with self._asked():
                content = self._files.cat_file(f"{self._folder(key)}/{place.name}")
            arriving.write_bytes(content)
            os.replace(arriving, place)
        return place

    def scratch(self) -> Path:
        return Path(tempfile.mkdtemp(dir=self._local))

    def commit(self, key: str, folder: Path) -> None:
        if self.holds(key):
            return
        self.mark()
        place = self._folder(key)
        with suppress(FileExistsError):
            with self._asked():
                for file in sorted(folder.iterdir()):
                    if file.name != RECORD:
                        with file.open("rb") as stream:
                            name = _stored_name(file.name, hashlib.file_digest(stream, "sha256").hexdigest())
                        self._files.put_file(str(file), f"{place}/{name}")
            record = (folder / RECORD).read_bytes()
            for pause in (*_PAUSES, None):
                try:
                    with self._asked():
                        self._files.pipe_file(f"{place}/{RECORD}", record, mode="create")
                    break
                except UsageError:
                    if pause is None:
                        raise
                    time.sleep(pause)

    def quarantine(self, key: str) -> None:
        shutil.rmtree(self._read(key), ignore_errors=True)
        record = f"{self._folder(key)}/{RECORD}"
        with self._asked():
            self._files.copy(record, f"{self._root}/damaged/{key}/{RECORD}")
            self._files.rm_file(record)

    def unfinished(self, key: str) -> None:
        """None: uploading the state of unfinished trials repeatedly would be too slow."""
        check_key(key)

    def _look(self) -> None:
        if self._looked:
            return
        with self._asked():
            self._marked = self._is_marked()
            if not self._marked:
                below: set[str] = set()
                with suppress(FileNotFoundError):
                    below = {path.removeprefix(self._root).strip("/") for path in self._files.find(self._root)}
                self._marked = MARK in below and self._is_marked()  # another writer may have marked it
            if not self._marked:
                require_unused((path for path in below if path), self.location)  # some stores list folders as objects
        self._looked = True

    def _is_marked(self) -> bool:
        try:
            content = self._files.cat_file(f"{self._root}/{MARK}")
        except FileNotFoundError:
            return False
        check_mark(content, self.location)
        return True

    def _read(self, key: str) -> Path:
        return self._local / "read" / check_key(key)

    def _folder(self, key: str) -> str:
        return f"{self._root}/trials/{check_key(key)[:2]}/{key}"

    @contextmanager
    def _asked(self) -> Iterator[None]:
        """Convert errors of the file system to ``UsageError``, so that an unreachable store is not taken for damage."""
        try:
            yield
        except (FileNotFoundError, FileExistsError, UsageError):
            raise
        except Exception as error:  # implementations raise different errors
            text = (" ".join(str(error).split()) or type(error).__name__).replace(self._url, self.location)
            raise UsageError(f"cannot use the store {self.location}: {text}") from error


def _stored_name(name: str, digest: str) -> str:
    if name == RECORD:
        return name
    if not KEY.fullmatch(digest):
        raise ValueError(f"not a digest: {digest!r}")
    return f"{digest[:16]}.{name}"
