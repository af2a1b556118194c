"""guarantee.json, .md and .html: what is said of a run is true, can be computed anew, and is the
same everywhere."""

import hashlib
import hmac
import json
import math
import re
import shutil
import stat
import subprocess
from dataclasses import replace
from datetime import datetime
from html.parser import HTMLParser
from pathlib import Path

import jsonschema
import numpy as np
import pytest
import yaml
from scipy import optimize, special, stats

import equipoise
from attack_integrals import best_found
from equipoise import About, InvalidValue, train
from equipoise.measures import Estimate, Measures, Part
from equipoise.origin import Origin, fingerprints, read_about
from equipoise.planning.plan import Plan
from equipoise.privacy.statement import (
    Guarantee,
    guarantee_of,
    page_of,
    registry_entry,
    statement,
)
from equipoise.privacy.statement import document as document_module
from equipoise.privacy.statement.rounding import at_least, at_most, percent
from equipoise.privacy.trade_off import budget
from equipoise.result import Adapted, Federated, Result
from problems import BOUNDS, ROOT, run_command

SCHEMA = Path(document_module.__file__).with_name("guarantee.schema.json")
GOLDEN = Path(__file__).parent / "golden" / "v0.1"
SMALL = {"task": "breast-cancer", "clients": 10, "iterations": 16, "local_steps": 4}
RECORD = {**SMALL, "unit": "record", "clients": 4}
KINDS = {
    "client": {**SMALL, "epsilon": 3.3, "clip": 1},
    "sums": {**SMALL, "epsilon": 2, "clip": 1, "trust": "secure-aggregation", "colluding": 2},
    "zero-out": {**SMALL, "epsilon": 2, "clip": 1, "neighbours": "zero-out"},
    "record": {**RECORD, "epsilon": 3, "clip": 1},
    "sampled": {**RECORD, "epsilon": 3, "clip": 1, "sampling_rate": 0.3},
    "own rates": {**RECORD, "epsilon": 3, "clip": 1, "batch": 20, "neighbours": "add-remove"},
    "stable": {**RECORD, "epsilon": 3, "clip": 1, "noise_in": "message"},
    "hidden": {**RECORD, "epsilon": 3, "noise_in": "hidden-gradient"},
    "weak": {**SMALL, "epsilon": 12, "clip": 1},
    "too large": {**SMALL, "epsilon": 30, "clip": 1},
    "as printed": {**SMALL, "epsilon": 2, "clip": 1, "noise_rule": "lemma1", "v": 0.2},
    "seeded": {**SMALL, "epsilon": 12, "clip": 1, "simulate_noise_seed": 3},
    "diagnosed": {**SMALL, "epsilon": 2, "clip": 1, "diagnostics": True},
    "not noised": {**SMALL, "epsilon": math.inf},
}


@pytest.fixture(scope="module")
def results():
    return {kind: train(**settings) for kind, settings in KINDS.items()}


def documents(results):
    for kind, result in results.items():
        yield kind, result, json.loads(guarantee_of(result, "ab" * 32).to_json())


# -------------------------------------------------------------------------------------------------
# the document


def test_the_schema_in_the_package_is_current():
    assert SCHEMA.read_text() == Guarantee.schema_text()


def test_every_document_validates_and_reads_back(results):
    schema = json.loads(SCHEMA.read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    for kind, result, document in documents(results):
        jsonschema.validate(document, schema)
        assert Guarantee.model_validate(document).model_dump(mode="json") == document, kind
        assert document["format"] == 1
        assert document["private"] == result.private
        assert document["notices"] == result.notices
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**document, "epsilon": "a lot"}, schema)


