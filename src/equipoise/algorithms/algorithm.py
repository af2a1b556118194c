"""What an algorithm is: how a client begins, and what it does between two communications."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from equipoise.errors import require

if TYPE_CHECKING:
    from torch import Tensor

Gradient = Callable[["Tensor", int], "Tensor"]
"""`gradient(x, t)`: the (stochastic) gradient of each client's loss at its x, at local iteration t
of the whole run."""

Options = Mapping[str, float | str]
"""Settings that only some algorithms understand, by name; what is absent has its default."""

Memory = Literal["none", "released", "updates", "private"]
"""What a client carries from round to round: nothing; only what was released; its updates as they
were before clip and noise; or anything else. What was broadcast may be remembered besides.
"""


def no_memory(options: Options) -> Memory:
    return "none"


class Algorithm(NamedTuple):
    """Pure functions on the last axis of x: [d], [clients, d] or [runs, clients, d].

    init(x) -> state
        A client's memory before the first round, at the public initial model x: a NamedTuple of
        tensors shaped like x, so that clients whose updates overflow can start afresh.
    local_round(x, state, iterations, gradient) -> (update, state)
        The local steps t in `iterations` from the broadcast model x, as one update not yet clipped,
        and the new memory. Both are private: only `fleets.client.client_round` may turn the update
        into a release.
    after_release(state, update, release) -> state
        The memory once the update was released. One that uses `release` is "released" or "private";
        under secure aggregation no message is released by itself, and `check` must refuse it.
    """

    init: Callable[["Tensor"], Any]
    local_round: Callable[["Tensor", Any, range, Gradient], "tuple[Tensor, Any]"]
    after_release: Callable[[Any, "Tensor", "Tensor"], Any] = lambda state, update, release: state


class Hyper(NamedTuple):
    """The numbers that an algorithm reads. Any may be a tensor that broadcasts, [runs, 1, 1]."""

    eta: Any
    p: Any
    clip: Any
    options: Options


class Option(NamedTuple):
    """A setting of one algorithm: one of `choices`, or a number for which `holds`."""

    default: float | str
    help: str
    choices: tuple[str, ...] = ()
    rule: str = ""
    holds: Callable[[float], bool] = lambda value: True

    def read(self, value: float | str) -> float | str:
        """A number where the option is one, also from the words of a command."""
        try:
            return value if self.choices else float(value)
        except ValueError:
            return value

    def check(self, name: str, value: float | str) -> None:
        if self.choices:
            require(
                value in self.choices, f"{name}={value!r} is not one of {', '.join(self.choices)}"
            )
        else:
            number = isinstance(value, int | float) and self.holds(float(value))
            require(number, f"{name}={value!r} is not {self.rule}")


class Stack(NamedTuple):
    """Algorithms of one `name` can be trained in one computation: `make(numbers, value)` is each of
    them where the value is its `own`."""

    name: str
    make: Callable[[Hyper, Any], Algorithm]
    own: float


@dataclass(frozen=True)
class AlgorithmSpec:
    """An algorithm as the rest of the product knows it.

    make          the algorithm for given numbers
    memory        what its clients remember, given the options
    gradient_steps   whether a round is gradient steps x_i - eta (gradient + proximal (x_i - x) - h)
                  from the broadcast x, with h the same in all of them: what stability bounds are
                  about
    options       the settings that it alone understands
    open_memory   options under which clients remember only what was released
    proximal      the curvature that it adds to every local loss, given the options
    check         refuses settings with which the algorithm has no meaning
    variate       whether clients have a control variate h, as that of DP-ScaffNew
    paper         what the paper calls it, if it is the paper's
    stack         with which others it can be trained in one computation
    """

    name: str
    summary: str
    make: Callable[[Hyper], Algorithm]
    memory: Callable[[Options], Memory]
    gradient_steps: bool = False
    options: Mapping[str, Option] = field(default_factory=dict)
    open_memory: Options = field(default_factory=dict)
    proximal: Callable[[Options], float] = lambda options: 0.0
    check: Callable[[Any], None] = lambda settings: None
    variate: bool = False
    paper: str | None = None
    stack: Stack | None = None

    @property
    def group(self) -> str:
        """What algorithms that are trained in one computation have in common."""
        return self.stack.name if self.stack else self.name

    def given(self, options: Options) -> dict[str, float | str]:
        """The options that differ from their defaults, checked; one of another algorithm is
        refused."""
        for name, value in options.items():
            require(
                name in self.options,
                f"{name}={value} with algorithm={self.name}, which has no such option: "
                f"leave it out",
            )
            self.options[name].check(name, value)
        return {
            name: value for name, value in options.items() if value != self.options[name].default
        }
