"""Clip and release: the norm bound in every float type, noise on every coordinate, nothing that is
not finite."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise import epsilon_spent, noise_sigma, plan, train
from equipoise.errors import InvalidValue
from equipoise.privacy import Promise, SecretNoise
from equipoise.privacy.clip import ClippedRelease, clip
from equipoise.privacy.mechanisms.catalogue import MECHANISMS, mechanism
from equipoise.privacy.mechanisms.client_message import ClientMessage
from equipoise.privacy.mechanisms.mechanism import Words
from equipoise.privacy.statement import statement
from equipoise.reports.reading import read_study
from equipoise.settings import Settings
from equipoise.sweeps.grid import grid
from equipoise.sweeps.stacks import stacks_of
from problems import NearestWhole, swept

DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


class Given(NearestWhole):
    """A noise source that says what it is told to."""

    name = "given"

    def __init__(self, values):
        self.values = values

    def normals(self, round, shape):
        return np.broadcast_to(self.values, shape)


@settings(max_examples=400)
@given(
    st.sampled_from(DTYPES),
    st.lists(st.floats(-1, 1, width=32), min_size=1, max_size=50),
    st.floats(-330, 308),
    st.floats(-20, 20),
)
def test_clip_bounds_the_norm(dtype, values, exponent, clip_exponent):
    """Zero, huge and denormal vectors included; the direction survives wherever the dtype can hold
    the vector."""
    u = (torch.tensor(values, dtype=torch.float64) * 10.0**exponent).to(dtype)
    u = torch.where(u.isfinite(), u, torch.tensor(torch.finfo(dtype).max, dtype=dtype) * u.sign())
    C = 10.0**clip_exponent
    clipped = clip(u, C).double()
    length = np.sqrt((clipped.numpy().astype(np.longdouble) ** 2).sum())
    assert length <= C, "not even by rounding: the noise is made for C"
    with np.errstate(over="ignore"):
        before = float(
            np.linalg.norm(u.double().numpy() / (u.double().abs().max().item() or 1))
            * (u.double().abs().max().item())
        )
    if before <= C * (1 - 2**-18):
        assert torch.equal(clipped, u.double())
    else:
        assert length >= C * (1 - 2**-18)


@pytest.mark.parametrize("dtype", DTYPES)
def test_thresholds_that_float32_can_hardly_hold(dtype):
    """Beside an ordinary one, too: what is rounded up there would be longer than C."""
    tiny = torch.tensor([0.3, 0.7, 1.6, 2.5, 4.9, 50.5, 1000.3], dtype=torch.float64) * 2.0**-149
    C = torch.cat([torch.ones(1, dtype=torch.float64), tiny]).unsqueeze(-1)
    for d, value in itertools.product((1, 8, 1000), (1, 3, 900)):
        u = torch.full((len(C), d), value, dtype=dtype)
        lengths = clip(u, C).double().norm(dim=-1, keepdim=True)
        assert (lengths <= C).all()
        assert lengths[0] > 0.99
        for c in tiny.tolist():
            assert clip(u[0], c).double().norm() <= c


@pytest.mark.parametrize("scale", [1.0, 1e30])
@pytest.mark.parametrize(("dtype", "d"), [(torch.float32, 1024), (torch.float64, 2**14)])
def test_a_clip_leaves_the_room_that_rounding_may_take(dtype, d, scale):
    """(8 + log2 d) eps of the type that is sent, for products and a sum by halves, and d eps of
    float64 for a norm summed one by one; nearly all of it is left of an ordinary vector."""
    u = scale * torch.linspace(-1, 1, d, dtype=dtype)
    length = math.sqrt(math.fsum(v * v for v in clip(u, 0.7).double().tolist()))
    units = 8 + math.log2(d) + d * 2.0**-52 / torch.finfo(dtype).eps
    assert (1 - length / 0.7) / torch.finfo(dtype).eps == pytest.approx(units, rel=0.05, abs=1)


@pytest.mark.parametrize("dtype", DTYPES)
def test_clip_at_the_ends_of_every_type(dtype):
    info = torch.finfo(dtype)
    for value in (0.0, info.tiny, info.smallest_normal / 2, info.max, -info.max):
        u = torch.full((3, 1000), value, dtype=dtype)
        norms = np.sqrt((clip(u, 0.7).double().numpy().astype(np.longdouble) ** 2).sum(-1))
        assert (norms <= 0.7).all()
        if abs(value) == info.max:
            assert (norms >= 0.7 * (1 - 2**-18)).all()
    assert clip(torch.zeros(5, dtype=dtype), 1.0).abs().sum() == 0


def test_clip_with_one_threshold_per_run():
    u = torch.randn(3, 4, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    C = torch.tensor([0.1, 1.0, math.inf], dtype=torch.float64).reshape(3, 1, 1)
    together = clip(u, C)
    for run in range(3):
        torch.testing.assert_close(together[run], clip(u[run], float(C[run])), rtol=1e-15, atol=0)


def test_antipodal_updates_attain_the_sensitivity():
    """Two clients' messages can differ by 2C, and by C from an absent one: what noise must hide."""
    u = torch.randn(40, dtype=torch.float64, generator=torch.Generator().manual_seed(1)) * 100
    C = 0.3
    distance = float((clip(u, C) - clip(-u, C)).norm())
    assert distance == pytest.approx(Promise(2.0, 1e-5, neighbours="replace-one").sensitivity(C))
    assert float(clip(u, C).norm()) == pytest.approx(
        Promise(2.0, 1e-5, neighbours="zero-out").sensitivity(C)
    )