def test_epsilon_mu_and_the_curve_follow_from_the_document(results):
    """With scipy alone: Gaussian releases by their closed forms, secret samples by integration."""
    checked = set()
    for kind, _, document in documents(results):
        attack, delta = document["attack"], document["delta"]
        if attack is None:
            continue
        beta, alpha = np.array(attack["beta"]), np.array(attack["alpha"])
        curves = []
        for event in {json.dumps(event): event for event in document["events"]}.values():
            whole = event["sensitivity"] * math.sqrt(event["count"]) / event["sigma"]
            if event["rate"] == 1:
                assert event["mu"] == pytest.approx(whole)
                assert epsilon_of(whole, delta) == pytest.approx(event["epsilon"], rel=1e-6)
                curves.append(stats.norm.cdf(stats.norm.isf(alpha) - whole))
            else:
                assert event["mu"] is None
                clip = {"replace-one": 2, "add-remove": 1}[document["neighbours"]]
                noise = event["sigma"] / event["sensitivity"] * clip
                how = (document["neighbours"], event["rate"], noise, event["count"])
                found = best_found(*how, alpha)
                assert (1 - beta >= found - 3e-4).all()
                curves.append(1 - found)
        assert document["mu"] is None or document["mu"] == max(e["mu"] for e in document["events"])
        assert document["epsilon"] == max(e["epsilon"] for e in document["events"])
        close = 1e-9 if document["mu"] is not None else 0.03
        assert beta == pytest.approx(np.min(curves, axis=0), abs=close), kind
        alone = np.maximum(
            1 - delta - math.exp(document["epsilon"]) * alpha,
            math.exp(-document["epsilon"]) * (1 - delta - alpha),
        )
        assert attack["implied"] == pytest.approx(np.maximum(0, alone))
        by_gauss = all(event["rate"] == 1 for event in document["events"])
        assert attack["exact"] == (by_gauss and kind not in ("stable", "hidden"))
        at = attack["alpha"].index(attack["fpr"])
        assert attack["tpr"] == 1 - attack["beta"][at]
        checked.add(kind)
    assert {"client", "sums", "record", "sampled", "own rates", "stable", "too large"} <= checked
    assert not {"seeded", "diagnosed", "not noised"} & checked


def epsilon_of(mu, delta):
    def excess(epsilon):
        log_second = epsilon + special.log_ndtr(-mu / 2 - epsilon / mu)
        return special.ndtr(mu / 2 - epsilon / mu) - math.exp(log_second) - delta

    return optimize.brentq(excess, 0, 1e4, xtol=1e-12)


def test_of_a_model_tuned_at_home_nothing_is_guaranteed(results):
    numbers = {"records": 9, "error": 0.1, "standard_error": 0.1, "alone_error": 0.1}
    adapted = Adapted(rho=1, l2=0, tensors=("w",), federated_error=0.1, **numbers)
    result = results["client"].model_copy(update={"adapted": adapted, "private": False})
    with pytest.raises(InvalidValue, match="not to be released"):
        guarantee_of(result)
    assert statement(result).startswith("# NOT TO BE RELEASED")


@pytest.mark.parametrize("name", ["run", "record-run"])
def test_results_of_older_versions_have_statements(name):
    result = equipoise.load(GOLDEN / name)
    document = json.loads(guarantee_of(result).to_json())
    jsonschema.validate(document, json.loads(SCHEMA.read_text()))
    assert document["chosen"] == "It was not noted how the settings were chosen."
    assert "Gaps between floating-point numbers" in statement(result)
    assert "It was not noted how" in page_of(guarantee_of(result))


# -------------------------------------------------------------------------------------------------
# sentences


def test_the_first_sentence_is_true_word_for_word(results):
    """Its two numbers are those of the worst neighbours, rounded up; nothing is said of a run that
    guarantees nothing."""
    for kind, result, document in documents(results):
        sentence = document["sentence"]
        if not result.private:
            reason = next(notice for notice in result.notices if "NOT PRIVATE" in notice)
            assert sentence == f"Nothing is guaranteed that may be quoted: {reason}"
            assert document["strength"] == "none"
            continue
        tpr, fpr = (float(x) / 100 for x in re.findall(r"([0-9.]+) %", sentence))
        assert fpr == 0.01
        mu = document["mu"]
        if mu is not None:
            exact = stats.norm.sf(stats.norm.isf(0.01) - mu)
            assert exact <= tpr <= exact + 1e-3, kind
        assert document["attack"]["tpr"] <= tpr
        assert f"> {sentence}\n" in statement(result)
        unit = result.run.unit
        assert ("one record of one client" in sentence) == (unit == "record")
        seen = "every message of every client" if result.run.trust == "local" else "the sum of all"
        assert sentence.startswith(f"Anyone who sees {seen}")
    sums = guarantee_of(results["sums"]).sentence
    assert " and all that 2 colluding clients know, knows all data except those of" in sums
    assert "whether the data of one client that does not collude are particular ones" in sums
    assert "rather than sending zeros" in guarantee_of(results["zero-out"]).sentence
    assert "rather than left out" in guarantee_of(results["own rates"]).sentence


def test_the_numbers_that_everybody_quotes(results):
    """An epsilon of 3.3 at delta = 1e-5: 6.13 % at 1 %, where both alone warn of 27 %."""
    attack = guarantee_of(results["client"]).attack
    assert (percent(attack.tpr), percent(attack.implied_tpr)) == ("6.13 %", "27.2 %")
    assert "finds at most 6.13 % of the cases; guessing finds 1 %" in statement(results["client"])


