"""Shards of a grid, stores joined into one, and what is in a store."""

import json
import sqlite3

import pytest

from equipoise import DataError, InvalidValue
from equipoise import sweep as sweep_for_users
from equipoise.sweeps.grid import grid
from equipoise.sweeps.merge import inside, merge
from equipoise.sweeps.shard import Shard, read_shard
from equipoise.sweeps.stacks import stacks_of, work_of
from equipoise.sweeps.sweep import sweep
from problems import SMALL, contents, run_command

CELLS = grid(SMALL).cells
GRID = """
name = "small"
task = "quadratic"
clients = 4
algorithm = ["dp-fedavg", "dp-scaffnew"]
iterations = 6
local_steps = "divisors"
epsilon = [2.0, inf]
clip = [0.1, 1.0]
seeds = [0, 1]
"""


def swept(store, shard="1/1", cells=CELLS):
    *_, last = sweep("small", cells, store, shard=read_shard(shard))
    assert (last.done, last.failed) == (last.total, 0)
    return store


@pytest.fixture
def shards(tmp_path):
    """Three stores that are one sweep together; the other is that sweep."""
    parts = [swept(tmp_path / f"{i}.sqlite", f"{i}/3") for i in (1, 2, 3)]
    return parts, swept(tmp_path / "whole.sqlite")


def change(store, statement):
    db = sqlite3.connect(store)
    with db:
        db.execute(statement)
    db.close()


# ---- shards ----


@pytest.mark.parametrize("parts", [1, 2, 3, 7])
def test_shards_are_disjoint_and_whole(parts):
    stacks = stacks_of(grid({**SMALL, "iterations": [6, 12], "task": "breast-cancer"}).cells)
    dealt = [Shard(part, parts).stacks(stacks) for part in range(1, parts + 1)]
    assert sorted(map(repr, stacks)) == sorted(repr(s) for hand in dealt for s in hand)
    assert (
        dealt == [Shard(n, parts).stacks(stacks[::-1]) for n in range(1, parts + 1)] or parts == 1
    )
    loads = [sum(map(work_of, hand)) for hand in dealt]
    assert max(loads) - min(loads) <= max(map(work_of, stacks))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0/4", "shard=0/4 is not one of 4 parts: give 1/4 to 4/4"),
        ("5/4", "shard=5/4 is not one of 4 parts"),
        ("x", "shard=x is not I/N: 1/4 is the first of four parts"),
        ("1/0", "shard=1/0 has no parts"),
        ("1", "shard=1 is not I/N"),
        ("-1/4", "shard=-1/4 is not I/N"),
        ("1/100001", "shard=1/100001 is one of more than 100,000 parts: give fewer"),
    ],
)
def test_shards_that_are_none(text, message, tmp_path, capsys):
    with pytest.raises(InvalidValue, match=message):
        read_shard(text)
    (tmp_path / "grid.toml").write_text(GRID)
    code, _, error = run_command(capsys, "sweep", str(tmp_path / "grid.toml"), f"--shard={text}")
    assert code == 2
    assert message in error


def test_a_search_has_no_shards(tmp_path):
    with pytest.raises(InvalidValue, match="shard=1/2 with a search"):
        sweep_for_users(SMALL, store=tmp_path / "s.sqlite", search=True, shard="1/2")


def test_more_shards_than_stacks_leave_some_empty(tmp_path):
    stores = [swept(tmp_path / f"{i}.sqlite", f"{i}/6") for i in range(1, 7)]
    assert merge(stores, tmp_path / "all.sqlite").runs == 48
    assert {inside(store).runs for store in stores} == {0, 12}


def test_a_shard_without_runs_says_so(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "grid.toml").write_text(GRID)
    command = ("sweep", "grid.toml", "--workers", "1", "--store", "s.sqlite", "--shard")
    code, out, _ = run_command(capsys, *command, "100000/100000")
    assert code == 0
    assert out == (
        "shard 100000/100000 has no runs: there are fewer stacks of runs than shards; give fewer\n"
    )


def test_parts_that_get_nothing_take_no_memory():
    stacks = stacks_of(CELLS)
    assert len(Shard(1, 10**12).stacks(stacks)) == 1
    assert Shard(10**12, 10**12).stacks(stacks) == []


# ---- merging ----


