"""A ledger: what all runs that a data owner took part in have told together, under caps.

A file of SQLite, with a key and a head beside it, FILE.key and FILE.head. The file holds a chain of
rows, each with a MAC under the key of itself and of the row before; the head says how far the chain
went. All that is known of runs and caps is read from the chain (`Books`). Answers and states lie
beside it, by the digests in their rows.

A release is one transaction: its row, its answer and the state after it. Then comes the head, and
only then may anybody be sent the answer. So the head may be one row behind, if a process died in
between, and never ahead: a file that was put back to what it was before is refused.
"""

import hashlib
import hmac
import json
import os
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple, Self

from equipoise.errors import DataError, EquipoiseError, InvalidValue, require
from equipoise.journal import keep, kept
from equipoise.privacy.ledger_books import Books, Caps, Charged, Kept, Standing
from equipoise.privacy.ledger_costs import Cap, Cost
from equipoise.privacy.promise import Unit

VERSION = 1
SCHEMA = (
    # n counts from 0 without a gap; kind and body (JSON) are what `Books` reads
    "CREATE TABLE chain (n INTEGER PRIMARY KEY, kind TEXT NOT NULL, body BLOB NOT NULL, "
    "mac BLOB NOT NULL) STRICT",
    # of the row n of the chain, while its run is open; a run has one state, the newest
    "CREATE TABLE answers (n INTEGER PRIMARY KEY, content BLOB NOT NULL) STRICT",
    "CREATE TABLE states (n INTEGER PRIMARY KEY, content BLOB NOT NULL) STRICT",
)
PATIENCE = 60.0  # seconds to wait for another process
_KEY_BYTES = 32
_BEFORE_ALL = bytes(hashlib.sha256().digest_size)


class Answer(NamedTuple):
    """What was answered to a round's question, whose digest it was."""

    question: bytes
    answer: bytes