def test_shares_are_rounded_up():
    for share, text in (
        (0.061248, "6.13 %"),
        (0.01, "1 %"),
        (0.050000000000001, "5 %"),
        (0.0500001, "5.01 %"),
        (0.99999, "100 %"),
        (1.0, "100 %"),
        (0.0, "0 %"),
        (0.000123, "0.0123 %"),
    ):
        assert percent(share) == text
    for share in np.random.default_rng(0).uniform(0, 1, 500):
        assert float(percent(share)[:-2]) / 100 >= share * (1 - 1e-11)


def test_numbers_of_sentences_err_on_the_safe_side():
    for value, digits, up, down in (
        (1.9998740986, 6, "1.99988", "1.99987"),
        (1e-5, 6, "1e-05", "1e-05"),
        (2.0, 3, "2", "2"),
        (2.1512, 3, "2.16", "2.15"),
        (99.999, 4, "100", "99.99"),
        (math.inf, 3, "inf", "inf"),
        (0.0, 3, "0", "0"),
    ):
        assert (at_most(value, digits), at_least(value, digits)) == (up, down)
    for value in np.exp(np.random.default_rng(1).uniform(-40, 40, 500)):
        assert float(at_least(value, 3)) <= value <= float(at_most(value, 3))


def test_nothing_that_is_said_to_be_at_most_is_rounded_down(results):
    """epsilon of the definition, mu, its bounds, how sure anybody becomes, and several records."""
    checked = 0
    for kind, result in results.items():
        if not result.private:
            continue
        text, account = statement(result), result.account
        said = re.search(r"with epsilon = ([0-9.e+-]+) \(", text)
        assert account.epsilon <= float(said[1]) <= account.epsilon * 1.00001, kind
        sure = re.search(r"more than ([0-9.]+) % sure", text)
        assert 1 / (1 + math.exp(-account.epsilon)) <= float(sure[1]) / 100 * (1 + 1e-12), kind
        if mu := re.search(r"private, mu = ([0-9.]+)[ ,]", text):
            assert account.mu <= float(mu[1])
        if between := re.search(r"between ([0-9.]+) and ([0-9.]+)\)", text):
            assert float(between[1]) <= account.epsilon_lower
            assert account.epsilon <= float(between[2])
        for group in guarantee_of(result).several:
            if group.delta < 1:
                promised = rf"{group.units} records: epsilon = ([0-9.]+) at delta = ([0-9.e-]+)"
                epsilon, delta = map(float, re.search(promised, text).groups())
                assert (group.epsilon <= epsilon, group.delta <= delta) == (True, True)
                checked += 1
    assert checked > 4


def test_shares_that_somebody_chose_are_told_in_all_digits():
    """At 1.24 % of false alarms an attacker finds more than at the 1.2345 % that were given."""
    fpr, max_tpr = 0.012345, 0.050005
    result = train(**SMALL, clip=1, max_tpr=max_tpr, fpr=fpr)
    guarantee = guarantee_of(result)
    assert "a false alarm in at most 1.2345 % of the cases" in guarantee.sentence
    assert "false alarms in 1.2345 % of cases" in guarantee.attack.sentence
    assert "find more than 5.0005 % at 1.2345 %" in statement(result)
    assert "at most 5.0005 % at 1.2345 % false" in page_of(guarantee)
    assert "| 1.2345 % | 5.01 % |" in statement(result)


def test_what_is_told_apart_is_not_said_to_look_alike(results):
    """At epsilon = 12 a test tells the two situations apart in most cases."""
    weak = results["weak"]
    found = percent(stats.norm.sf(stats.norm.isf(0.01) - weak.account.mu))
    for text in (statement(weak), page_of(guarantee_of(weak)).replace("<b>", "")):
        assert "Hardly" not in text
        assert f"Told apart in up to {found} of the cases, with 1 % false alarms:" in text
    hardly = {k for k, r in results.items() if r.private and "Hardly" in statement(r)}
    assert {"client", "sums", "record", "sampled"} <= hardly


def test_of_zero_out_other_records_are_said_to_be_protected_less(results):
    for kind in ("client", "zero-out"):
        document = guarantee_of(results[kind])
        said = "for that, mu counts twice" in document.reach
        assert said == (kind == "zero-out")
        assert document.reach in statement(results[kind])


