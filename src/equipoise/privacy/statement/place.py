"""Where a run took place, and what could be seen from there."""

from equipoise.result import Result


def why_only_sums(result: Result) -> str:
    """Why only sums are seen."""
    if result.run.trust == "local":
        return ""
    if result.federated is None:
        return ". This is assumed: it holds only where a secure aggregation protocol enforces it"
    return (
        ". This is enforced by pairwise masks (X25519, HKDF-SHA-256, AES-256 in counter mode), if "
        "the keys in the agreement are those of the silos, and no more silos than the colluding "
        "ones below give theirs away"
    )


def where_it_ran(result: Result) -> str:
    """On whose machines, and what could be seen from there."""
    federated = result.federated
    if federated is None:
        return (
            "one process that read the records of all clients: nothing is hidden from its operator"
        )
    messages = "the messages of every silo, as they are described here"
    if federated.masked:
        messages = (
            "the sum of their masked messages (whoever has the keys of some silos too, the sum of "
            "the others')"
        )
    return (
        f"{len(federated.silos)} separate silos ({', '.join(federated.silos)}), each of which read "
        "its own records alone and added its own noise; the lead saw only public records and "
        f"{messages}. Agreement: SHA-256 `{federated.agreement}`"
    )
