"""ScaffNew, which is ProxSkip where the proximal step is averaging (Mishchenko et al., "ProxSkip:
yes! local gradient steps provably lead to communication acceleration! finally!", 2022, Algorithm
2): DP-ScaffNew without clip and noise."""

from dataclasses import replace

from equipoise.algorithms import dp_scaffnew

SPEC = replace(
    dp_scaffnew.SPEC,
    name="scaffnew",
    summary="local steps corrected by a control variate, sent as they are; not private",
    options={},
    open_memory={},
    units=(),
    why="use dp-scaffnew",
    paper=None,
)