def test_the_noise_is_added_after_the_clip():
    u = torch.arange(1.0, 7.0, dtype=torch.float64).reshape(2, 3)
    normals = np.array([[5.0, -6.0, 7.0], [8.0, 9.0, -1.0]])
    release = ClippedRelease(clip=0.5, sigma=2.0).release(u, Given(normals), 1)
    torch.testing.assert_close(
        release, clip(u, 0.5) + 2.0 * torch.tensor(normals), rtol=0, atol=1e-8
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_coordinate_of_every_round_is_noised(dtype):
    """Zero updates leave as pure noise: the right scale for every coordinate of every client,
    nothing used twice."""
    mechanism, source = ClippedRelease(1.0, 3.0), SecretNoise()
    releases = torch.stack(
        [mechanism.release(torch.zeros(5, 17, dtype=dtype), source, k) for k in range(2000)]
    )
    spread = (releases / 3.0).pow(2).mean(0)
    assert (spread - 1).abs().max() < 8 * math.sqrt(
        2 / 2000
    )  # 85 numbers, chi-square: fails once in 10^12
    assert abs(float((releases / 3.0).pow(2).mean()) - 1) < 8 * math.sqrt(2 / releases.numel())
    assert len(releases.flatten(0, 1).unique(dim=0)) == 2000 * 5, "no noise is used twice"
    neighbours = (releases[1:] * releases[:-1]).mean() / 9
    assert abs(float(neighbours)) < 8 / math.sqrt(releases[1:].numel())


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_an_update_that_is_not_finite_becomes_zero_before_the_noise(bad):
    u = torch.ones(3, 4, dtype=torch.float64)
    u[1, 2] = bad
    normals = np.full((3, 4), 0.25)
    release = ClippedRelease(10.0, 2.0).release(u, Given(normals), 1)
    assert torch.equal(release[1], torch.full((4,), 0.5, dtype=torch.float64))
    assert torch.equal(release[0], torch.full((4,), 1.5, dtype=torch.float64))


def test_no_noise_and_no_clip_is_the_identity():
    u = torch.randn(3, 4, dtype=torch.float64)
    assert torch.equal(ClippedRelease(math.inf, 0.0).release(u, SecretNoise(), 1), u)


def test_noise_without_clip_is_refused():
    with pytest.raises(InvalidValue, match="clip=inf with noise"):
        ClippedRelease(math.inf, 1.0)


@pytest.mark.parametrize("tiny", [1e-9, 1e-47, 1e-200])
def test_tiny_noise_is_still_noise(tiny):
    """Whatever torch's default type is: a sigma that float32 cannot hold must not vanish."""
    release = ClippedRelease(tiny, tiny).release(
        torch.zeros(3, 4, dtype=torch.float64), SecretNoise(), 1
    )
    assert (release != 0).all()
    assert ClippedRelease(1e200, 1e200).clip == 1e200


@pytest.mark.parametrize("d", [5_000, 44_318, 1_000_000])
def test_clip_bounds_long_vectors_of_equal_entries(d):
    """The sum of many equal squares is where rounding errors of a norm add up; fsum makes none."""
    for value in (0.1, 0.3, 1 / 3):
        clipped = clip(torch.full((d,), value, dtype=torch.float64), 1.0)
        assert math.fsum(x * x for x in clipped.tolist()) <= 1.0


# ---- a mechanism of one's own: one class, and one line in the catalogue ----


class Doubled(ClientMessage):
    """A client's message under twice the noise that the budget asks for."""

    rule = "doubled"
    words = Words(
        released="a model update a round, clipped, plus twice the noise that is needed",
        noised="one message with doubled noise",
    )

    def sigma(self, run, facts, releases):
        return 2 * super().sigma(run, facts, releases)


class Coarse(ClientMessage):
    """A client's message, rounded to a grid once it is noised: a release of its own kind."""

    rule = "coarse"

    def releaser(self, clip, sigma, lattice, share=1.0):
        return OnGrid(ClippedRelease(clip, sigma, lattice))


class OnGrid:
    def __init__(self, inner, steps=64):
        self.inner, self.steps, self.lattice = inner, steps, inner.lattice

    def release(self, update, noise, round):
        return (self.inner.release(update, noise, round) * self.steps).round() / self.steps


RUN = {"task": "breast-cancer", "clients": 6, "iterations": 12, "local_steps": 4, "clip": 1.0}


@pytest.fixture
def own_rules(monkeypatch):
    for own in (Doubled(), Coarse()):
        monkeypatch.setitem(MECHANISMS, (own.unit, own.noise_in, own.rule), own)


def test_a_new_mechanism_trains_accounts_and_speaks_for_itself(own_rules, leaves):
    exact = train(**RUN, epsilon=2, simulate_noise_seed=0)
    doubled = train(**RUN, epsilon=2, simulate_noise_seed=0, noise_rule="doubled")
    (event,) = doubled.account.events
    assert event.sigma == 2 * exact.account.sigma == doubled.account.sigma
    assert (event.unit, event.count, event.sensitivity) == ("client", 3, 2.0)
    assert doubled.epsilon_spent == epsilon_spent(event.sigma, 3, 2.0, 1e-5) < 1.1
    releases, updates = leaves
    noise = [
        [release - clip(update, 1.0) for release, update in zip(*half, strict=True)]
        for half in ((releases[:3], updates[:3]), (releases[3:], updates[3:]))
    ]
    torch.testing.assert_close(torch.stack(noise[1]), 2 * torch.stack(noise[0]), rtol=0, atol=1e-6)

    private = train(**RUN, epsilon=2, noise_rule="doubled")
    assert private.private
    text = statement(private)
    assert "plus twice the noise that is needed" in text
    assert "| noise rule | doubled |" in text
    assert "one message with doubled noise" in text
    assert "one message with doubled noise" in str(private)
    assert "noise rule: doubled" in str(private)
    assert "--noise-rule doubled" in private.repeat


def test_a_new_mechanism_is_swept_as_itself(own_rules, tmp_path):
    """Rules that only choose sigma share a computation; another kind of release never does."""
    rules = ["exact", "lemma1", "doubled", "coarse"]
    variants = [{"noise_rule": rule, **({"v": 1.0} if rule == "lemma1" else {})} for rule in rules]
    document = {**RUN, "name": "own", "epsilon": 2.0, "seeds": [0, 1], "variant": variants}
    cells = grid(document).cells
    stacks = [{run.noise_rule for row in stack for run in row} for stack in stacks_of(cells)]
    assert sorted(stacks, key=len) == [{"coarse"}, {"exact", "lemma1", "doubled"}]
    results = swept(document, tmp_path / "own.sqlite")
    assert len(results) == 8
    meanings = {case.convention: case.meaning for case in read_study(tmp_path / "own.sqlite").cases}
    assert meanings["lemma1 v=1.0"].startswith("ε is a label: noise rule lemma1 v=1.0")
    assert meanings["doubled"].startswith("ε is exact or an upper bound")
    for result, loss in results:
        by_itself = train(Settings.of(**result.run.model_dump()))
        assert result.account == by_itself.account
        assert loss == pytest.approx(by_itself.curve[-1].test_loss, rel=1e-9)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"noise_rule": "lemma2"}, r"noise_rule='lemma2' is not one of exact, lemma1, nbafl$"),
        (
            {"noise_rule": "lemma1", "v": 1.0, "unit": "record"},
            "noise_rule=lemma1 with unit=record: it belongs to unit=client; leave it out",
        ),
        (
            {"noise_in": "gradient"},
            "noise_in=gradient with unit=client: it belongs to unit=record; leave it out, or "
            "choose message",
        ),
    ],
)
def test_rules_and_places_that_do_not_exist_are_refused(settings, sentence):
    with pytest.raises(InvalidValue, match=sentence):
        Settings.of(**RUN, epsilon=2, **settings)


