"""Plans for networks: the real algorithm, rehearsed on public records."""

import math

import pytest
import torch
from torch import nn

from equipoise import InvalidValue, plan, train
from equipoise.planning import networks, rehearsal
from equipoise.planning.candidates import Candidate
from equipoise.planning.outlook import NOT_TRAINING, PUBLIC_ALONE
from equipoise.planning.plan import Question
from equipoise.planning.rehearsal import FEWEST_RECORDS, PARTS, Problem, known_of
from equipoise.privacy.promise import Promise
from equipoise.tasks.own import accuracy, own_task
from problems import run_command

CLIENTS, RECORDS = 8, 20
ASKED = {"epsilon": 8.0, "trust": "secure-aggregation", "algorithm": "dp-fedavg"}
RECORD = {"epsilon": 8.0, "unit": "record", "algorithm": "dp-fedavg"}


def blobs(n, seed=0):
    x = torch.randn(n, 4, generator=torch.Generator().manual_seed(seed))
    return x, (x[:, 0] + x[:, 1] > 0).long()


def network(pool=24, spoilt=False, sizes=(RECORDS,) * CLIENTS, **options):
    """A tiny network; `spoilt`: with private records that nobody could learn from."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))
    clients = [blobs(size, seed=i + 1) for i, size in enumerate(sizes)]
    if spoilt:
        clients = [(torch.full_like(x, math.nan), torch.zeros_like(y)) for x, y in clients]
    return own_task(
        model,
        clients,
        nn.functional.cross_entropy,
        accuracy,
        test=blobs(60, seed=100),
        pool=blobs(pool, seed=200) if pool else None,
        learning_rate=0.5,
        iterations=16,
        **options,
    )


@pytest.fixture(scope="module", autouse=True)
def little_effort():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rehearsal, "STAND_INS", (2, 2))
        patch.setattr(rehearsal, "SPLITS", (4, 4))
        patch.setattr(networks, "TURNS", 1)
        yield


@pytest.fixture(scope="module")
def answer(little_effort):
    return plan(task=network(), **ASKED)


def test_a_network_with_a_pool_gets_a_plan_that_train_follows(answer):
    chosen = answer.chosen
    assert chosen.iterations <= 16
    assert [way.name for way in answer.ways][:2] == [NOT_TRAINING, PUBLIC_ALONE]
    assert {"federated", "federated, warm start"} <= {way.name for way in answer.ways}
    for way in answer.ways:
        low, high = way.predicted.interval("test_error")
        assert 0 <= low <= way.predicted.test_error <= high <= 1
    assert answer.ways[1].measured == answer.public_only.test_error
    assert answer.predicted.test_error < answer.ways[0].predicted.test_error
    assert any(note.startswith("ROUGH") for note in answer.notes)
    result = train(answer, task=network(), anyway=True)
    assert result.run.clip == chosen.clip
    assert result.run.returns == chosen.returns
    assert result.run.warm_start == chosen.warm_start
    assert result.account.epsilon <= 8


def test_no_private_record_decides(answer):
    """Nor does a number of records, where that is private."""
    garbage = network(spoilt=True, sizes=(3, 40, *(7,) * (CLIENTS - 2)))
    assert plan(task=garbage, **ASKED) == answer


def test_no_private_record_decides_where_sizes_are_public():
    asked = {**RECORD, "iterations": 4}
    before = plan(task=network(), **asked)
    assert before.chosen.noise_in == "gradient"
    assert plan(task=network(spoilt=True), **asked) == before


def test_what_the_user_says_is_respected():
    made = plan(task=network(), **{**ASKED, "algorithm": "both"}, iterations=6, clip=0.7, gamma=0.5)
    for option in (made.chosen, *made.options):
        assert (option.iterations, option.clip, option.gamma) == (6, 0.7, 0.5)
    assert {option.algorithm for option in made.options} == {"dp-fedavg", "dp-scaffnew"}


@pytest.mark.slow
def test_records_in_minibatches_are_sampled():
    task = network(batch=4)
    made = plan(task=task, **RECORD, iterations=16)
    result = train(made, task=task, anyway=True)
    assert result.run.sampling_rate == made.chosen.sampling_rate
    assert result.account.epsilon <= 8
    assert result.run.noise_in == "gradient"


@pytest.mark.parametrize("round_cost", [0.0, 100.0])
def test_rounds_are_saved_where_they_have_a_price(round_cost):
    made = plan(task=network(), **RECORD, iterations=8, round_cost=round_cost)
    assert (made.chosen.rounds == 8) == (round_cost == 0)


@pytest.mark.parametrize("unit", ["client", "record"])
def test_the_rehearsed_noise_is_that_of_the_real_average(unit):
    """Averaged over all clients, per coordinate: of messages, or of mean gradients."""
    trust = "secure-aggregation" if unit == "client" else "local"
    asked = {"unit": unit, "trust": trust, "epsilon": (2.0,)}
    task = network()
    problem = Problem(
        known_of(Question.of(task="own", **asked), task), Promise(2.0, 1e-5, unit, trust=trust)
    )
    noise_in = "message" if unit == "client" else "gradient"
    candidate = Candidate("dp-fedavg", 0.1, 2, 3, 0.7, 1.0, noise_in)
    run = train(
        task=task, epsilon=2, unit=unit, trust=trust, clip=0.7, local_steps=2, iterations=6, eta=0.1
    )
    of_one = run.client_sigma if unit == "client" else run.account.sigma / RECORDS
    assert problem.noise(candidate) == pytest.approx(of_one / math.sqrt(CLIENTS), rel=1e-3)


def test_stand_ins_judge_on_records_that_they_do_not_hold():
    public = known_of(Question.of(task="own", epsilon=(2.0,)), network(pool=30))
    judged = []
    for number in range(PARTS):
        split = public.split(number)
        held = {tuple(row) for part, _ in split.stand_ins.data for row in part.tolist()}
        judges = [tuple(row) for row in split.judges.data[0][0].tolist()]
        assert not held & set(judges)
        judged += judges
    assert len(judged) == len(set(judged)) == 30


def test_labels_are_skewed_as_the_split_says():
    question = Question.of(task="own", epsilon=(2.0,), split="dirichlet:0.01")
    targets = [t for _, t in known_of(question, network(pool=60)).split(0).stand_ins.data]
    assert any(len(t.unique()) == 1 for t in targets)


@pytest.mark.parametrize("records", [0, FEWEST_RECORDS - 1])
def test_without_a_pool_there_is_noise_and_no_pretence(records):
    made = plan(task=network(pool=records), **ASKED)
    assert made.verdict == "inconclusive"
    assert "too few public records" in made.reason
    assert made.chosen is None
    assert made.noise


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ({"skew": "mild"}, "skew with task=own, a network: it belongs to tables"),
        ({"records": 100}, "records with task=own, a network: it belongs to tables"),
        ({"judge_by": "loss"}, "without a public pool"),
    ],
)
def test_bad_questions_get_one_sentence(asked, sentence):
    with pytest.raises(InvalidValue, match=sentence):
        plan(task=network(pool=0), **ASKED, **asked)


def test_networks_are_not_planned_for_auroc():
    with pytest.raises(InvalidValue, match="chosen by error or loss"):
        plan(task=network(), **ASKED, judge_by="auroc")
    by_loss = plan(task=network(), **ASKED, judge_by="loss", iterations=4)
    assert by_loss.judged_by == "loss"


def test_mechanisms_for_tables_are_refused():
    with pytest.raises(InvalidValue, match="needs a regularised linear model"):
        plan(task=network(), **RECORD, noise_in="message")


@pytest.mark.slow
def test_digits_are_planned_from_forty_records(capsys, tmp_path, monkeypatch):
    """The realised error is far below that of the public records alone, as the verdict says."""
    monkeypatch.setattr(rehearsal, "STAND_INS", (6, 5))
    monkeypatch.setattr(rehearsal, "SPLITS", (8, 4))
    monkeypatch.setattr(networks, "TURNS", 2)
    words = "--task digits-mlp --epsilon 3.3 --trust secure-aggregation".split()
    code, out, err = run_command(capsys, "plan", *words, "--json")
    assert code == 0, err
    path = tmp_path / "plan.json"
    path.write_text(out)
    assert '"verdict": "train"' in out
    result = train(plan=path)
    assert result.run.public_records == 40
    assert result.test_error < 0.18
    assert result.public_only.test_error > 0.25