def test_every_form_says_where_it_ran_and_why_only_sums_are_seen(results):
    document = guarantee_of(results["sums"])
    assumed = "it holds only where a secure aggregation protocol enforces it"
    for text in (document.to_json(), page_of(document), statement(results["sums"])):
        assert assumed in text
        assert "one process that read the records of all clients" in text
    assert "enforces" not in guarantee_of(results["client"]).sees


def test_names_cannot_be_markup(results):
    origin = Origin(run="<script>1</script>", when="<b>now</b>")
    page = page_of(guarantee_of(results["client"].model_copy(update={"origin": origin})))
    assert "<script>" not in page
    assert "<b>now" not in page


def test_two_situations_are_told_for_every_unit_and_neighbours(results):
    """The one is hidden by the promise; the other is what clients' records have in common."""
    pairs = {(g.unit, g.neighbours): g for g in map(guarantee_of, results.values())}
    assert len({g.alike for g in pairs.values()}) == len(pairs)
    for (unit, neighbours), guarantee in pairs.items():
        words = "with entirely different records" if unit == "client" else "row"
        if neighbours == "zero-out":
            words = "nothing but noise"
        assert words in guarantee.alike
        assert "may be learnt" in guarantee.unlike
    private = statement(results["client"])
    assert "Hardly to be told apart: One hospital" in private
    assert "Hardly" not in statement(results["seeded"])


def test_delta_stands_beside_one_over_n(results):
    result = results["client"]
    for delta, clients, words in (
        (1e-5, 10, "1/10 = 0.1; this delta is 10,000 times less."),
        (0.02, 10, "this delta is 5 times less, which is near. Choose a smaller one."),
        (0.2, 10, "This delta is not below that: it promises nothing."),
    ):
        run = result.run.model_copy(update={"delta": delta, "clients": clients})
        guarantee = guarantee_of(result.model_copy(update={"run": run}))
        assert guarantee.delta_sentence.endswith(words)
        assert guarantee.delta_times_units == delta * clients
    assert "of 379 protected records" in guarantee_of(results["record"]).delta_sentence


def test_several_records_of_one_person(results):
    """Only for unit record: k mu at the same delta."""
    guarantee = guarantee_of(results["record"])
    for group in guarantee.several:
        assert group.epsilon == pytest.approx(epsilon_of(group.units * guarantee.mu, 1e-5))
    assert [group.units for group in guarantee.several] == [2, 4, 10]
    assert guarantee_of(results["client"]).several == []


def test_what_a_run_between_silos_says(results):
    where = Federated(silos=("a", "b", "c"), agreement="cd" * 32, masked=True)
    origin = Origin(run="cd" * 32, when="2026-11-19T00:00:00+00:00")
    result = results["sums"].model_copy(update={"federated": where, "origin": origin})
    guarantee = guarantee_of(result)
    assert guarantee.chosen.startswith("The settings are those of the agreement.")
    assert guarantee.where == where
    page = page_of(guarantee)
    assert ", 3 separate silos" in page
    assert "cd" * 32 in page
    entry = yaml.safe_load(registry_entry(with_about(guarantee)))["deployment"]
    assert entry["deployment_model"]["model_name"] == "Federated"
    assert "only sums of their masked messages" in entry["deployment_model"]["model_name_details"]


# -------------------------------------------------------------------------------------------------
# how the settings were chosen


