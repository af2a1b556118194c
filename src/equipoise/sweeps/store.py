"""The store: one SQLite file with every run that a sweep has finished, its curve, and the runs that
failed.

Several processes may write at once (write-ahead log). A run and its curve go in together or not at
all; a run that is in is never computed again.
"""

import json
import math
import os
import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple, Self

from equipoise.algorithms.schedule import schedule_of
from equipoise.errors import DataError
from equipoise.result import Result
from equipoise.sweeps import keys

VERSION = 1
SCHEMA = (
    """
CREATE TABLE runs (
    key TEXT PRIMARY KEY,
    sweep TEXT NOT NULL,         -- the name of the sweep that asked for it first
    task TEXT NOT NULL,
    algorithm TEXT NOT NULL,
    unit TEXT NOT NULL,
    epsilon REAL NOT NULL,       -- of the label; 9e999 (infinity): not private
    epsilon_spent REAL NOT NULL, -- exact, or an upper bound
    clip_norm REAL NOT NULL,     -- C
    iterations INTEGER NOT NULL,
    local_steps INTEGER,         -- of a round; where coins decide, the expected number
    rounds INTEGER NOT NULL,
    seed INTEGER NOT NULL,
    test_error REAL,
    train_error REAL,
    failed TEXT,                 -- the run ended, but its numbers are not finite
    seconds REAL NOT NULL,       -- of processor time, its share of a stack
    result TEXT NOT NULL         -- the whole Result as JSON, but for its curve, and the version of
                                 -- the arithmetic that gave it ("numbers")
) STRICT""",
    """
CREATE TABLE curves (
    key TEXT NOT NULL REFERENCES runs(key),
    round INTEGER NOT NULL,
    iteration INTEGER NOT NULL,
    test_error REAL, test_loss REAL, client_error REAL, -- of what the run would return here
    train_error REAL, clipped REAL, update_norm REAL,
    PRIMARY KEY (key, round)
) STRICT, WITHOUT ROWID""",
    """
CREATE TABLE failures (
    key TEXT PRIMARY KEY,
    run TEXT NOT NULL,
    error TEXT NOT NULL
) STRICT""",
)
MAY_DIFFER = "'$.version', '$.notices', '$.numbers'"
"""Of two results of a run that are equal, as paths into their JSON."""

PATIENCE = 60.0  # seconds to wait for another process that writes


class Finished(NamedTuple):
    """A run that is done: its key, its result, the seconds of processor time that it took, and the
    keys of rows that it replaces."""

    key: str
    result: Result
    seconds: float
    replaces: Sequence[str] = ()


