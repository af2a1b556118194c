"""What goes together in the settings of a run, and what does not."""

from typing import TYPE_CHECKING

from equipoise.errors import require

if TYPE_CHECKING:
    from equipoise.settings import Settings


def check_record_unit(said: "Settings") -> None:
    """What goes together when the unit is a record, and what has no meaning otherwise."""
    if said.unit == "client":
        for name in ("sampling_rate", "noise_in"):
            value = getattr(said, name)
            require(
                value in (None, "message"),
                f"{name}={value} with unit=client: it belongs to unit=record; leave it out",
            )
        require(
            said.h_update != "released" or said.trust == "local",
            "h_update=released under trust=secure-aggregation, where no message is released by "
            "itself: use paper or clipped",
        )
        return
    require(
        said.noise_rule == "exact",
        "noise_rule=lemma1 with unit=record: the paper's lemma is about clients; leave it out",
    )
    rate = said.sampling_rate
    require(rate is None or 0 < rate <= 1, f"sampling_rate={rate} is not in (0, 1]")
    require(
        rate is None or said.batch in (None, "full"),
        f"sampling_rate={rate} and batch={said.batch}: say it in one of the two",
    )
    if said.by_stability:
        require(
            rate in (None, 1) and said.batch in (None, "full"),
            f"noise_in={said.noise_in} holds for full local gradients: leave batch and "
            f"sampling_rate out, or use gradient",
        )
    require(
        said.h_update != "clipped",
        "h_update=clipped with unit=record: no message is clipped; leave it out",
    )
    require(
        said.trust == "local" or said.noise_in == "message",
        "trust=secure-aggregation with noise in gradients: every client adds all of its noise "
        "before its local steps, so there "
        "is nothing to share; use trust=local (or noise_in=message, where it saves noise)",
    )
    if said.algorithm == "dp-scaffnew" and said.noise_in == "message":
        require(
            said.h_update == "released" and said.trust == "local",
            "algorithm=dp-scaffnew with noise_in=message: the paper's control variate carries a "
            "record from round to round "
            "without noise, and the bound on its influence fails from the second round; use "
            "h_update=released with "
            "trust=local, noise_in=gradient, or dp-fedavg",
        )