def test_a_rule_without_noise_at_that_place_says_which_places_it_has(monkeypatch):
    class Elsewhere(ClientMessage):
        unit, rule = "record", "elsewhere"

    own = Elsewhere()
    monkeypatch.setitem(MECHANISMS, (own.unit, own.noise_in, own.rule), own)
    assert mechanism("record", "message", "elsewhere") is own
    with pytest.raises(InvalidValue, match="this rule has no noise there; leave it out, or choose"):
        mechanism("record", "gradient", "elsewhere")


class Rounded(ClientMessage):
    """Rounded to a grid whose step is the object's own."""

    def __init__(self, rule, steps):
        self.rule, self.steps = rule, steps

    def releaser(self, clip, sigma, lattice, share=1.0):
        return OnGrid(ClippedRelease(clip, sigma, lattice), self.steps)


def test_mechanisms_of_one_class_are_not_taken_for_each_other(monkeypatch, tmp_path):
    for own in (Rounded("fine", 2**20), Rounded("rough", 2)):
        monkeypatch.setitem(MECHANISMS, (own.unit, own.noise_in, own.rule), own)
    document = {**RUN, "name": "own", "epsilon": 2.0, "noise_rule": ["fine", "rough"], "seeds": [0]}
    results = swept(document, tmp_path / "own.sqlite")
    assert len(results) == 2
    for result, loss in results:
        by_itself = train(Settings.of(**result.run.model_dump()))
        assert loss == pytest.approx(by_itself.curve[-1].test_loss, rel=1e-9)


class Elsewhere(ClientMessage):
    """Another place for the noise of a client, with three times the noise."""

    noise_in = "elsewhere"

    def sigma(self, run, facts, releases):
        return 3 * super().sigma(run, facts, releases)


def test_a_new_place_is_planned_as_itself(monkeypatch):
    own = Elsewhere()
    monkeypatch.setitem(MECHANISMS, (own.unit, own.noise_in, own.rule), own)
    question = {"task": "quadratic", "epsilon": 20, "clip": 0.3, "iterations": 4}
    plain, other = plan(**question), plan(**question, noise_in="elsewhere")
    assert plain.settings.noise_in == "message"
    assert other.settings.noise_in == "elsewhere"
    result = train(other, anyway=True)
    assert result.account.sigma == other.chosen.sigma
    wide = noise_sigma(20, 1e-5, other.chosen.rounds, 0.6)
    assert other.chosen.sigma == pytest.approx(3 * wide)
    assert other.predicted.excess_loss > plain.predicted.excess_loss


@pytest.mark.parametrize(("key", "own"), MECHANISMS.items())
def test_a_mechanism_is_listed_as_what_it_is(key, own):
    assert key == (own.unit, own.noise_in, own.rule)
