"""The command as a user meets it: one document, readable tables, one clear sentence for every
mistake."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from equipoise.__main__ import run
from equipoise.cli.main import main
from equipoise.result import Result

TRAIN = (
    "train --task breast-cancer --algorithm dp-scaffnew --epsilon 2 --delta 1e-5 --clip 1 "
    "--local-steps 4 --iterations 64"
)
AGGREGATED = f"{TRAIN} --clients 20 --trust secure-aggregation"
KEYS = {
    "": "rounds dimension noise_source version test_error baseline_error curve format",
    "run": "task algorithm eta p local_steps gamma options iterations clip clients batch split "
    "epsilon delta unit neighbours trust noise_rule schedule seed",
    "account": "epsilon events epsilons exact",
}


@pytest.fixture
def equipoise(capsys):
    """Run the command in this process; returns (exit code, standard output, standard error)."""

    def run(arguments):
        try:
            main(arguments.split())
            code = 0
        except SystemExit as stop:
            code = stop.code
        return code, *capsys.readouterr()

    return run


def test_json_is_one_document_and_nothing_else():
    """In a process of its own, as installed."""
    command = [Path(sys.executable).with_name("equipoise"), *f"{AGGREGATED} --json".split()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0
    assert done.stderr == ""
    document = json.loads(done.stdout)
    for part, names in KEYS.items():
        assert set(names.split()) <= set(document[part] if part else document), part
    result = Result.model_validate(document)
    (event,) = document["account"]["events"]
    assert document["rounds"] == event["count"] == result.account.releases == 16
    assert document["account"]["epsilon"] == document["account"]["epsilons"][0] <= 2
    assert event["sigma"] == pytest.approx(result.client_sigma * 19**0.5)
    assert document["run"]["options"] == {}, "h_update has its default"
    assert document["run"]["batch"] == "full"
    assert document["format"] == 1
    assert document["curve"][-1]["test_error"] == document["test_error"]


def test_the_table_says_what_was_promised_to_whom(equipoise):
    code, out, _ = equipoise(AGGREGATED)
    assert code == 0
    for words in (
        "without training: 0.4000",
        "16 rounds of 4 local steps",
        "one client and all it holds",
        "only the sum",
    ):
        assert words in out
    assert "spent       epsilon = 2 of 2 at delta = 1e-05: exact, for 16 releases" in out
    assert all(line == line.rstrip() for line in out.splitlines())


def test_infinity_is_a_string(equipoise):
    document = json.loads(equipoise("train --task quadratic --epsilon inf --json")[1])
    assert document["run"]["epsilon"] == document["run"]["clip"] == "inf"
    assert document["account"]["epsilon"] == "inf"
    assert [event["sigma"] for event in document["account"]["events"]] == [0]


def test_a_false_label_is_told_on_the_first_line(equipoise):
    overspent = f"{AGGREGATED} --noise-rule lemma1 --v proof"
    assert equipoise(overspent)[1].startswith(
        "NOT PRIVATE AT ITS LABEL: the exact epsilon spent is"
    )
    document = json.loads(equipoise(f"{overspent} --json")[1])
    assert next(iter(document)) == "notices"
    assert document["notices"][0].startswith("NOT PRIVATE AT ITS LABEL")


def test_diagnostics_are_a_table(equipoise):
    _, out, _ = equipoise(f"{AGGREGATED} --diagnostics --simulate-noise-seed 1")
    assert "SIMULATION, NOT PRIVATE" in out.splitlines()[0]
    assert "mean |h|" in out


def test_a_failed_simulation_exits_with_1(equipoise):
    code, out, _ = equipoise(
        "train --task quadratic --epsilon inf --eta 1000 --iterations 4000 --local-steps 2000"
    )
    assert code == 1
    assert "FAILED: an update was not finite in round 1: lower eta=1000.0" in out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("--epsilon 0 --clip 1", "epsilon=0.0 is not > 0"),
        ("--epsilon nan --clip 1", "epsilon=nan is not > 0"),
        ("--epsilon=-1 --clip 1", "epsilon=-1.0 is not > 0"),
        ("--epsilon two --clip 1", "epsilon='two': input should be a valid number"),
        ("--epsilon 1 --delta 0 --clip 1", "delta=0.0 is not in (0, 1)"),
        ("--epsilon 1 --delta 1 --clip 1", "delta=1.0 is not in (0, 1)"),
        ("--epsilon 1 --clip inf", "epsilon=1.0 with clip=inf"),
        ("--epsilon 1", "epsilon=1.0 with no clip"),
        ("--epsilon 1 --clip 0", "clip=0.0 is not > 0"),
        ("--epsilon 1 --clip nan", "clip=nan is not > 0"),
        ("--epsilon 1 --clip 1 --eta 0", "eta=0.0 is not a positive step size"),
        ("--epsilon 1 --clip 1 --gamma=-1", "gamma=-1.0 is not a positive step size"),
        (
            "--epsilon 1 --clip 1 --schedule coin --p 4",
            "p=4.0 is not in (0, 1]: pass the probability",
        ),
        ("--epsilon 1 --clip 1 --schedule coin --p 0", "p=0.0 is not in (0, 1]"),
        ("--epsilon 1 --clip 1 --schedule coin", "schedule=coin needs p"),
        ("--epsilon 1 --clip 1 --p 0.5", "p=0.5 with schedule=periodic"),
        (
            "--epsilon 1 --clip 1 --iterations 64 --local-steps 5",
            "the nearest divisors are 4 and 8",
        ),
        (
            "--epsilon 1 --clip 1 --iterations 1000000007 --local-steps 7",
            "iterations=1000000007 is more than 100,000,000: give fewer",
        ),
        (
            "--epsilon 1 --clip 1 --seed 99999999999999999999",
            "seed=99999999999999999999 is not between 0 and 2^63 - 1",
        ),
        ("--epsilon 1 --clip 1 --clients 400", "clients=400 is more than the 379 records to deal"),
        (
            "--epsilon 1 --clip 1 --clients 1 --trust secure-aggregation",
            "leaves nobody whose noise protects",
        ),
        (
            "--epsilon 1 --clip 1 --colluding 20 --trust secure-aggregation",
            "clients=20 less colluding=20",
        ),
        ("--epsilon 1 --clip 1 --colluding 2", "colluding=2 has no meaning under trust=local"),
        ("--epsilon 1 --clip 1 --noise-rule lemma1", "noise_rule=lemma1 needs v"),
        ("--epsilon 1 --clip 1 --v 2", "v=2.0 belongs to noise_rule=lemma1"),
        ("--epsilon 1 --clip 1 --h-update clipped", "h_update=clipped with algorithm=dp-fedavg"),
        ("--epsilon 1 --clip 1 --split skewed", "split='skewed' is neither random nor dirichlet:A"),
        ("--epsilon 1 --clip 1 --batch 0", "batch=0 is not >= 1"),
        (
            "--epsilon 1 --clip 1 --data a.csv",
            "data with task=breast-cancer, which brings its own records",
        ),
        (
            "--epsilon 1 --clip 1 --label y",
            "label with task=breast-cancer: only task csv reads columns",
        ),
        (
            "--epsilon 1 --clip 1 --algorithm fedavg",
            "algorithm='fedavg' is not one of dp-fedavg, dp-scaffnew, dp-fedprox; did you mean "
            "dp-fedavg?",
        ),
        (
            "--epsilon 1 --clip 1 --trsut local",
            "--trsut is no option of equipoise train: did you mean --trust?",
        ),
        (
            "--epsilonn 2 --clip 1",
            "--epsilonn is no option of equipoise train: did you mean --epsilon?",
        ),
        (
            "--epsilon 2 --clip 1 --lr 0.1",
            "--lr is no option of equipoise train: did you mean --eta?",
        ),
        (
            "--epsilon 2 --clip 1 --lr=0.1",
            "--lr is no option of equipoise train: did you mean --eta?",
        ),
        ("--clip 1", "epsilon is missing"),
    ],
)
def test_mistakes_get_one_clear_sentence(equipoise, arguments, sentence):
    code, out, err = equipoise(f"train --task breast-cancer {arguments}")
    assert code == 2
    assert out == ""
    assert sentence in err
    assert len(err.splitlines()) == 1


def test_an_unknown_task_lists_the_known_and_suggests_the_nearest(equipoise):
    code, _, err = equipoise("train --task brest-cancer --epsilon 1 --clip 1")
    assert code == 2
    assert "the tasks are breast-cancer, cifar10, " in err
    assert "or a Python file" in err
    assert err.strip().endswith("did you mean breast-cancer?")


def test_help_is_instant():
    """No heavy library is loaded to show help."""
    script = (
        "import sys; from equipoise.cli.main import app; app(['--help'], "
        "result_action='return_value'); "
        "app(['train', '--help'], result_action='return_value'); "
        "print([m for m in ('torch', 'scipy', 'sklearn', 'numpy') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert "Train privately in this process" in done.stdout
    assert done.stdout.splitlines()[-1] == "[]"


def test_an_interrupt_while_libraries_load_is_no_traceback(monkeypatch):
    class Interrupted:
        def __getattr__(self, name):
            raise KeyboardInterrupt

    monkeypatch.setitem(sys.modules, "equipoise.cli.main", Interrupted())
    with pytest.raises(SystemExit) as stopped:
        run()
    assert stopped.value.code == 130
