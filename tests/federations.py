"""Federations in one process, for tests: real silos and a real lead, with bytes passed by hand."""

from functools import cache

from equipoise import Settings
from equipoise.charging import cost_of
from equipoise.federation import silo as silo_module
from equipoise.federation.lead import lead, propose
from equipoise.federation.part import lead_part, silo_part
from equipoise.federation.silo import Silo, prepared_for
from equipoise.fleets.keys import PrivateKeys
from equipoise.privacy.ledger import Ledger
from equipoise.privacy.ledger_costs import Cap
from equipoise.privacy.noise import SimulatedNoise

SEED = 7


@cache
def keys_of(number):
    return tuple(PrivateKeys.new(f"clinic-{i}") for i in range(number))


def public_of(number):
    return [keys.public() for keys in keys_of(number)]


def proposed(sizes=None, **settings):
    """An agreement of so many silos, whose keys are `keys_of`."""
    return propose(Settings.of(**settings), public_of(settings.get("clients") or 3), sizes)


class Parties:
    """The silos of an agreement, each with its own records and ledger; a link for the lead.

    With `monkeypatch` their noise is that of a simulation, which nothing else can make it.
    """

    def __init__(self, agreement, folder, monkeypatch=None, data=None, *, admit=True, **files):
        self.agreement, self.folder, self.monkeypatch = agreement, folder, monkeypatch
        self.data, self.files = data or [None] * len(agreement.silos), files
        self.answers, self.admit = [], admit
        folder.mkdir(exist_ok=True)
        self.silos = [self.silo(i) for i in range(len(agreement.silos))]

    def silo(self, i):
        """One that begins, or that goes on from what its ledger holds."""
        key = keys_of(len(self.agreement.silos))[i].mask
        part = silo_part(self.agreement, i, self.data[i], **self.files)
        if self.monkeypatch:
            noise = SimulatedNoise(SEED, first_client=i)
            self.monkeypatch.setattr(silo_module, "SecretNoise", lambda: noise)
        ledger = Ledger(self.folder / f"{i}.db")
        ready = prepared_for(self.agreement, i, part)
        silo = Silo(self.agreement, i, ready, ledger, key)
        if self.admit:
            unit, delta = self.agreement.run.unit, self.agreement.run.delta
            ledger.admit(self.agreement.name, cost_of(ready), {unit: Cap(50.0, 2 * delta)})
        return silo

    def ask(self, question):
        self.answers.append([silo.answer(question) for silo in self.silos])
        return self.answers[-1]

    def train(self, **files):
        return lead(self.agreement, lead_part(self.agreement, **files), self)
