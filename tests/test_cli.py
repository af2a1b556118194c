"""The command as a user meets it: one document, readable tables, one clear sentence for every
mistake."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from equipoise import EquipoiseError, saved, train
from equipoise.__main__ import run
from equipoise.cli.main import main
from equipoise.result import Result
from equipoise.sweeps.run import NOTICE
from problems import HEADER, TASK_FILE

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


@pytest.mark.slow
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
        "without training 0.4000",
        "16 rounds of 4 local steps",
        "all data of one client",
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
        (
            "--epsilon 1 --clip 1 --clients 400",
            "clients=400 is more than the 379 records to distribute",
        ),
        (
            "--epsilon 1 --clip 1 --clients 1 --trust secure-aggregation",
            "no honest client's noise is left",
        ),
        (
            "--epsilon 1 --clip 1 --colluding 20 --trust secure-aggregation",
            "clients=20 with colluding=20",
        ),
        ("--epsilon 1 --clip 1 --colluding 2", "colluding=2 has no meaning under trust=local"),
        ("--epsilon 1 --clip 1 --noise-rule lemma1", "noise_rule=lemma1 needs v"),
        ("--epsilon 1 --clip 1 --v 2", "v=2 belongs to noise_rule=lemma1"),
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
            "--epsilon 1 --clip 1 --algorithm dpfedavg",
            "fedprox, scaffold; did you mean dp-fedavg?",
        ),
        (
            "--epsilon 1 --clip 1 --trsut local",
            "unknown option --trsut for equipoise train: did you mean --trust?",
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


@pytest.mark.parametrize(
    ("arguments", "wrong", "command", "meant"),
    [
        ("train --task quadratic --epsilonn 2 --clip 1", "--epsilonn", "train", "--epsilon"),
        ("train --task quadratic --epsilon 2 --clip 1 --lr 0.1", "--lr", "train", "--eta"),
        ("train --task quadratic --epsilon 2 --clip 1 --lr=0.1", "--lr", "train", "--eta"),
        (
            "train --task quadratic --epsilon 2 --learning_rate 1",
            "--learning-rate",
            "train",
            "--eta",
        ),
        ("train --task quadratic --epsilon 2 --tau 5", "--tau", "train", "--local-steps"),
        ("train --task quadratic --epsilon 2 --steps 5", "--steps", "train", "--local-steps"),
        ("train --task quadratic --epsilon 2 --C 1", "--C", "train", "--clip"),
        ("plan --task quadratic --epsilonn 2", "--epsilonn", "plan", "--epsilon"),
        ("sweep grid.toml --serch", "--serch", "sweep", "--search"),
        ("report --outt here", "--outt", "report", "--out"),
        ("evaluate run --dat here", "--dat", "evaluate", "--data"),
    ],
)
def test_a_mistyped_flag_is_named_with_the_one_that_is_meant(
    equipoise, arguments, wrong, command, meant
):
    code, out, err = equipoise(arguments)
    assert (code, out) == (2, "")
    assert err == f"error: unknown option {wrong} for equipoise {command}: did you mean {meant}?\n"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("train --rounds 5", "--rounds for equipoise train: rounds are iterations / local steps"),
        ("train --sigma 1", "--sigma for equipoise train: the noise follows from epsilon"),
        ("train --noise-multiplier 1", "--noise-multiplier for equipoise train: the noise follows"),
        ("sweep paper --epsilon 2", "--epsilon for equipoise sweep\n"),
        ("train --versoin", "--versoin for equipoise train\n"),
        ("report --hlep", "--hlep for equipoise report\n"),
        ("train -e 2", "-e for equipoise train\n"),
    ],
)
def test_a_flag_that_means_none_of_ours_gets_no_wrong_one(equipoise, arguments, sentence):
    code, out, err = equipoise(arguments)
    assert (code, out) == (2, "")
    assert err.startswith(f"error: unknown option {sentence}")
    assert "did you mean" not in err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("trian --epsilon 2", 'Unknown command "trian". Did you mean "train"?'),
        ("--epsilon 2", 'Unknown command "--epsilon"'),
        ("data fech", "unknown command fech for equipoise data: did you mean fetch?"),
        (
            "train --task quadratic --epsilon inf extra",
            "unexpected word extra for equipoise train: give its flag too",
        ),
        ("sweep", "WHAT needs a value: paper, or a TOML file"),
        ("show", "FOLDER needs a value: see equipoise show --help"),
        ("train --task quadratic --epsilon", "--epsilon needs a value: privacy budget"),
        (
            "sweep paper --task cifar10 --seeds 1000000000000 --show-grid",
            "seeds=1000000000000 is not between 1 and 1,000",
        ),
        (
            "train --task breast-cancer --epsilon 2 --clip 1 --public-records 379",
            "public_records=379 leaves no private record of 379: give fewer",
        ),
        (
            "train --task quadratic --epsilon 2 --clip 1 --trust secure-aggregation --colluding "
            "1000000000000",
            "clients=20 with colluding=1000000000000: no honest client's noise is left",
        ),
        (
            "train --task quadratic --local_steps 2",
            "epsilon is missing",
        ),  # either spelling is known
    ],
)
def test_what_is_wrong_is_said_and_nothing_else(equipoise, arguments, sentence):
    code, out, err = equipoise(arguments)
    assert (code, out) == (2, "")
    assert sentence in err
    assert len(err.splitlines()) == 1


MANY = "--clients 1000000000000"
BOUNDED = "--task csv --bounds bounds.toml --label outcome"


@pytest.mark.parametrize(
    "arguments",
    [
        f"train --task breast-cancer --epsilon 2 --clip 1 {MANY}",
        f"train --task quadratic --epsilon 2 --clip 1 {MANY}",
        f"train {BOUNDED} --data a.csv b.csv --epsilon 2 --clip 1 {MANY}",
        f"plan --task quadratic --epsilon 2 {MANY}",
        f"plan {BOUNDED} --epsilon 2 {MANY}",
        f"plan {BOUNDED} --unit record --epsilon 2 {MANY}",
        f"plan --mu 1 --smoothness 1 --dimension 3 --clip 1 --psi0 1 --epsilon 1 {MANY}",
        "sweep many.toml",
        f"train --config many-run.toml {MANY}",
    ],
)
def test_more_clients_than_anybody_has_are_refused_at_once(clinic, equipoise, arguments):
    Path("many.toml").write_text('task = "quadratic"\nepsilon = inf\nclients = 1000000000000\n')
    Path("many-run.toml").write_text('task = "quadratic"\nepsilon = inf\n')
    start = time.monotonic()
    code, out, err = equipoise(arguments)
    assert (code, out) == (2, "")
    assert err == "error: clients=1000000000000 is not between 1 and 1,000,000\n"
    assert time.monotonic() - start < 10


RUN = """
name = "as in a sweep"
task = "breast-cancer"
epsilon = 2.0
clip_norm = 0.5
local_steps = 4
iterations = 16
algorithm = "dp-scaffnew"
h_update = "clipped"
trust = "secure-aggregation"
warm_start = true
public_records = 40
simulate_noise_seed = 0
"""


@pytest.fixture
def config(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("run.toml").write_text(RUN)
    return Path("run.toml")


def test_a_run_from_a_file(config, equipoise):
    code, out, err = equipoise("train --config run.toml --json")
    assert code == 0, err
    document = json.loads(out)
    flags = (
        "--task breast-cancer --epsilon 2 --clip 0.5 --local-steps 4 --iterations 16 --algorithm "
        "dp-scaffnew --h-update clipped --trust secure-aggregation --warm-start --public-records "
        "40 --simulate-noise-seed 0"
    )
    assert document == json.loads(equipoise(f"train {flags} --json")[1])
    assert document["run"]["options"] == {"h_update": "clipped"}
    assert document["run"]["warm_start"] is True
    assert Result.model_validate(document) == train(config=config) == train(config="run.toml")


@pytest.mark.parametrize(
    "flags", ["--clip 3 --local-steps 2", "--clip=3 --local-steps=2", "--clip 3 --local_steps 2"]
)
def test_flags_win_over_the_file(config, equipoise, flags):
    run = json.loads(equipoise(f"train --config=run.toml {flags} --json")[1])["run"]
    assert (run["clip"], run["local_steps"]) == (3.0, 2)
    assert (run["epsilon"], run["algorithm"]) == (2.0, "dp-scaffnew")
    by_python = train(config=config, clip=3, local_steps=2).run
    assert by_python.model_dump(mode="json") == run


def test_files_of_data_may_be_several_in_a_file(clinic, equipoise):
    Path("run.toml").write_text(
        'task = "csv"\ndata = ["a.csv", "b.csv"]\ntest = "test.csv"\nlabel = "outcome"\n'
        'bounds = "bounds.toml"\nepsilon = inf\n'
    )
    document = json.loads(equipoise("train --config run.toml --json")[1])
    assert document["run"]["data"] == ["a.csv", "b.csv"]
    assert document["run"]["test"] == ["test.csv"]
    assert document["run"]["epsilon"] == "inf"
    assert Result.model_validate(document) == train(config="run.toml")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            RUN.replace("2.0", "[1.0, 2.0]"),
            "run.toml: epsilon is a list, but a run has one value; `equipoise sweep` takes lists",
        ),
        (RUN + "epsilom = 3\n", "run.toml: unknown setting epsilom: did you mean epsilon?"),
        (RUN + "lr = 3\n", "run.toml: unknown setting lr: did you mean eta?"),
        (RUN + "seeds = 3\n", "run.toml: unknown setting seeds: did you mean seed?"),
        (RUN + "zzz = 3\n", "run.toml: unknown setting zzz"),
        (
            RUN + "[options]\nh_update = 'paper'\n",
            "run.toml: unknown setting options: give each option by its own name",
        ),
        (RUN + "clip = 3\n", "clip and clip_norm are the same: give one of the two"),
        (RUN.replace("0.5", '"half"'), "clip='half'"),
        ("task = ", "run.toml is not TOML"),
        (b"\xff\xfe", "run.toml is not TOML"),
        (None, "run.toml: No such file or directory"),
    ],
)
def test_files_that_are_no_run(config, equipoise, text, sentence):
    config.unlink()
    if text is not None:
        config.write_bytes(text if isinstance(text, bytes) else text.encode())
    code, out, err = equipoise("train --config run.toml")
    assert (code, out) == (2, "")
    assert sentence in err
    assert len(err.splitlines()) == 1
    with pytest.raises(EquipoiseError, match=re.escape(sentence)):
        train(config=config)


def test_a_file_and_a_plan_are_not_mixed(config, equipoise):
    code, _, err = equipoise("train --config run.toml --plan plan.json")
    assert code == 2
    assert "a plan says everything" in err
    assert "--config needs a file" in equipoise("train --config")[2]


PRIVATE = {
    "csv": 'data = ["a.csv", "b.csv"]\nlabel = "outcome"\nbounds = "bounds.toml"\n',
    "libsvm": 'data = "a.txt"\n',
    "mine.py": "",
}


@pytest.mark.parametrize("task", PRIVATE)
@pytest.mark.parametrize("search", ["", " --search"])
def test_sweeps_of_one_s_own_files_need_a_word(clinic, equipoise, task, search):
    """Without --simulate nothing is read and nothing is written."""
    Path("test.csv").write_text(HEADER + "30,f,0.1,no\n70,m,0.9,yes\n90,f,0.9,yes\n")
    Path("a.txt").write_text("1 1:0.5\n0 2:0.5\n" * 20)
    Path("mine.py").write_text(TASK_FILE)
    tests = {"csv": 'test = "test.csv"\n', "libsvm": 'test = "test.txt"\n'}
    Path("test.txt").write_text("1 1:0.25\n0 2:0.25\n")
    Path("own.toml").write_text(
        f'task = "{task}"\n{PRIVATE[task]}{tests.get(task, "")}iterations = 2\nepsilon = inf\n'
        "seeds = [0]\n" + ("clients = 2\n" if task == "libsvm" else "")
    )
    command = f"sweep own.toml --store s.sqlite --workers 1{search}"
    code, out, err = equipoise(command)
    assert (code, out) == (2, "")
    assert err.startswith(f"error: task={task} reads your own files, and a sweep is a simulation")
    assert "its noise is seeded" in err
    assert "add --simulate" in err
    assert len(err.splitlines()) == 1
    assert not Path("s.sqlite").exists()
    code, out, err = equipoise(f"{command} --simulate")
    assert code == 0, err
    assert NOTICE in err
    assert Path("s.sqlite").exists()


@pytest.mark.parametrize("search", ["", " --search"])
def test_every_sweep_says_that_it_is_a_simulation(tmp_path, monkeypatch, equipoise, search):
    monkeypatch.chdir(tmp_path)
    Path("grid.toml").write_text(
        'task = "quadratic"\niterations = 4\nepsilon = [1.0, inf]\nclip = 1.0\nseeds = [0]\n'
    )
    command = f"sweep grid.toml --store s.sqlite --workers 1{search}"
    code, _, err = equipoise(command)
    assert code == 0
    assert err.startswith(NOTICE)
    assert NOTICE.startswith("SIMULATION, NOT PRIVATE")
    document = json.loads(equipoise(f"{command} --json")[1])
    assert next(iter(document)) == "notice"
    assert document["notice"] == NOTICE


def test_shells_can_complete(tmp_path):
    """Into a home of its own."""
    home = {**os.environ, "HOME": str(tmp_path), "SHELL": "/bin/bash"}
    home = {name: value for name, value in home.items() if not name.startswith("XDG_")}
    command = [sys.executable, "-m", "equipoise", "--install-completion", "--shell", "bash"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=home)
    assert done.returncode == 0, done.stderr
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    script = "\n".join(path.read_text() for path in written)
    assert "--local-steps" in script
    assert "equipoise" in script
    for path in written:
        if path.suffix == ".bash" or path.name == "equipoise":
            assert subprocess.run(["bash", "-n", path], timeout=30).returncode == 0


def test_shells_of_users_without_a_home_folder(monkeypatch, equipoise):
    def no_home():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr("pathlib.Path.home", no_home)
    code, _, err = equipoise("--install-completion --shell bash --output /dev/null")
    assert code == 1
    assert err == (
        "error: this user has no home folder: set the environment variable HOME to one\n"
    )


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
    assert "Train privately, with all clients" in done.stdout
    assert done.stdout.splitlines()[-1] == "[]"


SPENDS_NOTHING = "interrupted: nothing was saved, and nothing left this process: no budget is spent"


@pytest.mark.parametrize(
    ("place", "arguments", "sentence"),
    [
        ("engine.server_rounds", f"{TRAIN} --out made/run", SPENDS_NOTHING),
        ("training.load_task", f"{TRAIN} --out made/run", SPENDS_NOTHING),
        ("training.load_task", TRAIN, SPENDS_NOTHING),
        (
            "planning.planner.plan_all",
            "plan --task quadratic --epsilon 2",
            "interrupted: no plan was made, and planning spends no budget",
        ),
        ("paper.report.report", "report", "interrupted"),
    ],
)
def test_an_interrupt_says_what_it_cost(
    tmp_path, monkeypatch, equipoise, place, arguments, sentence
):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(f"equipoise.{place}", interrupted)
    assert equipoise(arguments) == (130, "", f"{sentence}\n")
    assert list(tmp_path.iterdir()) == [], "no empty folder is left"


@pytest.mark.parametrize("name", ["result.json", "model.safetensors", "curve.png"])
def test_an_interrupt_while_saving_names_what_is_there(tmp_path, monkeypatch, equipoise, name):
    honest = saved.write_whole

    def interrupted(path, write):
        if path.name == name:
            raise KeyboardInterrupt
        honest(path, write)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("equipoise.saved.write_whole", interrupted)
    code, out, err = equipoise(f"{TRAIN} --out run")
    assert code == 130
    assert "spent       epsilon = 2 of 2" in out, "it is spent, and said"
    files = ["result.json", "model.safetensors", "guarantee.md", "guarantee.json"]
    files += ["guarantee.html", "model-card.md", "curve.png"]
    there = files[: files.index(name)]
    goes_on = "; start the same again to write it all: nothing is spent twice"
    assert err == (
        f"interrupted: out=run: written: {', '.join(there) or 'nothing'}; not written: "
        f"{', '.join(files[len(there) :])}{'' if name == 'curve.png' else goes_on}\n"
    )
    assert all((tmp_path / "run" / file).is_file() for file in there)


@pytest.mark.slow
def test_an_interrupted_process_exits_with_130(tmp_path):
    command = [sys.executable, "-m", "equipoise", *TRAIN.split()[:-1], "10000000", "--out", "run"]
    # Where the tests run in the background, a child would ignore the interrupt, too.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    started = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    signal.signal(signal.SIGINT, before)
    while not (tmp_path / "run").exists() and started.poll() is None:
        time.sleep(0.05)
    started.send_signal(signal.SIGINT)
    try:
        assert started.communicate(timeout=60)[1] == f"{SPENDS_NOTHING}\n"
    finally:
        started.kill()
    assert started.returncode == 130
    assert not (tmp_path / "run").exists()


def test_a_plan_is_printed_before_its_picture_is_drawn(tmp_path, monkeypatch, equipoise):
    """A full disk costs the picture, not the plan; a folder that is missing costs no planning."""

    def full(plans, path):
        path.write_text("half a")
        raise OSError(28, "No space left on device")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("equipoise.reports.trade_off.draw_trade_off", full)
    constants = "--mu 1 --smoothness 4 --dimension 9 --clients 9 --clip 1 --r0 1 --zeta 1"
    code, out, err = equipoise(f"plan {constants} --epsilon 1 --json --save-plot p.png")
    assert code == 2
    assert json.loads(out)["format"] == 1
    assert err == "error: save_plot=p.png was not drawn: No space left on device\n"
    assert list(tmp_path.iterdir()) == [], "no half picture is left"
    monkeypatch.setattr("equipoise.planning.planner.plan_all", lambda *_, **__: 1 / 0)
    code, out, err = equipoise("plan --task quadratic --epsilon 1 --save-plot nodir/p.png")
    assert (code, out) == (2, "")
    assert err == "error: save_plot=nodir/p.png: there is no folder nodir; make it\n"


def test_an_interrupt_while_libraries_load_is_no_traceback(monkeypatch, capsys):
    class Interrupted:
        def __getattr__(self, name):
            raise KeyboardInterrupt

    monkeypatch.setitem(sys.modules, "equipoise.cli.main", Interrupted())
    with pytest.raises(SystemExit) as stopped:
        run()
    assert stopped.value.code == 130
    assert capsys.readouterr().err == "interrupted\n"
