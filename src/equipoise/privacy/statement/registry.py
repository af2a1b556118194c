"""An entry for OpenDP's Differential Privacy Deployments Registry, as YAML.

Fields as in `schemas/deployments-schema.yaml` of github.com/opendp/deployments-registry-data at
commit 3e9c812 (July 2026), tier 3. What only the owner knows comes from About, and is asked for.
"""

import json
import re
from typing import Any

from equipoise.errors import InvalidValue, require
from equipoise.privacy.statement.document import Guarantee

NEEDED = ("name", "purpose", "controller", "region", "published")
_NO_YAML = re.compile(r"[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")  # that JSON leaves as it is
SECTORS = ("Technology", "Healthcare", "Education", "Government", "Energy", "Finance")


def registry_entry(guarantee: Guarantee) -> str:
    """Refused of a run that guarantees nothing, or of which too little is told."""
    about = guarantee.about
    require(
        guarantee.private,
        "the run guarantees nothing, so there is nothing to register: "
        f"{(guarantee.notices or ['it is not private'])[0]}",
    )
    missing = [name for name in NEEDED if not getattr(about, name)]
    if missing:
        raise InvalidValue(
            f"a registry entry needs {', '.join(missing)}: give a TOML file with them (--about "
            "FILE); nothing is filled in that only you can know"
        )
    require(
        about.sector in ("", *SECTORS),
        f"sector={about.sector!r} is none that the registry knows: give one of "
        f"{', '.join(SECTORS)}, or leave it out",
    )
    words = (about.name, about.controller, about.published[:4])
    slug = re.sub(r"[^a-z0-9]+", "-", " ".join(words).lower()).strip("-")
    entry = {
        "url_slug": slug,
        "status": "Draft",
        "tier": 3,
        "deployment": {
            "basic": _basic(guarantee),
            "dp_variant": {
                "variant_name": "Approximate DP",
                "data_domain": f"The private records of {guarantee.clients} clients.",
                "unprotected_quantities": _sentences(_public(guarantee)) or "None.",
            },
            "privacy_loss": _loss(guarantee),
            "deployment_model": _model(guarantee),
            "accounting": {
                "post_processing": "Models and messages are computed from noised releases alone.",
                "composition": f"{guarantee.events[0].count} adaptive releases, accounted for "
                "together: " + _accountant(guarantee),
            },
            "implementation": {
                "preprocessing_and_hyperparameter_tuning": guarantee.chosen,
                "mechanisms": f"Released: {guarantee.mechanism}. Noise: {guarantee.noise_source}, "
                "and what leaves lies on a public lattice. "
                "How long a client takes for a round is not protected. Equipoise "
                f"{guarantee.version}, algorithm {guarantee.algorithm}.",
                "justification": guarantee.utility.sentence,
            },
            "administrative": {
                **({"sources": about.sources} if about.sources else {}),
                "notes": guarantee.sentence,
                "registry_authors": [about.authors or about.controller],
            },
        },
    }
    return "\n".join(_yaml(entry)) + "\n"


def _basic(guarantee: Guarantee) -> dict[str, Any]:
    about = guarantee.about
    made = (
        f"A model with {guarantee.dimension:,} parameters, trained on the records of "
        f"{guarantee.clients} clients."
    )
    return {
        "name": about.name,
        "data_curators": [about.controller],
        "intended_use": about.purpose,
        "data_product_type": "Machine learning model",
        "data_product_region": about.region,
        "description": about.description or made,
        "publication_date": about.published,
        **({"data_product_sector": about.sector} if about.sector else {}),
    }


def _loss(guarantee: Guarantee) -> dict[str, Any]:
    assert guarantee.attack
    mu = "" if guarantee.mu is None else f"mu = {guarantee.mu} of Gaussian DP. "
    kind = "exact" if guarantee.exact else "an upper bound"
    return {
        "privacy_unit": guarantee.unit,
        "privacy_unit_details": f"Neighbours: {guarantee.neighbours}. {guarantee.reach}",
        "privacy_parameters": {"epsilon": float(guarantee.epsilon), "delta": guarantee.delta},
        "privacy_parameters_details": f"epsilon is {kind}. {mu}{guarantee.attack.sentence} "
        f"{guarantee.delta_sentence}",
    }


def _model(guarantee: Guarantee) -> dict[str, Any]:
    """Central where one process held all records, whatever is seen of its messages."""
    where = guarantee.where
    details = "One process read the records of all clients; nothing is hidden from its operator."
    if where:
        seen = "only sums of their masked messages" if where.masked else "their noised messages"
        details = (
            f"{len(where.silos)} silos read their own records alone and added their own noise; "
            f"the lead saw {seen}."
        )
    colluding = "" if guarantee.colluding is None else f"; {guarantee.colluding} may collude"
    return {
        "model_name": "Federated" if where else "Central",
        "model_name_details": details,
        "actors": f"The adversary sees {guarantee.sees}{colluding}.",
        "release_type": "One release",
        "release_type_details": "One run; other runs on the same data spend budgets of their own.",
        "data_source_type": "Static",
        "access_type": "Non-interactive",
    }


def _accountant(guarantee: Guarantee) -> str:
    if guarantee.mu is None:
        return "numerically, by privacy loss distributions rounded to the pessimistic side."
    exactly = ", exactly" if guarantee.exact else ", an upper bound"
    return f"by Gaussian differential privacy{exactly}."


def _public(guarantee: Guarantee) -> list[str]:
    return [item for item in guarantee.assumptions if item.startswith("Taken as public")]


def _sentences(items: list[str]) -> str:
    return " ".join(items)


def _yaml(value: dict[str, Any], indent: str = "") -> list[str]:
    """Text in the double quotes of JSON, which YAML reads alike."""
    lines = []
    for name, item in value.items():
        if isinstance(item, dict):
            lines += [f"{indent}{name}:", *_yaml(item, indent + "  ")]
        elif isinstance(item, list):
            lines += [f"{indent}{name}:", *(f"{indent}  - {_scalar(each)}" for each in item)]
        else:
            lines.append(f"{indent}{name}: {_scalar(item)}")
    return lines


def _scalar(value: Any) -> str:
    if isinstance(value, float):  # YAML 1.1 takes a number without a point for text
        digits, exponent, power = repr(value).partition("e")
        return (digits if "." in digits else f"{digits}.0") + exponent + power
    return _NO_YAML.sub(_escaped, json.dumps(value, ensure_ascii=False))


def _escaped(character: re.Match[str]) -> str:
    return f"\\u{ord(character[0]):04x}"