class Store:
    """An open store: ``with Store(path) as store: ...``; with `read_only` nothing is made or
    changed."""

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        if path.is_dir():
            raise DataError(f"store={path} is a folder: give the name of a file")
        if read_only and not path.is_file():
            raise DataError(f"store={path}: there is no such file; `equipoise sweep` makes one")
        self.path = self._source = path
        with self._told():
            self._db = self._for_reading() if read_only else self._for_writing()
            try:
                self._open(read_only)
            except BaseException:
                self._db.close()
                raise

    def _for_writing(self) -> sqlite3.Connection:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        address = self.path.absolute().as_uri()  # others may be attached by theirs
        return sqlite3.connect(address, uri=True, timeout=PATIENCE, isolation_level=None)

    def _for_reading(self) -> sqlite3.Connection:
        return sqlite3.connect(
            _to_read(self.path), uri=True, timeout=PATIENCE, isolation_level=None
        )

    def _open(self, read_only: bool) -> None:
        (version,) = self._db.execute("PRAGMA user_version").fetchone()
        if version > VERSION:
            raise DataError(
                f"store={self.path} was written by a newer Equipoise (form {version}, not "
                f"{VERSION}): update to read it"
            )
        if read_only:
            if version == 0:
                raise DataError(
                    f"store={self.path} is not a store of Equipoise: `equipoise sweep` makes one"
                )
            return
        if version == 0:
            with self._transaction():  # whoever comes second waits here, and finds the tables made
                if self._db.execute("PRAGMA user_version").fetchone() == (0,):
                    self._make_tables()
        self._write_ahead()
        self._db.execute("PRAGMA synchronous = FULL")

    def _make_tables(self) -> None:
        if self._db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
            raise DataError(
                f"store={self.path} is a database, but not a store of Equipoise: give another name"
            )
        for statement in (*SCHEMA, f"PRAGMA user_version = {VERSION}"):
            self._db.execute(statement)

    def _write_ahead(self) -> None:
        """Readers and a writer at once. Switching needs the file for oneself, and SQLite does not
        wait for that: so we do."""
        until = time.monotonic() + PATIENCE
        while self._db.execute("PRAGMA journal_mode").fetchone() != ("wal",):
            try:
                self._db.execute("PRAGMA journal_mode = WAL")
            except sqlite3.OperationalError as error:
                if "locked" not in str(error) or time.monotonic() > until:
                    raise
                time.sleep(0.05)

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """All that is written inside, or, if this process dies now, nothing."""
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._db.execute("COMMIT")
        except BaseException:
            if self._db.in_transaction:  # a full disk has ended it already
                self._db.execute("ROLLBACK")
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._db.close()

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Errors of the database in one sentence."""
        try:
            yield
        except sqlite3.OperationalError as error:
            raise DataError(f"store={self.path}: {error}" + _way_out(str(error))) from None
        except sqlite3.DatabaseError as error:
            raise DataError(
                f"store={self._source} is damaged or no store: {error}; nothing was written to it"
            ) from None
        except OSError as error:
            raise DataError(f"store={self.path}: {error.strerror}") from None

    def keys(self) -> set[str]:
        """The runs that are finished."""
        return {key for (key,) in self._rows("SELECT key FROM runs")}

    def finished(self, names: Iterable[str]) -> set[str]:
        """Those of these runs that are finished."""
        some = json.dumps([*names])
        return {
            key
            for (key,) in self._rows(
                "SELECT key FROM runs WHERE key IN (SELECT value FROM json_each(?))", (some,)
            )
        }

    def failures(self) -> dict[str, str]:
        """The runs that could not be run, and why."""
        return dict(self._rows("SELECT key, error FROM failures"))

    def add(self, sweep: str, finished: Iterable[Finished]) -> None:
        """Keep finished runs, in place of those that they replace: all of them, or, if this process
        dies now, none. A run that is there already stays as it is."""
        with self._told(), self._transaction():
            given = {run.key: run for run in finished}
            kept = self.finished(given)
            new = [run for key, run in given.items() if key not in kept]
            replaced = [(key,) for run in new for key in run.replaces]
            for table in ("curves", "runs", "failures"):
                self._db.executemany(f"DELETE FROM {table} WHERE key = ?", replaced)
            self._insert("runs", (_run_row(sweep, run) for run in new))
            self._insert("curves", (row for run in new for row in _curve_rows(run.key, run.result)))
            self._db.executemany("DELETE FROM failures WHERE key = ?", [(key,) for key in given])

    def _insert(self, table: str, rows: Iterable[tuple[Any, ...]]) -> None:
        """Rows that have a value for every column."""
        columns = len(self._db.execute(f"SELECT * FROM {table} LIMIT 0").description)
        self._db.executemany(f"INSERT INTO {table} VALUES ({', '.join('?' * columns)})", rows)

    def fail(self, failed: Mapping[str, str], error: str) -> None:
        """Note runs (key, JSON) that could not be run, and why."""
        rows = [(key, run, error) for key, run in failed.items()]
        with self._told(), self._transaction():
            self._db.executemany("INSERT OR REPLACE INTO failures VALUES (?, ?, ?)", rows)

    def arithmetic(self) -> set[int | None]:
        """The versions of the arithmetic (`keys.NUMBERS`) that gave the numbers of the finished
        runs; None of one from before they were noted."""
        query = "SELECT DISTINCT json_extract(result, '$.numbers') FROM runs"
        try:
            return {numbers for (numbers,) in self._rows(query)}
        except DataError:
            self._check_results()
            raise

    def _check_results(self) -> None:
        """Refuse a result that is no JSON, by the run's key."""
        for key, result in self._rows("SELECT key, result FROM runs"):
            try:
                json.loads(result)
            except ValueError:
                raise unreadable(self.path, key) from None

    def take_over(self, path: Path) -> str | None:
        """Copy all that another store holds; or, if it has other results of a run that is here,
        nothing, and return the key of that run."""
        with Store(path, read_only=True), self._told():  # it is a store, and can be read
            self._db.execute("ATTACH ? AS other", (_to_read(path),))
            self._source = path
            try:
                self._check_tables()
                key = self._contradicted()
                if key is None:
                    with self._transaction():
                        self._copy()
            finally:
                self._source = self.path
                self._db.execute("DETACH other")
        return key

    def _check_tables(self) -> None:
        """Refuse the store that is attached if it lacks a table, or a column."""
        for table in ("runs", "curves", "failures"):
            ours, theirs = (
                [row[1] for row in self._rows(f"PRAGMA {name}.table_info({table})")]
                for name in ("main", "other")
            )
            if ours != theirs:
                what = "other columns in its table" if theirs else "no table"
                raise DataError(
                    f"store={self._source} has {what} {table}: it is damaged, or no store; use a "
                    "copy of it, or sweep its grid again"
                )

    def _contradicted(self) -> str | None:
        """A run that has one result here and another in the store that is attached: anything but
        the sweep that asked for it, seconds, notices and versions differs."""
        columns = [row[1] for row in self._rows("PRAGMA main.table_info(runs)")]
        alike = [c for c in columns if c not in ("key", "sweep", "seconds", "result")]
        results = (f"json_remove({store}.result, {MAY_DIFFER})" for store in ("m", "o"))
        differs = " OR ".join([*(f"m.{c} IS NOT o.{c}" for c in alike), " IS NOT ".join(results)])
        both = "SELECT m.key FROM main.runs m JOIN other.runs o USING (key)"
        curves = " UNION ALL ".join(
            f"SELECT key FROM (SELECT * FROM {left}.curves WHERE key IN ({both}) "
            f"EXCEPT SELECT * FROM {right}.curves)"
            for left, right in (("main", "other"), ("other", "main"))
        )
        rows = self._rows(f"{both} WHERE {differs}") or self._rows(curves)
        return str(rows[0][0]) if rows else None

    def _copy(self) -> None:
        new = "SELECT key FROM other.runs EXCEPT SELECT key FROM main.runs"
        self._db.execute(f"CREATE TEMP TABLE new AS {new}")
        for table in ("runs", "curves"):
            self._db.execute(
                f"INSERT INTO main.{table} SELECT * FROM other.{table} "
                "WHERE key IN (SELECT key FROM temp.new)"
            )
        self._db.execute("DROP TABLE temp.new")
        self._db.execute("INSERT OR IGNORE INTO main.failures SELECT * FROM other.failures")
        self._db.execute("DELETE FROM main.failures WHERE key IN (SELECT key FROM main.runs)")

    def table(self, columns: str = "*", where: str = "1", *values: Any) -> list[dict[str, Any]]:
        """Rows of the finished runs as dicts."""
        return self._dicts(f"SELECT {columns} FROM runs WHERE {where} ORDER BY rowid", values)

    def curve(self, key: str) -> list[dict[str, Any]]:
        return self._dicts("SELECT * FROM curves WHERE key = ? ORDER BY round", (key,))

    def _rows(self, query: str, values: tuple[Any, ...] = ()) -> list[Any]:
        with self._told(), closing(self._db.execute(query, values)) as cursor:
            return cursor.fetchall()

    def _dicts(self, query: str, values: tuple[Any, ...]) -> list[dict[str, Any]]:
        with self._told(), closing(self._db.execute(query, values)) as cursor:
            names = [column[0] for column in cursor.description]
            return [dict(zip(names, row, strict=True)) for row in cursor]