def test_shards_merged_are_the_whole_sweep(shards, tmp_path):
    parts, whole = shards
    merged = merge([*parts, parts[0], whole], tmp_path / "all.sqlite")  # some overlap
    assert contents(tmp_path / "all.sqlite") == contents(whole)
    assert (merged.runs, merged.failed, merged.arithmetic) == (48, 0, [2])
    assert not list(tmp_path.glob("*part*"))
    swept(tmp_path / "all.sqlite")  # it is a store like any other


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE runs SET test_error = 0.5 WHERE rowid = 1",
        "UPDATE runs SET result = json_set(result, '$.rounds', 99) WHERE rowid = 1",
        "UPDATE curves SET test_loss = 0.5 WHERE key IN (SELECT key FROM runs LIMIT 1)",
        "DELETE FROM curves WHERE round > 0",
    ],
)
def test_other_results_of_a_run_are_refused(shards, tmp_path, statement):
    parts, whole = shards
    change(parts[1], statement)
    out = tmp_path / "all.sqlite"
    with pytest.raises(DataError, match=r"run [0-9a-f]{32} has one result in .*2.sqlite and"):
        merge([parts[0], parts[1], whole], out)
    assert not list(tmp_path.glob("*all*"))


def test_seconds_and_versions_may_differ(shards, tmp_path):
    parts, whole = shards
    change(parts[0], "UPDATE runs SET seconds = 9, sweep = 'other'")
    change(
        parts[0], "UPDATE runs SET result = json_set(result, '$.version', '0', '$.notices', '[]')"
    )
    assert merge([whole, *parts], tmp_path / "all.sqlite").runs == 48
    assert contents(tmp_path / "all.sqlite") == contents(whole)


def test_what_failed_in_one_store_and_is_finished_in_another_is_finished(shards, tmp_path):
    parts, whole = shards
    change(whole, "INSERT INTO failures SELECT key, '{}', 'elsewhere' FROM runs WHERE rowid <= 2")
    for n, stores in enumerate(([whole, *parts], [*parts, whole])):
        assert merge(stores, tmp_path / f"all-{n}.sqlite").failed == 0
    change(whole, "INSERT INTO failures VALUES ('a', '{}', 'nowhere')")
    assert merge([whole, *parts], tmp_path / "failed.sqlite").failed == 1


def test_stores_that_cannot_be_merged(shards, tmp_path):
    parts, whole = shards
    out = tmp_path / "all.sqlite"
    with pytest.raises(InvalidValue, match=r"whole.sqlite is there already"):
        merge(parts, whole)
    with pytest.raises(DataError, match=r"none.sqlite: there is no such file"):
        merge([*parts, tmp_path / "none.sqlite"], out)
    with pytest.raises(InvalidValue, match="leaves nothing to merge"):
        merge([], out)
    change(parts[0], "UPDATE runs SET result = json_set(result, '$.numbers', 1)")
    with pytest.raises(
        InvalidValue, match=r"2.sqlite has runs of arithmetic version 2, .*1.sqlite of .*version 1"
    ):
        merge(parts, out)
    change(parts[2], "PRAGMA user_version = 99")
    with pytest.raises(DataError, match=r"3.sqlite was written by a newer Equipoise \(form 99"):
        merge(parts[1:], out)
    assert not out.exists()


@pytest.mark.parametrize(
    ("statement", "what"),
    [
        ("DROP TABLE curves", "no table curves"),
        ("ALTER TABLE failures DROP COLUMN error", "other columns in its table failures"),
    ],
)
def test_an_input_that_lacks_something_is_named(shards, tmp_path, statement, what):
    parts, _ = shards
    change(parts[1], statement)
    with pytest.raises(DataError, match=rf"store=\S*2.sqlite has {what}: .*; use a copy of it"):
        merge(parts, tmp_path / "all.sqlite")
    assert not list(tmp_path.glob("*all*"))


def test_an_input_that_is_damaged_is_named(shards, tmp_path):
    parts, _ = shards
    db = sqlite3.connect(parts[1])
    (root,) = db.execute("SELECT rootpage FROM sqlite_master WHERE name = 'curves'").fetchone()
    (size,) = db.execute("PRAGMA page_size").fetchone()
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    db.close()
    content = bytearray(parts[1].read_bytes())
    content[(root - 1) * size : root * size] = b"\xff" * size
    parts[1].write_bytes(content)
    with pytest.raises(DataError, match=r"store=\S*2.sqlite is damaged or no store"):
        merge(parts, tmp_path / "all.sqlite")