@pytest.mark.slow
def test_how_the_settings_were_chosen(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    _, plan, _ = run_command(
        capsys,
        *"plan --task breast-cancer --clients 10 --clip 1 --max-tpr 0.2 --fpr 0.01".split(),
        *"--trust secure-aggregation --iterations 4 --algorithm dp-fedavg --json".split(),
    )
    Path("plan.json").write_text(plan)
    digest = hashlib.sha256(plan.encode()).hexdigest()
    ledger = "--ledger spent.db --cap-epsilon 19 --cap-delta 1e-4"
    train_by_plan = f"train --plan plan.json --anyway --out a {ledger}"
    assert run_command(capsys, *train_by_plan.split())[0] == 0
    first = equipoise.guarantee("a")
    assert f"a plan (SHA-256 of its file: `{digest}`), which spent 0 of the budget" in first.chosen
    assert "40 records for planning" in first.chosen
    assert f"held no earlier run when this one was admitted as {first.origin.run}" in first.chosen
    assert first.attack.max_tpr == 0.2
    assert first.attack.tpr <= 0.2 * (1 + 1e-12)
    assert "asked to let nobody find more than 20 % at 1 %" in Path("a/guarantee.md").read_text()
    assert abs((datetime.now().astimezone() - datetime.fromisoformat(first.origin.when)).days) == 0
    second = train(Plan.model_validate_json(plan), anyway=True, ledger="spent.db")
    assert second.origin.plan == digest
    by_hand = guarantee_of(train(**SMALL, epsilon=1, clip=1, ledger="spent.db")).chosen
    assert "were given by whoever started the run" in by_hand
    assert "spent budgets of their own" in by_hand
    assert "The ledger of these data held 2 earlier runs" in by_hand
    assert "unit client: " in by_hand
    without = guarantee_of(train(**SMALL, epsilon=1, clip=1)).chosen
    assert "ledger" not in without


def test_simulations_are_the_same_each_time(results):
    assert results["seeded"].origin is None
    again = train(**KINDS["seeded"])
    assert again.to_json() == results["seeded"].to_json()
    assert statement(again) == statement(results["seeded"])
    private = results["client"]
    assert private.origin.run != train(**KINDS["client"]).origin.run
    assert private == private.model_copy(update={"origin": None})


# -------------------------------------------------------------------------------------------------
# a bound on attacks instead of epsilon


@pytest.mark.parametrize(
    "more", [{}, {"trust": "secure-aggregation"}, {"unit": "record", "sampling_rate": 0.3}]
)
def test_a_run_keeps_the_bound_that_it_was_asked_for(more):
    result = train(**SMALL, clip=1, max_tpr=0.05, fpr=0.01, **more)
    attack = guarantee_of(result).attack
    assert attack.tpr <= 0.05
    assert attack.tpr > (0.045 if more.get("sampling_rate") else 0.05 * (1 - 1e-9))
    assert "--max-tpr 0.05 --fpr 0.01" in result.repeat
    assert "--epsilon" not in result.repeat
    assert Result.model_validate_json(result.to_json()) == result


def test_a_plan_names_the_bound_that_it_was_asked_for():
    plan = Plan.model_validate_json((GOLDEN / "plan.json").read_text())
    bound = {"max_tpr": 0.05, "fpr": 0.01}
    asked = plan.model_copy(update={"settings": plan.settings.model_copy(update=bound)})
    assert "; no attacker with 0.01 of false alarms finds more than 0.05" in str(asked)
    assert "attacker" not in str(plan)


def test_bounds_on_attacks_that_cannot_be_are_refused(capsys):
    flags = "--task breast-cancer --clients 10 --clip 1"
    for command in ("train", "plan"):
        for more, words in (
            ("--max-tpr 0.05", "a bound on attacks has both"),
            ("--fpr 0.01", "a bound on attacks has both"),
            ("--max-tpr 0.05 --fpr 0.01 --epsilon 2", "give one of the two"),
            ("--max-tpr 0.05 --fpr 0.1", "0 < fpr < max_tpr < 1"),
            ("", "epsilon is missing: give epsilon, or max_tpr and fpr"),
        ):
            code, _, error = run_command(capsys, command, *flags.split(), *more.split())
            assert code == 2
            assert words in error
            assert len(error.splitlines()) == 1
    with pytest.raises(InvalidValue, match="give one of the two"):
        equipoise.plan(task="breast-cancer", clip=1, max_tpr=0.05, fpr=0.01, epsilon=(1, 2))
    with pytest.raises(InvalidValue, match=r"an attacker may find 0\.\d+, since it is not that of"):
        train(**SMALL, clip=1, max_tpr=0.05, fpr=0.01, noise_rule="lemma1", v=0.1)


# -------------------------------------------------------------------------------------------------
# what the owner says


FILLED_IN = """
name = "Triage <b>model</b>"
purpose = "to decide | who is seen first"
controller = "General Hospital"
contact = "privacy@example.org"
region = "Europe"
sector = "Healthcare"
published = "2026-11-19"
"""


def with_about(guarantee):
    words = {"name": "M", "purpose": "P", "controller": "C", "region": "R"}
    return guarantee.model_copy(update={"about": About(**words, published="2026-11-19")})


def test_what_the_owner_says_is_in_every_form(tmp_path, capsys):
    (tmp_path / "about.toml").write_text(FILLED_IN)
    result = train(**KINDS["client"], about=tmp_path / "about.toml", out=tmp_path / "run")
    assert result.about.contact == "privacy@example.org"
    text = (tmp_path / "run" / "guarantee.md").read_text()
    assert "- contact: privacy@example.org" in text
    assert "- retention: (not stated)" in text
    page = (tmp_path / "run" / "guarantee.html").read_text()
    assert "Triage &lt;b&gt;model&lt;/b&gt;" in page
    assert "<b>model" not in page
    document = json.loads((tmp_path / "run" / "guarantee.json").read_text())
    assert document["about"]["controller"] == "General Hospital"
    digest = hashlib.sha256((tmp_path / "run" / "model.safetensors").read_bytes()).hexdigest()
    assert document["model_sha256"] == digest
    (tmp_path / "later.toml").write_text('retention = "ten years"')
    command = ["guarantee", str(tmp_path / "run")]
    assert run_command(capsys, *command)[1] == text
    later = run_command(capsys, *command, "--about", str(tmp_path / "later.toml"))[1]
    assert "- retention: ten years" in later
    assert "General Hospital" not in later
    assert json.loads(run_command(capsys, *command, "--json")[1]) == document


def test_the_page_s_example_is_such_a_file(tmp_path):
    page = (ROOT / "docs" / "statement.md").read_text()
    (tmp_path / "about.toml").write_text(re.search(r"```text\n(purpose.*?)```", page, re.DOTALL)[1])
    about = read_about(tmp_path / "about.toml")
    assert all(getattr(about, name) for name in About.model_fields)
    assert "ε = 2.82, the largest" in page
    assert budget(0.05, 0.01, 1e-5) == pytest.approx(2.82, abs=0.005)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("purpose = 3", "purpose is no text that is asked for: give purpose, controller"),
        ('porpoise = "x"', "porpoise is no text that is asked for"),
        ("purpose = ", "is not TOML"),
        ('published = "soon"', "published='soon' is not a date"),
        (None, "No such file"),
    ],
)
def test_what_is_no_such_file_is_refused(tmp_path, text, words):
    place = tmp_path / "about.toml"
    if text is not None:
        place.write_text(text)
    with pytest.raises(equipoise.EquipoiseError, match=re.escape(words)):
        read_about(place)


