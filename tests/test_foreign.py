"""What other programs spend: several phases against independent integrals, published numbers to
their last digit, files of every engine, and that nothing in them is run, guessed or believed."""

import json
import math
import re
import shutil
from itertools import pairwise
from pathlib import Path

import mpmath
import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import norm

import equipoise
from equipoise.errors import EquipoiseError, InvalidValue
from equipoise.privacy.accountants import rdp, rdp_classic
from equipoise.privacy.composed import Gaussian, Pure, spend
from equipoise.privacy.events import Event
from equipoise.privacy.foreign.catalogue import ENGINES
from equipoise.privacy.foreign.flower import CHANCE
from equipoise.privacy.foreign.report import _power
from equipoise.privacy.gaussian import epsilon_spent
from equipoise.privacy.groups import by_steps
from equipoise.privacy.job import Job
from problems import ROOT, run_command

DELTA = 1e-5
HERE = Path(__file__).parent / "foreign"
SHARE = ["largest_share=1/20"]
SVT = ["version=2.8.1", "parameters=7033290"]


def spent_of(account):
    return {spending.neighbours: spending for spending in account.spends}


def told(capsys, line):
    return run_command(capsys, "account", *line.split())


# -------------------------------------------------------------------------------------------------
# what was published


PUBLISHED = {
    # Opacus, examples/mnist_README.md: batches of 240 of 60,000 records, so 250 steps an epoch
    "Opacus, MNIST, sigma 1.3, 1 epoch": (1.3, 1 / 250, 250, "0.71"),
    "Opacus, MNIST, sigma 1.3, 15 epochs": (1.3, 1 / 250, 15 * 250, "1.16"),
    "Opacus, MNIST, sigma 1.1, 60 epochs": (1.1, 1 / 250, 60 * 250, "2.91"),
    "Opacus, MNIST, sigma 0.7, 45 epochs": (0.7, 1 / 250, 45 * 250, "6.86"),
    # TensorFlow Privacy, tutorials/README.md: batches of 256
    "TF Privacy, MNIST, 1.3, 15 epochs": (1.3, 256 / 60_000, 15 * 60_000 // 256, "1.19"),
    "TF Privacy, MNIST, 1.1, 60 epochs": (1.1, 256 / 60_000, 60 * 60_000 // 256, "3.01"),
    "TF Privacy, MNIST, 0.7, 45 epochs": (0.7, 256 / 60_000, 45 * 60_000 // 256, "7.10"),
    # its tutorial on classification: n = 60,000, batches of 250, 15 epochs
    "TF Privacy, tutorial": (1.3, 250 / 60_000, 15 * 240, "1.18"),
    # Abadi et al., "Deep learning with differential privacy", 2016, figure 2
    "Abadi et al. 2016, q = 0.01, sigma = 4": (4.0, 0.01, 10_000, "1.26"),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_numbers(name):
    """All are of add-remove, delta = 1e-5, by the moments accountant: RDP with the classic
    conversion, and reproduced to every digit that was printed. What is spent is less, by RDP with
    the better conversion and by composition of losses, and cannot be less than the lower bound."""
    noise, rate, steps, printed = PUBLISHED[name]
    event = Event("record", "add-remove", 1.0, noise, rate, steps)
    classic = rdp_classic(event, DELTA).epsilon
    assert f"{classic:.2f}" == printed
    spent = spend([Gaussian(steps, noise, rate)], "add-remove", DELTA)
    assert spent.lower <= spent.epsilon <= rdp(event, DELTA).epsilon <= classic
    assert 0.98 * spent.epsilon < spent.lower
    replaced = spend([Gaussian(steps, noise, rate)], "replace-one", DELTA)
    assert replaced.lower > 1.4 * spent.epsilon


def rows_of_the_page():
    for name, (noise, rate, steps, printed) in PUBLISHED.items():
        classic = rdp_classic(Event("record", "add-remove", 1.0, noise, rate, steps), DELTA).epsilon
        spent, replaced = (
            spend([Gaussian(steps, noise, rate)], way, DELTA)
            for way in ("add-remove", "replace-one")
        )
        values = f"{classic:.3f} | {spent.epsilon:.3f} | {spent.lower:.3f} | {replaced.epsilon:.3f}"
        yield f"| {name} | {noise:g} | {rate:.4g} | {steps:,} | {printed} | {values} |"


def test_the_page_has_these_rows():
    page = (ROOT / "docs" / "account.md").read_text()
    rows = [*rows_of_the_page()]
    assert [row for row in page.splitlines() if row in rows] == rows


def test_the_page_shows_what_the_command_prints(capsys, monkeypatch):
    """Blocks that read a fixture; those of numbers are run with all other pages."""
    monkeypatch.chdir(HERE)
    monkeypatch.setenv("COLUMNS", "160")
    page = (ROOT / "docs" / "account.md").read_text()
    blocks = re.findall(
        r"^```\n\$ cd tests/foreign && equipoise account (.*)\n([^`]*)```", page, re.M
    )
    assert len(blocks) == 2
    for line, shown in blocks:
        code, out, _ = told(capsys, line)
        assert code == 0
        assert [row.rstrip() for row in out.splitlines()] == shown.splitlines()


def test_an_epsilon_of_1_a_message_is_10_after_100_rounds():
    """Flower's LocalDpMod: sigma = sqrt(2 ln(1.25/delta)) C, by 50 digits of Balle and Wang's
    formula."""
    noise = math.sqrt(2 * math.log(1.25 / DELTA))
    for neighbours, apart, known in (("zero-out", 1, 10.4), ("replace-one", 2, 25.4)):
        spent = spend([Gaussian(100, noise)], neighbours, DELTA)
        assert spent.exact
        assert round(spent.epsilon, 1) == known
        with mpmath.workdps(50):
            mu = mpmath.mpf(10) * apart / mpmath.sqrt(2 * mpmath.log(mpmath.mpf("1.25e5")))
            epsilon = mpmath.mpf(spent.epsilon)
            delta = mpmath.ncdf(mu / 2 - epsilon / mu)
            delta -= mpmath.exp(epsilon) * mpmath.ncdf(-mu / 2 - epsilon / mu)
            assert float(delta) == pytest.approx(DELTA, rel=1e-9)


# -------------------------------------------------------------------------------------------------
# several phases, against integrals


def delta_of_mixture(epsilon, noise, rate, mu, apart):
    """One step on a sample beside a Gaussian release with this mu: the loss of the step is
    integrated, that of the release has a closed form. The worse of both directions."""

    def density(x, sign):
        moved = norm.pdf(x, sign / noise)
        return (1 - rate) * norm.pdf(x) + rate * moved

    def released(rest):
        return norm.cdf(mu / 2 - rest / mu) - math.exp(rest) * norm.cdf(-mu / 2 - rest / mu)

    def direction(p, q):
        def inner(x):
            return p(x) * released(epsilon - math.log(p(x) / q(x)))

        edges = [-9.0, -3.0, 0.0, 1 / noise, 3.0, 9.0]
        return sum(quad(inner, *ends, epsabs=1e-13, limit=200)[0] for ends in pairwise(edges))

    def with_it(x):
        return density(x, 1.0)

    def without(x):
        return density(x, -1.0) if apart == 2 else norm.pdf(x)

    return max(direction(with_it, without), direction(without, with_it))


@pytest.mark.parametrize("neighbours", ["add-remove", "replace-one"])
@pytest.mark.parametrize(("noise", "rate", "whole"), [(1.0, 0.1, 4.0), (0.8, 0.3, 2.0)])
def test_a_sample_beside_a_whole_release_is_the_integral(neighbours, noise, rate, whole):
    apart = {"add-remove": 1, "replace-one": 2}[neighbours]
    parts = [Gaussian(1, noise, rate), Gaussian(1, whole)]
    for delta in (1e-3, 1e-5):
        spent = spend(parts, neighbours, delta)
        assert spent.mu is None
        assert delta_of_mixture(spent.epsilon, noise, rate, apart / whole, apart) <= delta
        assert delta_of_mixture(spent.lower, noise, rate, apart / whole, apart) >= delta
        assert 0.95 * spent.epsilon < spent.lower


def test_whole_releases_add_up_in_mu():
    parts = [Gaussian(100, 20.0), Gaussian(5, 3.0), Gaussian(1, 7.0)]
    mu = math.sqrt(100 / 20**2 + 5 / 3**2 + 1 / 7**2)
    for neighbours, apart in (("add-remove", 1), ("zero-out", 1), ("replace-one", 2)):
        spent = spend(parts, neighbours, DELTA)
        assert spent.exact
        assert spent.mu == pytest.approx(apart * mu, rel=1e-12)
        assert spent.epsilon == pytest.approx(epsilon_spent(1.0, 1, apart * mu, DELTA), rel=1e-9)
    assert _power(mu) == pytest.approx(norm.sf(norm.isf(0.01) - mu), rel=1e-9)
    assert _power(0.0) == pytest.approx(0.01)


def test_one_phase_is_a_job():
    job = Job(200, sigma=0.6, clip=0.3, rate=0.05, unit="record", neighbours="add-remove")
    spent = spend([Gaussian(200, 2.0, 0.05)], "add-remove", DELTA)
    assert spent.epsilon == job.account().epsilon
    assert spent.lower == job.account().epsilon_lower
    split = spend([Gaussian(150, 2.0, 0.05), Gaussian(50, 2.0, 0.05)], "add-remove", DELTA)
    assert split == spent
    kinds = spend([Gaussian(150, 2.0, 0.05), Gaussian(50, 2.0, 0.0501)], "add-remove", DELTA)
    assert spent.lower < kinds.lower < kinds.epsilon < spent.epsilon * 1.02


def test_samples_with_too_little_noise_for_a_grid_are_counted_as_whole():
    spent = spend([Gaussian(2, 0.05, 0.5), Gaussian(10, 3.0, 0.1)], "add-remove", DELTA)
    assert (spent.lower, spent.mu) == (0.0, None)
    alone = spend([Gaussian(2, 0.05)], "add-remove", DELTA)
    assert alone.epsilon < spent.epsilon


def test_pure_releases_add_up_or_compose_by_rho():
    """50 of Laplace noise: never below their losses, composed, nor above the sum."""
    from dp_accounting import LaplaceDpEvent, SelfComposedDpEvent
    from dp_accounting.pld import PLDAccountant

    exact = PLDAccountant().compose(SelfComposedDpEvent(LaplaceDpEvent(10.0), 50))
    spent = spend([Pure(50, 0.1)], "add-remove", DELTA)
    assert exact.get_epsilon(DELTA) <= spent.epsilon < 5.0
    assert spent.epsilon < 1.3 * exact.get_epsilon(DELTA)
    assert spend([Pure(2, 0.1)], "add-remove", 1e-12).epsilon == pytest.approx(0.2)
    both = spend([Pure(2, 0.1), Gaussian(1, 5.0)], "add-remove", DELTA)
    noised = spend([Gaussian(1, 5.0)], "add-remove", DELTA).epsilon
    assert noised < both.epsilon <= noised + 0.2
    assert (both.lower, both.mu) == (noised, None)


def test_what_is_left_to_chance_is_taken_from_delta():
    spent = spend([Gaussian(4, 6.0)], "zero-out", DELTA, chance=DELTA / 2)
    assert spent.epsilon == pytest.approx(epsilon_spent(6.0, 4, 1.0, DELTA / 2), rel=1e-9)
    assert not spent.exact
    with pytest.raises(EquipoiseError, match="left to chance"):
        spend([Gaussian(4, 6.0)], "zero-out", DELTA, chance=DELTA)


def test_several_units():
    whole = spend([Gaussian(16, 20.0)], "replace-one", DELTA)
    assert whole.of_units(4).epsilon == pytest.approx(epsilon_spent(20.0, 16, 8.0, DELTA), rel=1e-9)
    sampled = spend([Gaussian(100, 2.0, 0.01)], "add-remove", DELTA)
    four = sampled.of_units(4)
    e = sampled.epsilon
    assert four.epsilon == 4 * e
    grown = DELTA * (1 + math.exp(e) + math.exp(2 * e) + math.exp(3 * e))
    assert four.delta == pytest.approx(grown, rel=1e-9)
    assert by_steps(400.0, DELTA, 2) == (2, math.inf, 1.0)


@pytest.mark.parametrize(
    "parts", [[Gaussian(10**6 + 1, 5.0, 0.1)], [Gaussian(1, 1 + k / 100, 0.1) for k in range(60)]]
)
def test_what_would_take_hours_is_refused(parts):
    with pytest.raises(EquipoiseError, match="rate=1 is an upper bound"):
        spend(parts, "add-remove", DELTA)


# -------------------------------------------------------------------------------------------------
# Flower


def test_flower_local():
    """The app of the documentation: a mod on the training function; 100 rounds are in the
    configuration. Every file of it would stop the test if it were run."""
    account = equipoise.account(HERE / "flower-local")
    assert account.engine == "Flower"
    assert account.claims == (
        "epsilon = 1 at delta = 1e-05 for one message (client_app.py, line 9)",
    )
    spent = spent_of(account)
    assert spent["zero-out"].epsilon == pytest.approx(10.39, abs=0.005)
    assert spent["replace-one"].epsilon == pytest.approx(25.44, abs=0.005)
    assert "one message spends 1.61 under replace-one, 0.751 under zero-out" in account.beside
    assert any("two updates are up to 2 apart" in line for line in account.beside)
    once = equipoise.account(HERE / "flower-local", rounds=1)
    assert spent_of(once)["zero-out"].epsilon == pytest.approx(0.751, abs=5e-4)


def test_a_sensitivity_that_is_not_the_clip_is_not_believed(tmp_path):
    """Half of it is half of the noise."""
    app = app_with(
        tmp_path, "flower-local", "sensitivity=CLIP", "sensitivity=0.5", "quiet/client_app.py"
    )
    spent = spent_of(equipoise.account(app))
    noise = 0.5 * math.sqrt(2 * math.log(1.25 / DELTA))
    assert spent["zero-out"].mu == pytest.approx(10 / noise)
    assert spent["replace-one"].mu == pytest.approx(20 / noise)


def test_flower_adds_the_noise_that_is_counted(monkeypatch):
    """flwr's own mod and wrappers, with the standard deviations that they pass on."""
    from flwr.serverapp import strategy
    from flwr.supercore import differential_privacy as flwr_dp

    account = equipoise.account(HERE / "flower-local")
    assert account.parts["zero-out"][0].noise == pytest.approx(math.sqrt(2 * math.log(1.25e5)))
    arrays = [np.array([3.0, 4.0])]
    flwr_dp.compute_clip_model_update(arrays, [np.zeros(2)], 1.0)
    assert np.linalg.norm(arrays[0]) == pytest.approx(1.0)
    assert flwr_dp.compute_stdv(2.0, 10.0, 20) == 2.0 * 10 / 20  # of the average of 20
    broken = [np.array([np.nan, 1e6])]
    flwr_dp.compute_clip_model_update(broken, [np.zeros(2)], 1.0)
    assert broken[0][1] == 1e6  # what is said of values that are not numbers

    wrapper = strategy.DifferentialPrivacyServerSideAdaptiveClipping(strategy.FedAvg(), 1.0, 20)
    noise = {}
    monkeypatch.setattr(
        "flwr.serverapp.strategy.dp_adaptive_clipping.add_gaussian_noise_inplace",
        lambda arrays, deviation: noise.update(now=deviation),
    )
    clip = wrapper.clipping_norm
    wrapper._geometric_update(1.0)  # all were clipped: as aggregate_train does before the noise
    from flwr.app import ArrayRecord

    wrapper._add_noise_to_aggregated_arrays(ArrayRecord([np.zeros(2)]))
    over_share = noise["now"] / (clip / 20)
    adaptive = equipoise.account(HERE / "flower-adaptive", given=SHARE)
    counted, count = adaptive.parts["replace-one"]
    assert 0.9 * over_share < counted.noise < over_share < wrapper.noise_multiplier
    assert count.noise / 2 == adaptive.parts["zero-out"][1].noise == wrapper.clipped_count_stddev


def test_flower_adaptive_by_hand():
    """z = (1 - 1/4)^(-1/2), with the clip that is left where all were clipped and the noise of the
    count is at its worst but for a thousandth of delta; one client moves the count by 1."""
    account = equipoise.account(HERE / "flower-adaptive", given=SHARE)
    most = 1 - norm.ppf(CHANCE * DELTA / 50) * 1.0 / 20
    noise = (1 - 1 / 4) ** -0.5 * math.exp(-0.2 * (most - 0.5))
    for neighbours, apart in (("zero-out", 1), ("replace-one", 2)):
        mu = math.sqrt(50 * ((apart / noise) ** 2 + 1.0))
        epsilon = epsilon_spent(1.0, 1, mu, DELTA * (1 - CHANCE))
        assert spent_of(account)[neighbours].epsilon == pytest.approx(epsilon, rel=1e-9)
    assert not any(spending.exact for spending in account.spends)


def test_flower_central():
    """Noise of the average: weighed alike, sigma = z C for the sum; else less."""
    asked = equipoise.account(HERE / "flower-central")
    assert asked.spends == ()
    assert "largest_share" in asked.asks[0]
    alike = spent_of(equipoise.account(HERE / "flower-central", given=SHARE))
    assert alike["replace-one"].mu == pytest.approx(2 * math.sqrt(50) / 2)
    unequal = spent_of(equipoise.account(HERE / "flower-central", given={"largest_share": 0.25}))
    assert unequal["replace-one"].mu == pytest.approx(5 * 2 * math.sqrt(50) / 2)
    more = equipoise.account(HERE / "flower-central", rounds=200, given=SHARE)
    assert spent_of(more)["zero-out"].mu == pytest.approx(math.sqrt(200) / 2)
    other = ["noise-multiplier=4.0", *SHARE]
    louder = spent_of(equipoise.account(HERE / "flower-central", given=other))
    assert louder["replace-one"].mu == pytest.approx(2 * math.sqrt(50) / 4)


def app_with(tmp_path, name, old, new, file="quiet/server_app.py"):
    """A copy of an app in which one line is another."""
    app = tmp_path / "app"
    shutil.copytree(HERE / name, app)
    text = (app / file).read_text()
    assert text.count(old) == 1, old
    (app / file).write_text(text.replace(old, new))
    return app


@pytest.mark.parametrize(
    ("name", "file", "old", "new", "why"),
    [
        (
            *("flower-central", "quiet/client_app.py", "[secaggplus_mod, fixedclipping_mod]"),
            *("[secaggplus_mod]", "updates are not clipped, and no noise is enough"),
        ),
        (
            *("flower-central", "pyproject.toml", "noise-multiplier = 2.0"),
            *("noise-multiplier = 0", "noise_multiplier=0: no noise is added"),
        ),
        (
            *("flower-local", "quiet/client_app.py", "sensitivity=CLIP", "sensitivity=0"),
            "sensitivity=0: no noise is added",
        ),
        (
            *("flower-local", "quiet/client_app.py", "app = ClientApp()"),
            *("import numpy as np\nnp.random.seed(0)\napp = ClientApp()", "is seeded"),
        ),
        (
            *("flower-local", "quiet/client_app.py", "private = LocalDpMod("),
            *("private = print(", "neither LocalDpMod nor"),
        ),
    ],
)
def test_what_is_no_differential_privacy_in_flower(tmp_path, name, file, old, new, why):
    given = SHARE if name == "flower-central" else []
    account = equipoise.account(app_with(tmp_path, name, old, new, file), given=given)
    assert any(why in reason for reason in account.void), account


@pytest.mark.parametrize(
    ("name", "file", "old", "new", "ask"),
    [
        (
            *("flower-local", "quiet/server_app.py", "num_rounds=num_rounds"),
            *("num_rounds=many()", "rounds cannot be read from client_app.py, server_app.py: give"),
        ),
        (
            *("flower-local", "quiet/client_app.py", "epsilon=1.0"),
            *("epsilon=chosen(3)", "(chosen(3)): give --given epsilon=NUMBER"),
        ),
        (
            *("flower-local", "quiet/client_app.py", "CLIP = 1.0"),
            *("for CLIP in (1.0, 2.0):\n    pass", "clipping_norm of LocalDpMod cannot be read"),
        ),
        (
            *("flower-local", "quiet/client_app.py", "CLIP = 1.0"),
            *("CLIP = 1.0\nCLIP = 2.0", "clipping_norm of LocalDpMod cannot be read"),
        ),
        (
            *("flower-local", "quiet/client_app.py", "mods=[private]"),
            *("", "no list of mods with the LocalDpMod"),
        ),
        (
            *("flower-local", "quiet/client_app.py", "app = ClientApp()"),
            *("class Mine(LocalDpMod):\n    pass\napp = ClientApp()", "Mine extends a class"),
        ),
        (
            *("flower-local", "pyproject.toml", "flwr[simulation]>=1.27.0"),
            *("flwr[simulation]>=1.97.0", "is known here up to 1.41"),
        ),
        (
            *("flower-local", "quiet/client_app.py", "CLIP = 1.0"),
            *("CLIP = 1.0\nother = LocalDpMod(2.0, 2.0, 1.0, 1e-5)", "several mechanisms"),
        ),
        (
            *("flower-central", "quiet/client_app.py", "mods=[secaggplus_mod, fixedclipping_mod]"),
            *("mods=chosen()", "whether clients clip cannot be read"),
        ),
    ],
)
def test_what_cannot_be_read_is_asked_for(tmp_path, name, file, old, new, ask):
    given = SHARE if name == "flower-central" else []
    account = equipoise.account(app_with(tmp_path, name, old, new, file), given=given)
    assert account.spends == ()
    assert any(ask in question for question in account.asks), account.asks


MOD = "private = LocalDpMod(CLIP,"
START = "    strategy.start(grid=grid, initial_arrays=None, num_rounds=num_rounds)"


@pytest.mark.parametrize(
    ("file", "old", "new", "ask"),
    [
        ("client_app.py", MOD, f"from .rest import CLIP\n{MOD}", "clipping_norm of LocalDpMod"),
        ("client_app.py", MOD, f"from .rest import *\n{MOD}", "clipping_norm of LocalDpMod"),
        ("client_app.py", MOD, f"def CLIP(): ...\n{MOD}", "clipping_norm of LocalDpMod"),
        (
            *("client_app.py", MOD, f"try: ...\nexcept Exception as CLIP: ...\n{MOD}"),
            "clipping_norm of LocalDpMod",
        ),
        ("client_app.py", MOD, "M = LocalDpMod\nprivate = M(CLIP,", "no call of it can be read"),
        (
            *("client_app.py", "@app.train(mods", "@app.train('bare')\ndef more(): ..."),
            "for every training function",
        ),
        (
            *("client_app.py", "app = ClientApp()", "app = ClientApp(mods=[private])"),
            "for every training function",
        ),
        ("server_app.py", START, f"{START}\n{START}", "rounds are said more than once"),
        ("server_app.py", START, f"    for _ in range(9):\n    {START}", "rounds cannot be read"),
        (
            *(
                "server_app.py",
                START,
                f"    context.run_config['num-server-rounds'] = 900\n{START}",
            ),
            "rounds cannot be read",
        ),
        (
            *("server_app.py", START, f"    context.run_config.update(more)\n{START}"),
            "rounds cannot be read",
        ),
    ],
)
def test_what_may_be_otherwise_when_it_runs_is_asked_for(tmp_path, file, old, new, ask):
    if "for every" in ask:  # one of two apps, or of two training functions, has no mods
        new += "\n\n\n@app.train(mods" if "bare" in new else "\nother = ClientApp()"
    app = app_with(tmp_path, "flower-local", old, new, f"quiet/{file}")
    if "other" in new:
        path = app / "quiet/client_app.py"
        path.write_text(path.read_text().replace("@app.train(mods=[private])", "@app.train()"))
    account = equipoise.account(app)
    assert account.spends == ()
    assert any(ask in question for question in account.asks), account.asks


@pytest.mark.parametrize(
    "lines",
    [
        "from numpy.random import seed\nseed(1)",
        "import numpy as xp\nxp.random.seed(seed=1)",
        "from numpy import random as r\nr.seed(1)",
        "import numpy.random\nnumpy.random.seed(1)",
    ],
)
def test_seeds_by_any_name_are_found(tmp_path, lines):
    app = app_with(
        *(tmp_path, "flower-local", "app = ClientApp()", f"{lines}\napp = ClientApp()"),
        "quiet/client_app.py",
    )
    assert "is seeded" in equipoise.account(app).void[0]


@pytest.mark.parametrize("line", ["keras.utils.set_random_seed(8)", "seed_everything(8)"])
def test_what_may_seed_is_said(tmp_path, line):
    new = f"{line}\napp = ClientApp()"
    app = app_with(tmp_path, "flower-local", "app = ClientApp()", new, "quiet/client_app.py")
    account = equipoise.account(app)
    assert account.void == ()
    assert any("may seed NumPy's generator" in sentence for sentence in account.beside)


@pytest.mark.parametrize(
    ("name", "old", "new", "why"),
    [
        ("flower-central", "clipping-norm = 10", "clipping-norm = -10", "clipping_norm=-10: flwr"),
        ("flower-adaptive", "/ 2,", "/ 2, clip_norm_lr=-0.2,", "clip_norm_lr=-0.2: flwr"),
        (
            *("flower-adaptive", "/ 2,", "/ 2, target_clipped_quantile=5,"),
            "target_clipped_quantile=5, which is not in [0, 1]",
        ),
    ],
)
def test_what_flower_refuses_is_refused(tmp_path, name, old, new, why):
    file = "pyproject.toml" if old.startswith("clipping-norm") else "quiet/server_app.py"
    app = app_with(tmp_path, name, old, new, file)
    with pytest.raises(InvalidValue, match=re.escape(why)):
        equipoise.account(app, given=SHARE)


def test_an_accountant_of_flower_s_own_is_a_claim(tmp_path):
    old = "num_sampled_clients=clients,"
    app = app_with(
        tmp_path, "flower-central", old, f"{old} accountant=Its(),", "quiet/server_app.py"
    )
    first, second = equipoise.account(app).claims
    assert first.startswith("noise multiplier 2")
    assert "takes its place, which is replace-one" in second


def test_arguments_that_are_not_known_are_refused(tmp_path):
    app = app_with(
        *(tmp_path, "flower-local", "epsilon=1.0", "epsilon=1.0, layers=3"),
        "quiet/client_app.py",
    )
    with pytest.raises(InvalidValue, match="has layers, which is not known of it here"):
        equipoise.account(app)


def test_an_answer_to_a_question_is_used(tmp_path):
    app = app_with(tmp_path, "flower-local", "num_rounds=num_rounds", "num_rounds=many()")
    assert spent_of(equipoise.account(app, rounds=100))["zero-out"].epsilon > 10
    account = equipoise.account(HERE / "flower-local/quiet/client_app.py", rounds=100)
    assert spent_of(account)["zero-out"].epsilon == pytest.approx(10.39, abs=0.005)


def test_an_app_with_opacus_is_asked_for_its_state(tmp_path):
    file = tmp_path / "client_app.py"
    file.write_text("import flwr\nfrom opacus import PrivacyEngine\n")
    assert "state of its accountant as JSON" in equipoise.account(file).asks[0]


def test_a_name_of_another_library_is_not_taken_for_flower_s(tmp_path):
    file = tmp_path / "client_app.py"
    file.write_text("from mine import LocalDpMod\nx = LocalDpMod(1.0, 1.0, 1.0, 1e-5)\n")
    assert "neither LocalDpMod nor" in equipoise.account(file, rounds=3, given={}).void[0]


# -------------------------------------------------------------------------------------------------
# NVFlare


def svt_job(tmp_path, arguments=None, executed=("train",), server=None):
    """The files of a job whose task train passes SVTPrivacy."""
    svt = {"path": "nvflare.app_common.filters.svt_privacy.SVTPrivacy", "args": arguments or {}}
    client = {
        "format_version": 2,
        "executors": [{"tasks": [*executed], "executor": {"path": "a.B", "args": {}}}],
        "task_result_filters": [{"tasks": ["train"], "filters": [svt]}],
    }
    (tmp_path / "config_fed_server.json").write_text(json.dumps(server or {}))
    file = tmp_path / "config_fed_client.json"
    file.write_text(json.dumps(client))
    return file


NEW_SVT = ["version=2.8", "parameters=1000"]


def test_rounds_of_several_workflows_add_up(tmp_path):
    workflow = {"id": "train", "path": "a.ScatterAndGather", "args": {"num_rounds": 5}}
    twice = svt_job(tmp_path, server={"workflows": [workflow, {**workflow, "id": "again"}]})
    spent = spent_of(equipoise.account(twice, given=NEW_SVT))
    whole = spent_of(equipoise.account(twice, given=NEW_SVT, rounds=10))
    assert spent["replace-one"].epsilon == whole["replace-one"].epsilon
    for count in ([5], "5", True, None):
        server = {"workflows": [{**workflow, "args": {"num_rounds": count}}]}
        asked = equipoise.account(svt_job(tmp_path, server=server), given=NEW_SVT)
        assert "give --rounds" in asked.asks[0]


def test_filters_that_no_result_passes(tmp_path):
    account = equipoise.account(svt_job(tmp_path, executed=("learn",)), given=NEW_SVT, rounds=3)
    assert account.void == ("no executor takes the tasks of the filters: train",)
    assert "no filter protects what is sent for learn" in account.beside


def test_kinds_of_data_that_pass_as_they_are(tmp_path):
    def account(kinds, *more):
        file = svt_job(tmp_path, {"data_kinds": kinds})
        return equipoise.account(file, given=[*NEW_SVT, *more], rounds=3)

    assert "passes as it is" in account(["COLLECTION"]).void[0]
    assert "give --given data_kind=WEIGHT_DIFF" in account(["WEIGHTS"]).asks[0]
    assert "passes as it is" in account(["WEIGHTS"], "data_kind=WEIGHT_DIFF").void[0]
    for silent in (account(["WEIGHTS"], "data_kind=WEIGHTS"), account(["WEIGHTS", "WEIGHT_DIFF"])):
        assert silent.void == ()
        assert silent.spends


def test_svt_as_its_users_measured_it():
    """0.1 for the selection and 0.1 for each of 703,329 values: 70,333 a round, as SVTPrivacy
    reports it for a network with seven million parameters; by its proof a little more, and with
    delta = 1e-5 by zCDP less. Rounds come from the server's file."""
    account = equipoise.account(HERE / "nvflare-svt/config_fed_client.json", given=SVT)
    assert "epsilon = 70333 at delta = 0 for one message" in account.claims[0]
    assert "at delta = 0 the proof gives 211002 under replace-one" in " ".join(account.beside)
    spent = spent_of(account)
    rho = 3 * (703_329 * 0.1**2 + 0.9999283171**2) / 2
    classic = rho + 2 * math.sqrt(rho * math.log(1 / DELTA))
    assert rho < spent["replace-one"].epsilon < classic
    assert spent["zero-out"].epsilon < 0.3 * spent["replace-one"].epsilon
    assert any("num_batches_tracked" in line for line in account.beside)


def test_svt_accepts_more_than_it_sends():
    """e_t + (d / c) e_q for the selection, where its own report has e_t + e_q."""
    account = equipoise.account(
        HERE / "nvflare-svt/config_fed_client.json", given=["version=2.9", "parameters=1000"]
    )
    release, selection = account.parts["replace-one"]
    threshold = 0.1 / (1 + 200 ** (2 / 3))
    assert selection.epsilon == pytest.approx(threshold + 10 * (0.1 - threshold))
    assert (release.rounds, release.epsilon) == (300, pytest.approx(0.1))
    assert account.parts["zero-out"][0].epsilon == pytest.approx(0.05)


def test_svt_before_2_8_bounds_nothing():
    file = HERE / "nvflare-svt/config_fed_client.json"
    account = equipoise.account(file, given=["version=2.7.2"])
    assert account.spends == ()
    assert "nothing bounds" in account.void[0]
    with pytest.raises(EquipoiseError, match=r"known here from nvflare 2\.3 to 2\.9"):
        equipoise.account(file, given=["version=3.0", "parameters=10"])


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("nvflare-percentile", "PercentilePrivacy is no differential privacy"),
        ("nvflare-gaussian", "in proportion to the update that it hides"),
    ],
)
def test_filters_without_a_guarantee(name, why):
    account = equipoise.account(HERE / name / "config_fed_client.json")
    assert account.spends == ()
    assert any(why in reason for reason in account.void)


def test_a_model_that_passes_no_filter(tmp_path):
    file = tmp_path / "config_fed_client.json"
    text = (HERE / "nvflare-svt/config_fed_client.json").read_text()
    file.write_text(text.replace('"tasks": ["train"],', '"tasks": ["train", "submit_model"],', 1))
    account = equipoise.account(file, rounds=2, given=SVT)
    assert account.void == ("the task submit_model sends a model, and no filter protects it",)


# -------------------------------------------------------------------------------------------------
# Opacus, dp-accounting, numbers


def test_opacus_says_what_opacus_says():
    """The claim is that of Opacus' own accountants, to 1e-6; none of them can see replace-one."""
    from opacus.accountants import GaussianAccountant, RDPAccountant

    for name, kind in (("mnist", RDPAccountant), ("limit", GaussianAccountant)):
        file = HERE / f"opacus-{name}.json"
        with pytest.warns() if name == "limit" else nothing():
            theirs = kind()
        theirs.history = [tuple(entry) for entry in json.loads(file.read_text())["history"]]
        account = equipoise.account(file)
        claimed = theirs.get_epsilon(DELTA)
        assert account.claims[0].startswith(f"epsilon = {claimed:.4g}:")
        assert bool(account.verdicts) == (name == "limit")


def nothing():
    from contextlib import nullcontext

    return nullcontext()


def test_a_claim_that_is_too_small_is_called_so():
    """Opacus' Gaussian accountant takes a limit, and its own warning says that it may claim too
    little: 2.24, where 2.27 is spent at least."""
    (verdict,) = equipoise.account(HERE / "opacus-limit.json").verdicts
    assert verdict == ("epsilon = 2.242 is claimed, and at least 2.273 is spent under add-remove")


def test_all_of_a_history_counts(tmp_path):
    account = spent_of(equipoise.account(HERE / "opacus-schedule.json"))["add-remove"]
    parts = [Gaussian(2000, 1.3, 0.004), Gaussian(500, 1.1, 0.004)]
    assert account.epsilon == pytest.approx(spend(parts, "add-remove", DELTA).epsilon, rel=1e-9)
    quiet = tmp_path / "state.json"
    quiet.write_text('{"history": [[1.0, 0.1, 5], [0, 0.1, 2]], "mechanism": "rdp"}')
    assert "2 steps have a noise multiplier of 0" in equipoise.account(quiet).void[0]


def test_events_as_dp_accounting_writes_them(tmp_path):
    from dp_accounting import (
        ComposedDpEvent,
        GaussianDpEvent,
        LaplaceDpEvent,
        PoissonSampledDpEvent,
        SelfComposedDpEvent,
    )
    from dp_accounting.dp_event import DiscreteLaplaceDpEvent

    step = PoissonSampledDpEvent(0.02, SelfComposedDpEvent(GaussianDpEvent(3.0), 4))
    event = ComposedDpEvent([SelfComposedDpEvent(step, 50), GaussianDpEvent(9.0)])
    file = tmp_path / "event.json"
    file.write_text(json.dumps(event.to_named_tuple()))
    spent = spent_of(equipoise.account(file))
    parts = [Gaussian(50, 1.5, 0.02), Gaussian(1, 9.0)]
    for neighbours in ("add-remove", "replace-one"):
        known = spend(parts, neighbours, DELTA)
        assert spent[neighbours].epsilon == pytest.approx(known.epsilon, rel=1e-6)
    pure = ComposedDpEvent([LaplaceDpEvent(4.0), DiscreteLaplaceDpEvent(0.1, 3)])
    file.write_text(json.dumps(pure.to_named_tuple()))
    spent = spent_of(equipoise.account(file, delta=1e-15))
    assert spent["add-remove"].epsilon == pytest.approx(0.55)
    assert spent["replace-one"].epsilon == pytest.approx(1.1)


def test_events_of_the_documentation():
    listed = spent_of(equipoise.account(HERE / "events-list.json"))["add-remove"]
    known = Job(10_000, sigma=4.0, rate=0.01, unit="record", neighbours="add-remove").account()
    assert listed.epsilon == known.epsilon
    objects = spent_of(equipoise.account(HERE / "events-objects.json"))
    assert objects["add-remove"].mu == pytest.approx(math.sqrt(0.25 + 0.05))
    account = equipoise.account(HERE / "events-not-private.json")
    assert "NonPrivateDpEvent" in account.void[0]
    assert account.spends == ()


def test_phases_in_a_file_and_in_words():
    account = equipoise.account(HERE / "phases.toml", rows=[4])
    words = ["rounds=900 sigma=2.2 clip=2 rate=0.01", "rounds=10, sigma=30, runs=2"]
    same = equipoise.account(phases=words, unit="record", delta=1e-6, rows=[4])
    assert account == same
    assert account.delta == 1e-6
    assert spent_of(account)["add-remove"].several[0].units == 4
    two = equipoise.account(phases=[{"rounds": 8, "sigma": 20.0}], runs=2)
    assert spent_of(two)["replace-one"].mu == pytest.approx(2 * 4 / 20)
    assert type(two).model_validate_json(two.model_dump_json()) == two


def test_every_engine_has_three_files():
    """Written as its documentation shows them."""
    engines = [equipoise.account(file, given=given).engine for file, given in FILES]
    assert all(engines.count(engine) >= 3 for engine in {*engines} - {"numbers"})
    assert len({*engines}) == len(ENGINES)


FILES = [
    *((HERE / f"flower-{name}", []) for name in ("local", "central", "adaptive")),
    *(
        (HERE / f"nvflare-{name}" / "config_fed_client.json", [])
        for name in ("svt", "percentile", "gaussian")
    ),
    *((HERE / f"opacus-{name}.json", []) for name in ("mnist", "limit", "schedule")),
    *((HERE / f"events-{name}.json", []) for name in ("list", "objects", "not-private")),
    (HERE / "phases.toml", []),
]


# -------------------------------------------------------------------------------------------------
# bad files, and the command


def nested_counts(depth):
    """10^299 times itself, so often that no float holds it."""
    event = '{"class_name": "GaussianDpEvent", "noise_multiplier": 1}'
    for _ in range(depth):
        many = '{"class_name": "SelfComposedDpEvent", "count": 1e299, "event": '
        event = many + event + "}"
    return event


def test_names_from_files_cannot_talk_to_the_terminal(tmp_path):
    file = tmp_path / "config_fed_client.json"
    text = (HERE / "nvflare-percentile/config_fed_client.json").read_text()
    file.write_text(text.replace("PercentilePrivacy", "X\\u001b[31m"))
    account = equipoise.account(file)
    assert "\x1b" not in account.model_dump_json() + " ".join(account.void)
    assert any(reason.startswith("X\\x1b[31m is not known here") for reason in account.void)


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("a.json", "[" * 100_000, "is not valid JSON"),
        ("a.json", "[" * 500 + "]" * 500, "is nested more than 64 deep"),
        ("a.json", "{", "line 1 is not valid JSON"),
        ("a.json", '{"history": [[NaN, 0.1, 1]], "mechanism": "rdp"}', "NaN is no number"),
        ("a.json", '{"history": [], "history": [], "mechanism": "rdp"}', "'history' is said twice"),
        ("a.json", '{"history": [], "mechanism": "rdp"}', "history is empty"),
        ("a.json", '{"history": [[1, 2, 3]], "mechanism": "rdp"}', "a rate in (0, 1]"),
        ("a.json", '{"history": [[1, 0.1, true]], "mechanism": "rdp"}', "not [noise multiplier"),
        ("a.json", '{"history": [[1, 0.1, 1e999]], "mechanism": "rdp"}', "not [noise multiplier"),
        ("a.json", '{"history": [[1, 0.1, 3]], "mechanism": "new"}', "mechanism='new' is none of"),
        ("a.json", '{"history": [[1, 0.1, 3]], "mechanism": "rdp", "x": 1}', "which is not known"),
        ("a.json", '{"class_name": "system", "module_name": "os"}', "system of os is not counted"),
        (
            "a.json",
            '["dp_accounting.mine", "GaussianDpEvent", 1]',
            "GaussianDpEvent of dp_accounting",
        ),
        ("a.json", '["dp_accounting.dp_event", "ZCDpEvent", 1, 0]', "ZCDpEvent of dp_accounting"),
        ("a.json", '["dp_accounting.dp_event", "GaussianDpEvent"]', "has 0 fields, not 1"),
        ("a.json", '{"class_name": ["GaussianDpEvent"]}', "an event has no class_name"),
        ("a.json", '{"class_name": "GaussianDpEvent", "sigma": 1}', "has the fields sigma"),
        ("a.json", '{"class_name": "GaussianDpEvent", "noise_multiplier": -1}', "no number >= 0"),
        ("a.json", '{"executors": [], "format_version": 3}', "format_version=3"),
        ("a.json", '{"executors": [], "format_version": 2, "task_result_filters": {}}', "a list"),
        ("a.json", '{"class_name": "GaussianDpEvent", "noise_multiplier": 1e-200}', "noise=1e-200"),
        (
            "a.json",
            '{"class_name": "LaplaceDpEvent", "noise_multiplier": 1e-200}',
            "epsilon=2e+200",
        ),
        ("a.json", nested_counts(20), "rounds are not a whole number from 1 to 1e15"),
        ("a.json", '{"weights": 1}', "is nothing that can be read"),
        ("a.json", "3", "is nothing that can be read"),
        ("a.toml", "= 3", "is not valid TOML"),
        ("a.toml", "[[phase]]\nrounds = 3", "a phase has no sigma"),
        ("a.toml", "[[phase]]\nrounds = 3.5\nsigma = 1", "rounds=3.5 of a phase is not a whole"),
        ("a.toml", "[[phase]]\nrounds = 3\nsigma = 1\nsteps = 2", "'steps', which is not known"),
        ("a.toml", "[[phase]]\nrounds = 3\nsigma = 1\nrate = 0.1", "samples of records hide no"),
        (
            "a.toml",
            "[tool.flwr.app.components]\nserverapp = '../../x:app'",
            "not the name of a mod",
        ),
        ("a.toml", "[tool.flwr.app.components]\nserverapp = 'x.y:app'", "there is no file"),
        ("a.py", "def f(:", "is not Python that can be read"),
        ("a.py", "x = " + "(" * 5000 + ")" * 5000, "is not Python that can be read"),
        ("a.json", b"\x80\x04\x95", "a pickled state"),
        ("a.json", b" " * 4_000_001, "is larger than 4,000,000 bytes"),
    ],
)
def test_bad_files_are_one_sentence(capsys, tmp_path, name, content, sentence):
    file = tmp_path / name
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    code, out, err = told(capsys, str(file))
    assert (code, out) == (2, "")
    assert sentence in err.replace("\n", " ")
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("nowhere.json", "there is no file nowhere.json"),
        (f"{HERE}/opacus-mnist.json --sigma 3", "sigma=3 is for one kind of release in numbers"),
        (f"{HERE}/opacus-mnist.json --compare", "--compare is for one kind of release"),
        (f"{HERE}/opacus-mnist.json --unit client", "unit=client is for one kind of release"),
        (f"{HERE}/opacus-mnist.json --rounds 3", "given=rounds: nothing in"),
        (f"{HERE}/opacus-mnist.json --neighbours zero-out", "no meaning for unit=record"),
        (f"{HERE}/flower-central --given largest_shar=1", "given=largest_shar: nothing in"),
        (f"{HERE}/flower-central --given largest_share=2", "largest_share=2.0 is not in (0, 1]"),
        (f"{HERE}/flower-central --given largest_share=x", "largest_share=x is not a number"),
        (f"{HERE}/flower-central --given largest_share", "is not one more fact"),
        (f"{HERE}/flower-local --runs 0", "runs=0 is not a number of runs"),
        (f"{HERE}/flower-local --rows 0", "give whole numbers >= 1"),
        (f"{HERE}/flower-local --delta 2", "delta=2.0 is not in (0, 1)"),
        ("--phase rounds=3", "a phase has no sigma"),
        ("--phase rounds=3,sigma=x", "has no number"),
        ("--phase rounds=3,sigma", "is not one more name=value"),
        ("--rounds 3 --epsilon 1 --runs 2", "runs=2 needs sigma"),
        ("--rounds 3 --sigma 1 --given x=1", "is a fact about a file"),
    ],
)
def test_mistakes_are_one_sentence(capsys, line, sentence):
    code, out, err = told(capsys, line)
    assert (code, out) == (2, "")
    assert sentence in err.replace("\n", " ")