class Ledger:
    """An open ledger, made if need be: ``with Ledger(path) as ledger: ...``. Several processes may
    have it open at once. With `read_only` nothing is made or changed."""

    def __init__(
        self, path: "str | os.PathLike[str]", *, read_only: bool = False, patience: float = PATIENCE
    ) -> None:
        self.path, self._read_only, self._patience = Path(path), read_only, patience
        self._key_file, self._head_file = (
            self.path.with_name(f"{self.path.name}.{part}") for part in ("key", "head")
        )
        self._forget()
        with self._told():
            self._check_place()
            with self._alone():
                self._key = self._read_key()
                self._db = self._connected()
                try:
                    self._begin()
                except BaseException:
                    self._db.close()
                    raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(sqlite3.Error):  # all that was said to be done is on the disk
            self._db.close()

    # ---------------------------------------------------------------------------------------------
    # what is asked of it

    def admit(self, run: str, cost: Cost, caps: Caps | None = None, **about: Any) -> None:
        """Reserve all that the run will cost, or refuse it; nothing if it was admitted before,
        whether it is open or closed.

        The first run of a ledger brings its caps. Later ones need none, and may not bring others.
        `about` is what a reader of the ledger should know of the run: values of JSON.
        """
        with self._current():
            body = self._books.admission(run, cost, caps or {})
            if body:
                self._append("run", {**body, "about": about, "when": _now()})

    def after(self, run: str, cost: Cost, caps: Caps | None = None) -> list[Standing]:
        """How the caps would stand if this run were admitted; refused is what `admit` refuses, and
        nothing is written."""
        with self._current():
            return self._books.after(run, cost, caps or {})

    def rounds(self, run: str) -> int:
        """How many rounds of it are released."""
        with self._current():
            return self._books.run(run).released

    def answer(self, run: str, round: int) -> Answer | None:
        """What was answered in this round, to be sent again; None where nothing was yet."""
        with self._current():
            entry = self._books.run(run).answers.get(round)
            if entry is None:
                return None
            return Answer(entry.question, self._content("answers", entry))

    def state(self, run: str) -> bytes | None:
        """The state after the run's newest answer; None before the first, and of a closed run."""
        with self._current():
            newest = self._books.run(run).newest
            return None if newest is None else self._content("states", newest)

    def check_round(self, run: str, round: int) -> None:
        """Refuse a round that `commit` would refuse, before anything is made for it."""
        with self._current():
            self._books.check_round(run, round)

    def commit(self, run: str, round: int, question: bytes, answer: bytes, state: bytes) -> None:
        """Write down a release. When this returns it is on the disk, and the answer may be sent.

        `question` is the digest of what was asked, by which a repeated question is known again.
        """
        with self._current():
            self._books.check_round(run, round)
            charged = self._books.run(run)
            require(
                round == charged.released + 1,
                f"round={round} of run={run} comes before round {charged.released + 1}: rounds are "
                "released in their order",
            )
            number, newest = self._end + 1, charged.newest
            digests = {"question": question, "answer": _digest(answer), "state": _digest(state)}
            body = {"run": run, "round": round}
            body |= {name: digest.hex() for name, digest in digests.items()}
            old = -1 if newest is None else newest.number
            self._append(
                "round",
                body,
                ("DELETE FROM states WHERE n = ?", (old,)),
                ("INSERT INTO answers VALUES (?, ?)", (number, answer)),
                ("INSERT INTO states VALUES (?, ?)", (number, state)),
            )

    def release(self, run: str, rounds: int) -> None:
        """Write down that the first so many rounds may be seen from now on, of a run that keeps
        its answers itself."""
        with self._current():
            if rounds > self._books.run(run).released:
                self._books.check_round(run, rounds)
                self._append("round", {"run": run, "round": rounds})

    def close(self, run: str) -> None:
        """The run is over: what it did not release is given back, and its answers and its state are
        wiped."""
        with self._current():
            charged = self._books.run(run)
            if charged.open:
                row = charged.cost.released(charged.row, charged.released)
                numbers = [entry.number for entry in charged.answers.values()]
                self._append(
                    "end",
                    {"run": run, "row": row, "when": _now()},
                    *(
                        (f"DELETE FROM {table} WHERE n = ?", (number,))
                        for table in ("answers", "states")
                        for number in numbers
                    ),
                )
                self._clear_log()

    def set_cap(self, unit: Unit, cap: Cap) -> None:
        """Another cap for this unit, or a first one."""
        with self._current():
            require(self._books.caps.get(unit) != cap, f"cap of unit {unit} is {cap} already")
            body = {"unit": unit, "epsilon": cap.epsilon, "delta": cap.delta, "when": _now()}
            self._append("cap", body)

    def runs(self) -> list[Charged]:
        """All runs that were ever admitted, in this order."""
        with self._current():
            return [*self._books.runs.values()]

    def standings(self) -> list[Standing]:
        """Every cap, and how far it is used up."""
        with self._current():
            return self._books.standings()

    def receipt(self, run: str | None = None) -> dict[str, Any]:
        """How the ledger stands, and a run in it: to be kept elsewhere, so that a ledger that was
        put back as a whole can be told from it."""
        with self._current():
            paper: dict[str, Any] = {"format": VERSION, "ledger": self._books.name}
            paper |= {"row": self._end, "mac": self._mac.hex(), "when": _now()}
            if run is not None:
                paper |= self._books.run(run).as_json() | {"when": _now()}
            return paper

    def verify(self, receipt: dict[str, Any] | None = None) -> int:
        """Read everything again, and refuse a ledger of which a byte that matters was changed; with
        a receipt also one that does not contain it. The number of rows."""
        with self._current():
            self._forget()
            problems = self._db.execute("PRAGMA integrity_check(1)").fetchone()[0]
            if problems != "ok":
                raise self._damaged("its database is not whole")
            self._read_on()
            runs = self._books.runs.values()
            answers = [entry for run in runs for entry in run.answers.values()]
            states = [run.newest for run in runs if run.newest]
            for table, known in (("answers", answers), ("states", states)):
                for entry in known:
                    self._content(table, entry)
                if self._db.execute(f"SELECT count(*) FROM {table}").fetchone()[0] != len(known):
                    raise self._damaged(f"it holds {table} that no row is about")
            if receipt is not None:
                self._check_receipt(receipt)
            return self._end + 1

    def _check_receipt(self, receipt: dict[str, Any]) -> None:
        try:
            name, number = str(receipt["ledger"]), int(receipt["row"])
            mac = bytes.fromhex(receipt["mac"])
            require(number >= 0, "")
        except (KeyError, TypeError, ValueError, OverflowError):
            raise InvalidValue(
                "the receipt is none: it lacks ledger, row or mac; `equipoise ledger receipt` "
                "prints one"
            ) from None
        require(name == self._books.name, f"the receipt is of ledger {name}, not of this one")
        if number > self._end:
            raise DataError(
                f"ledger={self.path} has {self._end + 1} rows, and the receipt is of row "
                f"{number + 1}: it was put back to what it was before, and runs are missing; take "
                "the newest copy"
            )
        row = self._db.execute("SELECT mac FROM chain WHERE n = ?", (number,)).fetchone()
        if row is None or row[0] != mac:
            raise DataError(
                f"ledger={self.path} has another row {number + 1} than the receipt: it was put "
                "back to what it was before, and went on from there"
            )

    # ---------------------------------------------------------------------------------------------
    # the chain, and the head

    def _forget(self) -> None:
        self._books = Books()
        self._end, self._mac, self._mac_before = -1, _BEFORE_ALL, _BEFORE_ALL

    @contextmanager
    def _current(self) -> Iterator[None]:
        """Alone, with all read that others have written."""
        with self._told(), self._alone():
            self._read_on()
            yield

    def _read_on(self) -> None:
        """Read the rows that are new, and hold all against the head."""
        try:
            query = "SELECT n, kind, body, mac FROM chain WHERE n >= ? ORDER BY n"
            rows = iter(self._db.execute(query, (max(self._end, 0),)))
            if self._end >= 0:
                last = next(rows, None)
                if last is None or last[0] != self._end or last[3] != self._mac:
                    raise self._damaged("a row that was there has changed or is missing")
            for n, kind, body, mac in rows:
                whole = isinstance(kind, str) and isinstance(body, bytes)
                if n != self._end + 1 or not whole or mac != self._chained(n, kind, body):
                    raise self._damaged(f"row {self._end + 2} is not what was written")
                self._books.read(n, kind, json.loads(body))
                self._end, self._mac, self._mac_before = n, mac, self._mac
            self._check_head()
        except BaseException:
            self._forget()
            raise

    def _chained(self, number: int, kind: str, body: bytes) -> bytes:
        name = kind.encode()
        parts = (self._mac, number.to_bytes(8), len(name).to_bytes(8), name, body)
        return hmac.digest(self._key, b"".join(parts), "sha256")

    def _head(self) -> tuple[int, str]:
        try:
            entry = kept(self._head_file)
        except DataError:
            raise self._damaged(f"{self._head_file.name} is not whole") from None
        return (entry.head["row"], entry.head["mac"]) if entry else (-1, _BEFORE_ALL.hex())

    def _check_head(self) -> None:
        """The head is that of the last row, or of the one before."""
        number, mac = self._head()
        if number > self._end:
            raise DataError(
                f"ledger={self.path} has {self._end + 1} rows, and its head says {number + 1}: it "
                "was cut off, or put back to what it was before; take the newest copy, and ask "
                "its receipts"
            )
        known = {self._end: self._mac.hex(), self._end - 1: self._mac_before.hex()}
        if known.get(number) != mac:
            raise self._damaged("its head is not that of one of its last two rows")

    def _write_head(self) -> None:
        if self._head() != (self._end, self._mac.hex()):
            keep(self._head_file, {"row": self._end, "mac": self._mac.hex()}, [])

    def _append(self, kind: str, body: dict[str, Any], *also: tuple[str, Sequence[Any]]) -> None:
        """A row, with what belongs to it, and then the head; or neither."""
        require(not self._read_only, "the ledger was opened to be read")
        self._write_head()  # it may be one row behind, never two
        number, content = self._end + 1, json.dumps(body, sort_keys=True).encode()
        mac = self._chained(number, kind, content)
        try:
            with self._transaction():
                row = (number, kind, content, mac)
                self._db.execute("INSERT INTO chain VALUES (?, ?, ?, ?)", row)
                for statement, values in also:
                    self._db.execute(statement, values)
            self._books.read(number, kind, json.loads(content))
            self._end, self._mac, self._mac_before = number, mac, self._mac
            self._write_head()
        except BaseException:
            self._forget()  # whether the row is there is seen when it is read again
            raise

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._db.execute("COMMIT")
        except BaseException:
            if self._db.in_transaction:  # a full disk has ended it already
                self._db.execute("ROLLBACK")
            raise

    def _content(self, table: str, entry: Kept) -> bytes:
        if not self._read_only:
            self._write_head()  # before it is sent
        query = f"SELECT content FROM {table} WHERE n = ?"
        row = self._db.execute(query, (entry.number,)).fetchone()
        digest = entry.answer if table == "answers" else entry.state
        if row is None or not isinstance(row[0], bytes) or _digest(row[0]) != digest:
            raise self._damaged(f"what its {table} hold is not what was written")
        return bytes(row[0])

    # ---------------------------------------------------------------------------------------------
    # files

    def _check_place(self) -> None:
        require(not self.path.is_dir(), f"ledger={self.path} is a folder: give the name of a file")
        require(
            self.path.is_file() or not self._read_only,
            f"ledger={self.path}: there is no such file; a run with a ledger makes one",
        )
        for file, other in ((self._key_file, self.path), (self.path, self._head_file)):
            if other.exists() and not file.exists():
                raise DataError(
                    f"ledger={self.path}: {other.name} is there and {file.name} is not: take both "
                    "from a copy; without them nobody knows what was spent"
                )
        for file in () if self._read_only else (self.path, self._key_file, self._head_file):
            require(  # a copy may have another mode; a state is raw private data
                not file.exists() or not file.stat().st_mode & 0o077,
                f"ledger={self.path}: {file.name} can be read by others: chmod 600 {file}",
            )

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """One process at a time, by a lock on the key."""
        try:
            import fcntl
        except ImportError:
            raise EquipoiseError("a ledger needs a system with file locks: Linux, macOS") from None

        how = os.O_RDONLY if self._read_only else os.O_RDWR | os.O_CREAT
        lock, until = os.open(self._key_file, how, 0o600), time.monotonic() + self._patience
        try:
            while True:
                try:
                    kind = fcntl.LOCK_SH if self._read_only else fcntl.LOCK_EX
                    fcntl.flock(lock, kind | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() >= until:
                        raise EquipoiseError(
                            f"ledger={self.path} is held by another process: start again when that "
                            "is done"
                        ) from None
                    time.sleep(0.01)
            yield
        finally:
            os.close(lock)

    def _read_key(self) -> bytes:
        key = self._key_file.read_bytes()
        if len(key) == _KEY_BYTES:
            return key
        if self.path.exists() or self._head_file.exists():
            raise self._damaged(f"{self._key_file.name} is not whole")
        key = os.urandom(_KEY_BYTES)
        with open(self._key_file, "wb") as file:
            file.write(key)
            file.flush()
            os.fsync(file.fileno())
        return key

    def _connected(self) -> sqlite3.Connection:
        """In a folder where nothing may be written SQLite cannot share the file with a writer; but
        then there is none."""
        if not self.path.exists():
            os.close(os.open(self.path, os.O_CREAT | os.O_EXCL, 0o600))
            self._sync_folder()
        how = "rw"
        if self._read_only:
            how = "ro" if os.access(self.path.parent, os.W_OK) else "ro&immutable=1"
        address = f"{self.path.absolute().as_uri()}?mode={how}"
        return sqlite3.connect(address, uri=True, timeout=self._patience, isolation_level=None)

    def _begin(self) -> None:
        """Make the tables of a new ledger, and read all of an old one."""
        (version,) = self._db.execute("PRAGMA user_version").fetchone()
        (tables,) = self._db.execute("SELECT count(*) FROM sqlite_master").fetchone()
        new = version == 0 and not tables and not self._read_only
        if new and self._head_file.exists():
            raise self._damaged("its database is empty")
        if not new and version != VERSION:
            what = "is no ledger" if version == 0 else f"is of version {version}, not {VERSION}"
            raise DataError(
                f"ledger={self.path} {what}: give the name of a ledger, or of a new file"
            )
        if self._read_only:
            self._read_on()
            return
        self._db.execute("PRAGMA synchronous = FULL")
        self._db.execute("PRAGMA secure_delete = ON")
        if new:
            self._make()
        self._read_on()
        self._db.execute("PRAGMA journal_mode = WAL")
        self._write_head()
        self._clear_log()  # what a process that died had wiped is gone from here on

    def _make(self) -> None:
        body = {"name": os.urandom(8).hex(), "format": VERSION, "when": _now()}
        content = json.dumps(body).encode()
        row = (0, "ledger", content, self._chained(0, "ledger", content))
        with self._transaction():
            for statement in (*SCHEMA, f"PRAGMA user_version = {VERSION}"):
                self._db.execute(statement)
            self._db.execute("INSERT INTO chain VALUES (?, ?, ?, ?)", row)

    def _clear_log(self) -> None:
        """Bring all into the file, where what was deleted is overwritten, and empty the log."""
        self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def _sync_folder(self) -> None:
        place = os.open(self.path.parent, os.O_RDONLY)
        try:
            os.fsync(place)
        finally:
            os.close(place)

    def _damaged(self, why: str) -> DataError:
        return DataError(
            f"ledger={self.path} is damaged or was changed: {why}; take the newest copy, and ask "
            "its receipts"
        )

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Errors of the database and of files, in one sentence."""
        try:
            yield
        except sqlite3.OperationalError as error:
            raise EquipoiseError(f"ledger={self.path}: {error}; nothing was released") from None
        except sqlite3.DatabaseError as error:
            raise self._damaged(str(error)) from None
        except UnicodeDecodeError:  # of a message of the database about itself
            raise self._damaged("its database is not whole") from None
        except OSError as error:
            raise EquipoiseError(
                f"ledger={self.path}: {error.strerror}; nothing was released"
            ) from None


def _digest(content: bytes) -> bytes:
    return hashlib.sha256(content).digest()


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