def test_a_result_that_is_cut_off_is_named(shards, tmp_path, capsys):
    parts, _ = shards
    change(parts[1], "UPDATE runs SET result = substr(result, 1, 99) WHERE rowid = 2")
    db = sqlite3.connect(parts[1])
    (key,) = db.execute("SELECT key FROM runs WHERE rowid = 2").fetchone()
    db.close()
    sentence = f"store={parts[1]}: the result of run {key} is cut off or was changed"
    way_out = "use a copy of the store, or sweep its grid into a new one"
    for command in (
        ("store", "show", str(parts[1])),
        ("store", "merge", *map(str, parts), "-o", str(tmp_path / "all.sqlite")),
    ):
        code, out, error = run_command(capsys, *command)
        assert (code, out) == (2, "")
        assert sentence in error
        assert way_out in error


def test_a_folder_is_no_store(shards, tmp_path):
    parts, _ = shards
    sentence = f"store={tmp_path} is a folder: give the name of a file"
    for use in (
        lambda: merge([*parts, tmp_path], tmp_path / "all.sqlite"),
        lambda: inside(tmp_path),
        lambda: swept(tmp_path),
    ):
        with pytest.raises(DataError) as refused:
            use()
        assert str(refused.value) == sentence


def test_what_a_killed_merge_left_is_not_merged(shards, tmp_path):
    parts, _ = shards
    swept(tmp_path / ".all.part.sqlite", cells=grid({**SMALL, "iterations": 12}).cells)
    assert merge(parts, tmp_path / "all.sqlite").runs == 48


# ---- the commands ----


def test_the_commands(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "grid.toml").write_text(GRID)
    for i in (1, 2):
        store = f"{i}.sqlite"
        code, out, _ = run_command(
            capsys, "sweep", "grid.toml", "--shard", f"{i}/2", "--store", store, "--workers", "1"
        )
        assert code == 0
        assert f"24 of 24 runs of shard {i}/2 are in {store}; `equipoise store merge`" in out
    code, out, error = run_command(
        capsys, "store", "merge", "1.sqlite", "-o", "half.sqlite", "--grid", "grid.toml"
    )
    assert code == 1
    assert "half.sqlite: 24 runs, 0 failed" in out
    assert error.startswith("24 runs of grid.toml are missing: merge the other shards too, or let")
    assert "failed" not in error
    code, out, _ = run_command(
        capsys,
        *("store", "merge", "1.sqlite", "2.sqlite", "--out", "all.sqlite"),
        *("--grid", "grid.toml", "--json"),
    )
    document = json.loads(out)
    assert (code, document["runs"], document["missing"]) == (0, 48, 0)
    code, out, _ = run_command(capsys, "store", "show", "all.sqlite")
    assert code == 0
    assert "sweeps              small" in out
    assert "arithmetic version  2" in out
    code, _, error = run_command(capsys, "store", "show", "none.sqlite")
    assert code == 2
    assert "there is no such file" in error


def test_failed_runs_of_a_merged_store_need_retry(tmp_path, capsys, monkeypatch):
    """A sweep goes past those that failed, so that only --retry brings them in."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "grid.toml").write_text(GRID)
    swept(tmp_path / "1.sqlite", "1/2")
    change(
        tmp_path / "1.sqlite",
        "INSERT INTO failures SELECT key, '{}', 'memory' FROM runs WHERE rowid <= 2",
    )
    for table in ("curves", "runs"):
        change(
            tmp_path / "1.sqlite",
            f"DELETE FROM {table} WHERE key IN (SELECT key FROM failures)",
        )
    merging = ("store", "merge", "1.sqlite", "-o", "half.sqlite", "--grid", "grid.toml")
    code, out, error = run_command(capsys, *merging)
    assert code == 1
    assert "half.sqlite: 22 runs, 2 failed" in out
    again = "equipoise sweep grid.toml --store half.sqlite"
    assert error.splitlines() == [
        f"24 runs of grid.toml are missing: merge the other shards too, or let `{again}` run them",
        f"2 runs of grid.toml failed: `{again} --retry` runs them again",
    ]