def test_fingerprints_need_the_salt(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("bounds.toml").write_text(BOUNDS)
    rows = [f"{20 + i},{'fm'[i % 2]},0.{i % 10},{['no', 'yes'][i % 2]}\n" for i in range(20)]
    for name in ("a.csv", "b.csv"):
        Path(name).write_text("age,sex,score,outcome\n" + "".join(rows))
    table = {"task": "csv", "data": ("a.csv", "b.csv"), "label": "outcome"}
    shared = {**table, "bounds": "bounds.toml", "epsilon": 2, "clip": 1, "iterations": 2}
    result = train(**shared, salt="salt", out="run")
    salt = Path("salt").read_bytes()
    assert len(salt) == 32
    assert stat.S_IMODE(Path("salt").stat().st_mode) == 0o600
    inner = hashlib.sha256(Path("a.csv").read_bytes())
    expected = hmac.new(salt, inner.digest(), "sha256").hexdigest()
    assert result.origin.fingerprints == (expected, expected)  # the files are alike
    assert fingerprints(("a.csv",), "salt") == (expected,)
    assert fingerprints(("a.csv",), "another") != (expected,)
    for file in Path("run").iterdir():
        assert salt not in file.read_bytes()
        assert inner.hexdigest().encode() not in file.read_bytes()
    assert expected in Path("run/guarantee.md").read_text()
    assert train(**shared).origin.fingerprints == (), "nobody asked"
    with pytest.raises(InvalidValue, match="a task that reads no data files"):
        train(**KINDS["client"], salt="salt")
    with pytest.raises(InvalidValue, match="salt=salt with a simulation"):
        train(**KINDS["seeded"], salt="salt")
    Path("short").write_bytes(b"x")
    with pytest.raises(InvalidValue, match="has 1 bytes where 32 random ones are needed"):
        train(**shared, salt="short")


# -------------------------------------------------------------------------------------------------
# utility


def test_utility_stands_beside_privacy(results):
    part = Part("ward 3", 12, {"auroc": Estimate(0.7, 0.5, 0.9), "rmse": Estimate(None)})
    measures = Measures(records=12, estimates={}, grouped_by="ward", groups=(part,))
    result = results["client"].model_copy(update={"measures": measures})
    guarantee = guarantee_of(result)
    assert guarantee.utility.groups["ward 3"] == {"records": 12.0, "auroc": 0.7, "rmse": None}
    assert "- ward 3 (12 records): AUROC 0.700 [0.500, 0.900], RMSE too few" in statement(result)
    assert "<td>ward 3</td><td>12</td><td>0.7</td>" in page_of(guarantee)
    assert "It was not measured by group." in statement(results["client"])
    assert "not measured by group" not in statement(result)
    worse = result.model_copy(update={"test_error": 0.9, "baseline_error": 0.4})
    assert "no better than none" in guarantee_of(worse).utility.sentence
    unknown = result.model_copy(update={"test_error": None, "baseline_error": None})
    assert "is not known here" in guarantee_of(unknown).utility.sentence


# -------------------------------------------------------------------------------------------------
# the page


class Tags(HTMLParser):
    def __init__(self):
        super().__init__()
        self.open, self.seen, self.links = [], set(), []

    def handle_starttag(self, tag, attrs):
        self.seen.add(tag)
        self.links += [value for name, value in attrs if name in ("src", "href", "xlink:href")]
        if tag not in ("meta", "path", "circle", "polyline"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.seen.add(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_pages_need_no_network_and_no_script(results):
    for kind, result in results.items():
        tags, page = Tags(), page_of(guarantee_of(result))
        tags.feed(page)
        assert tags.open == [], kind
        assert not tags.seen & {"script", "link", "img", "iframe"}
        assert tags.links == []
        assert "url(" not in page
        assert ("svg" in tags.seen) == (guarantee_of(result).attack is not None)
        assert ("<h1>NOT a privacy guarantee</h1>" in page) == (not result.private)


def test_the_picture_shows_the_curve(results):
    """Points of the line, measured in the picture, are points of the curve."""
    guarantee = guarantee_of(results["client"])
    lines = re.findall(r'<polyline points="([^"]+)"[^>]*stroke="(#\w+)"', page_of(guarantee))
    (drawn,) = (points for points, colour in lines if colour == "#1f5fa8")
    xs, ys = np.array([point.split(",") for point in drawn.split()], float).T
    alphas = 10 ** (-3 * (1 - (xs - xs.min()) / (xs.max() - xs.min())))
    found = (ys.max() - ys) / (ys.max() - ys.min())
    mu = guarantee.mu
    low = stats.norm.sf(stats.norm.isf(1e-3) - mu)
    exact = stats.norm.sf(stats.norm.isf(np.minimum(alphas, 1 - 1e-12)) - mu)
    assert found * (1 - low) + low == pytest.approx(exact, abs=0.01)
    assert len(lines) == 3


CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)


@pytest.mark.slow
@pytest.mark.skipif(
    CHROMIUM is None,
    reason="there is no Chromium here to print the page with (Debian: apt install chromium)",
)
@pytest.mark.parametrize("kind", ["client", "sampled", "not noised"])
def test_the_page_prints_on_two_sheets_at_most(results, kind, tmp_path):
    (tmp_path / "page.html").write_text(page_of(with_about(guarantee_of(results[kind], "ab" * 32))))
    subprocess.run(
        [
            *(CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run"),
            *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
            *("--disable-quic", f"--user-data-dir={tmp_path / 'profile'}"),
            *("--no-pdf-header-footer", f"--print-to-pdf={tmp_path / 'page.pdf'}"),
            (tmp_path / "page.html").as_uri(),
        ],
        check=True,
        capture_output=True,
        timeout=120,
    )
    sheets = re.findall(rb"/Type\s*/Page\b(?!s)", (tmp_path / "page.pdf").read_bytes())
    assert 1 <= len(sheets) <= 2


# -------------------------------------------------------------------------------------------------
# the registry

TEXT, NUMBER = str, float
PUBLISHED = {  # field names, kinds and enumerations of the registry's schema, July 2026
    "basic": {
        "name": TEXT,
        "data_curators": [TEXT],
        "intended_use": TEXT,
        "data_product_type": {"Machine learning model"},
        "data_product_region": TEXT,
        "description": TEXT,
        "publication_date": TEXT,
        "data_product_sector": {
            *("Technology", "Healthcare", "Education", "Government", "Energy", "Finance")
        },
    },
    "dp_variant": {
        "variant_name": {"Approximate DP"},
        "data_domain": TEXT,
        "unprotected_quantities": TEXT,
    },
    "privacy_loss": {
        "privacy_unit": TEXT,
        "privacy_unit_details": TEXT,
        "privacy_parameters": {"epsilon": NUMBER, "delta": NUMBER},
        "privacy_parameters_details": TEXT,
    },
    "deployment_model": {
        "model_name": {"Local", "Central", "Shuffle", "Federated", "Varies"},
        "model_name_details": TEXT,
        "actors": TEXT,
        "release_type": {"One release", "Many releases"},
        "release_type_details": TEXT,
        "data_source_type": {"Static", "Dynamic"},
        "access_type": {"Interactive", "Non-interactive"},
    },
    "accounting": {"post_processing": TEXT, "composition": TEXT},
    "implementation": {
        "preprocessing_and_hyperparameter_tuning": TEXT,
        "mechanisms": TEXT,
        "justification": TEXT,
    },
    "administrative": {"sources": TEXT, "notes": TEXT, "registry_authors": [TEXT]},
}
OPTIONAL = {"data_product_sector", "sources"}


def check_fields(entry, published):
    assert set(entry) <= set(published)
    assert set(published) - set(entry) <= OPTIONAL
    for name, value in entry.items():
        kind = published[name]
        if isinstance(kind, dict):
            check_fields(value, kind)
        elif isinstance(kind, set):
            assert value in kind, name
        elif isinstance(kind, list):
            assert value
            assert all(isinstance(item, kind[0]) for item in value)
        else:
            assert isinstance(value, kind), name


def test_the_registry_s_entry_has_its_published_fields(results, tmp_path, capsys):
    for kind, result in results.items():
        guarantee = with_about(guarantee_of(result))
        if not result.private:
            with pytest.raises(InvalidValue, match="guarantees nothing, so there is nothing to"):
                registry_entry(guarantee)
            continue
        entry = yaml.safe_load(registry_entry(guarantee))
        assert (entry.pop("status"), entry.pop("tier")) == ("Draft", 3)
        assert re.fullmatch(r"[a-z0-9-]+", entry.pop("url_slug"))
        check_fields(entry.pop("deployment"), PUBLISHED)
        assert entry == {}, kind
    (tmp_path / "about.toml").write_text(FILLED_IN)
    equipoise.save(results["client"], tmp_path / "run")
    command = ["guarantee", str(tmp_path / "run"), "--registry"]
    code, _, error = run_command(capsys, *command)
    assert code == 2
    assert "a registry entry needs name, purpose, controller, region, published" in error
    code, out, _ = run_command(capsys, *command, "--about", str(tmp_path / "about.toml"))
    entry = yaml.safe_load(out)["deployment"]
    assert code == 0
    assert entry["basic"]["name"] == "Triage <b>model</b>"
    assert entry["privacy_loss"]["privacy_parameters"] == {"epsilon": 3.3, "delta": 1e-5}
    strange = About(**{**yaml_about(), "sector": "Magic"})
    with pytest.raises(InvalidValue, match="sector='Magic' is none that the registry knows"):
        registry_entry(guarantee_of(results["client"].model_copy(update={"about": strange})))


def yaml_about():
    return {
        "name": "M",
        "purpose": "P",
        "controller": "C",
        "region": "R",
        "published": "2026-01-01",
    }


@pytest.mark.parametrize("number", [1e-5, 3.3, 1.0, 1e-300, 123456789.0, 5e22])
def test_numbers_of_the_entry_read_back(number, results):
    guarantee = with_about(guarantee_of(results["client"])).model_copy(update={"epsilon": number})
    entry = yaml.safe_load(registry_entry(guarantee))["deployment"]
    assert entry["privacy_loss"]["privacy_parameters"]["epsilon"] == number


def test_the_command_refuses_what_it_cannot_write(results, tmp_path, capsys):
    equipoise.save(results["client"], tmp_path / "run")
    page = tmp_path / "page.html"
    for flags, words in (
        (["--registry", "--json"], "give one of the two"),
        (["--html", str(tmp_path / "no" / "page.html")], "there is no folder"),
        (["--about", str(tmp_path / "none.toml")], "No such file"),
    ):
        code, out, error = run_command(capsys, "guarantee", str(tmp_path / "run"), *flags)
        assert (code, out, len(error.splitlines())) == (2, "", 1)
        assert words in error
    for code, words in ((0, f"written: {page}"), (2, "is there already")):
        answer = run_command(capsys, "guarantee", str(tmp_path / "run"), "--html", str(page))
        assert answer[0] == code
        assert words in answer[2].replace("\n", "")
    digest = hashlib.sha256((tmp_path / "run" / "model.safetensors").read_bytes()).hexdigest()
    assert digest in page.read_text()
    assert run_command(capsys, "guarantee", str(tmp_path))[0] == 2


def test_the_weakest_client_is_the_one_that_is_told(results):
    """Of clients with events of their own: a document with another one's would say less."""
    result = results["record"]
    weaker = replace(result.account.events[1], sigma=result.account.events[1].sigma / 2)
    events = (result.account.events[0], weaker, *result.account.events[2:])
    told = guarantee_of(
        result.model_copy(update={"account": result.account._replace(events=events)})
    )
    assert told.attack.tpr > 2 * guarantee_of(result).attack.tpr