def test_the_command_says_what_it_read(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    code, out, _ = told(capsys, f"{HERE}/flower-local --rows 4 --neighbours zero-out")
    assert code == 0
    assert out.startswith("zero-out: WEAK: epsilon=10.39")
    assert "claims      epsilon = 1 at delta = 1e-05 for one message" in out
    assert "released    100 times, noise = 4.845 C" in out
    assert "zero-out, 4 units together: epsilon = " in out
    assert "replace-one, 4" not in out
    code, out, err = told(capsys, f"{HERE}/nvflare-svt/config_fed_client.json")
    assert code == 2
    assert "NVFlare; delta = 1e-05; unit: client" in out
    assert "give --given version=2.8" in err
    code, out, _ = told(capsys, f"{HERE}/nvflare-percentile/config_fed_client.json")
    assert code == 0
    assert "NO DP       no filter of task results adds noise" in out
    _, out, _ = told(capsys, f"{HERE}/opacus-limit.json")
    assert "FALSE       epsilon = 2.242 is claimed" in out
    code, out, _ = told(capsys, f"{HERE}/opacus-mnist.json --json")
    document = json.loads(out)
    assert code == 0
    assert [spent["neighbours"] for spent in document["spends"]] == ["replace-one", "add-remove"]
    assert document["void"] == []


def test_one_kind_of_release_with_rows_and_runs(capsys):
    _, out, _ = told(capsys, "--sigma 25.6 --rounds 50 --runs 2 --rows 4 10 --json")
    replaced, _ = json.loads(out)["accounts"]
    assert replaced["epsilon"] == pytest.approx(3.297, abs=5e-4)
    assert [more["units"] for more in replaced["several"]] == [4, 10]
    assert replaced["several"][0]["epsilon"] == pytest.approx(
        epsilon_spent(25.6, 100, 8.0, DELTA), rel=1e-9
    )