def _run_row(sweep: str, finished: Finished) -> tuple[Any, ...]:
    """Numbers that are not finite become NULL, and a run whose error is such a number has
    failed.
    """
    key, result, seconds, _ = finished
    run, seen = result.run, result.per_round[-1] if result.per_round else None
    train_error = (
        seen.train_error if seen and result.curve and seen.round == result.curve[-1].round else None
    )
    return (
        key,
        sweep,
        run.task,
        run.algorithm,
        run.unit,
        run.epsilon,
        result.account.epsilon,
        run.clip,
        run.iterations,
        round(1 / run.p),
        result.rounds,
        run.seed,
        _finite(result.test_error),
        _finite(train_error),
        _failure(result),
        seconds,
        _document(result),
    )


def _document(result: Result) -> str:
    """The result as JSON with the version of the arithmetic, which is not a run's own business."""
    document = result.model_dump_json(exclude={"curve", "per_round"})
    return f'{document[:-1]},"numbers":{keys.NUMBERS}}}'


def _to_read(path: Path) -> str:
    """The address of a store that is only read. In a folder where nothing may be written SQLite
    cannot share the file with a writer; but then there is none."""
    shared = os.access(path.parent, os.W_OK)
    how = "mode=ro" if shared else "mode=ro&immutable=1"
    return f"{path.absolute().as_uri()}?{how}"


def _curve_rows(key: str, result: Result) -> Iterator[tuple[Any, ...]]:
    """Of every round that was measured, or of whose clients something is known."""
    inside = {
        seen.round: (seen.train_error, seen.clipped, seen.update_norm)
        for seen in result.per_round or []
    }
    measured = {point.round: point.of(result.run.returns) for point in result.curve}
    iterations = [0, *accumulate(schedule_of(result.run))]
    nothing = (None,) * 3
    for number in sorted({*inside, *measured}):
        numbers = (*measured.get(number, nothing), *inside.get(number, nothing))
        yield key, number, iterations[number], *map(_finite, numbers)


def _finite(number: float | None) -> float | None:
    return number if number is not None and math.isfinite(number) else None


def _failure(result: Result) -> str | None:
    overflowed = result.test_error is not None and not math.isfinite(result.test_error)
    return result.failed or (
        f"its test error is not finite: lower eta={result.run.eta}" if overflowed else None
    )


def unreadable(path: Path, key: str) -> DataError:
    """What is said of a run whose result cannot be read."""
    return DataError(
        f"store={path}: the result of run {key} is cut off or was changed, and cannot be read; use "
        "a copy of the store, or sweep its grid into a new one"
    )


def _way_out(error: str) -> str:
    if "locked" in error:
        return "; another program holds it: stop that, and start again"
    if "full" in error:
        return "; make room on the disk and start again: everything finished is kept"
    return ""
