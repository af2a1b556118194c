"""The sentences of statements, as data: by unit, neighbours and trust."""

from equipoise.privacy.promise import Neighbours, Trust, Unit
from equipoise.settings import Returns

UNIT: dict[Unit, str] = {
    "client": "everything that one client holds",
    "record": "one record of one client, a row of its data as it was read; the other records are "
    "assumed known",
    "person": "one person at one client, with all records that it holds of that person; those of "
    "all others are assumed known",
}
WHOSE: dict[Unit, str] = {
    "client": "one client",
    "record": "one record of one client",
    "person": "one person at one client",
}
NEIGHBOURS: dict[Neighbours, str] = {
    "replace-one": "the data of one {unit}, and any other data in its place",
    "zero-out": "the data of one {unit}, and a {unit} whose messages are zero, noised like any "
    "other",
    "add-remove": "the data of a client with one {unit}, and without it, all sampling rates and "
    "divisors unchanged",
}
WHETHER: dict[Neighbours, str] = {
    "replace-one": "the data of {whose} are particular ones rather than particular others",
    "zero-out": "{whose} took part with particular data rather than sending zeros, noised like any "
    "other message",
    "add-remove": "particular data of {whose} were among the records rather than left out",
}
"""What an attacker decides; `whose` is of WHOSE."""
REACH: dict[Unit, str] = {
    "client": "It protects everything that one client, such as a hospital, holds, and so each "
    "person whose records are at that client alone; one with records at several is protected less.",
    "record": "It protects one record, a row of a table. Someone with several records is "
    "protected less, and what a client's records have in common is not hidden at all.",
    "person": "It protects one person, with all records that one client holds of that person. "
    "Somebody with records at several clients is protected less, and what a client's persons have "
    "in common is not hidden at all.",
}
BEYOND: dict[Neighbours, str] = {
    "zero-out": " Whether somebody's records are particular ones rather than others is protected "
    "less: for that, mu counts twice.",
}
"""What is to be said besides of the neighbours."""
ALIKE: dict[Unit, dict[Neighbours, str]] = {
    "client": {
        "replace-one": "One hospital took part with the records of its patients; or it took part "
        "with entirely different records.",
        "zero-out": "One hospital took part with the records of its patients; or it sent nothing "
        "but noise.",
    },
    "record": {
        "replace-one": "A patient's row says that she is ill; or that row says that she is well, "
        "or is about somebody else.",
        "add-remove": "A patient's row is in the table of her hospital; or it is not.",
    },
    "person": {
        "replace-one": "All rows that a hospital holds of one patient are hers; or others stand in "
        "their place.",
        "add-remove": "A hospital's table holds all rows of one patient; or none of them.",
    },
}
"""Two situations that can hardly be told apart."""
UNLIKE: dict[Unit, str] = {
    "client": "Smoking makes patients ill; or it does not. What is true of most clients' records "
    "is what a model is for: it may be learnt, and be used of somebody whose data were never "
    "there. Nor is it hidden who the clients are.",
    "record": "Half of a hospital's patients are ill; or few are. What the records of one client "
    "have in common is not hidden, nor what is true of most clients: it may be learnt, and be used "
    "of somebody whose record was never there. Nor is it hidden how many records a client has.",
    "person": "Half of a hospital's patients are ill; or few are. What the persons of one client "
    "have in common is not hidden, nor what is true of most clients: it may be learnt, and be used "
    "of somebody who was never there. Nor is it hidden how many persons a client has.",
}
"""Two situations that may well be told apart."""
TRUST: dict[Trust, str] = {
    "local": "every message of every client, and so every model that follows from them",
    "secure-aggregation": "the sum of the clients' messages of each round, and so every model, and "
    "all that colluding clients know; no other message by itself",
}
SEEING: dict[Trust, str] = {
    "local": "every message of every client in this run",
    "secure-aggregation": "the sum of all clients' messages in each round of this run{others}",
}
COLLUDING = {0: "", 1: " and all that one colluding client knows"}
MORE_COLLUDING = " and all that {number} colluding clients know"
LAW: dict[Trust, str] = {
    "local": "a Gaussian of standard deviation sigma, rounded to the lattice and sampled exactly: "
    "what leaves is post-processing of exact Gaussian noise",
    "secure-aggregation": "discrete Gaussian on the lattice, sampled exactly and summed modulo "
    "2^32 steps. Its variance, times the honest clients, is sigma^2 plus the square of two steps: "
    "so the sum hides as much as Gaussian noise of sigma, up to factors that epsilon includes; mu "
    "is that of this Gaussian noise",
}
RETURNED: dict[Returns, str] = {
    "last": "Returned was the model after the last round.",
    "average": "Returned was the average of the models after rounds k = 1, 2, ..., with weights "
    "k^3: it follows from these models alone, and so spends nothing more.",
}
ONCE: dict[Unit, str] = {
    "client": "Assumed: that the clients are different organisations. One that takes part twice is "
    "protected less.",
    "record": "Assumed: that a record is in the data once, and at one client. One that is there "
    "twice is protected less.",
    "person": "Assumed: that the same person has the same name in all records of a client, and has "
    "records at one client only. A person with records at two of them, or under two names, is "
    "protected less.",
}
FLOATING_POINT = (
    "Gaps between floating-point numbers: the lowest bits of a release can tell more than epsilon "
    "allows. (Made by a version that did not yet round releases to a lattice.)"
)
