"""What an algorithm is: how a client begins, and what it does between two communications."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, runtime_checkable

from equipoise.errors import require

if TYPE_CHECKING:
    from torch import Tensor

    from equipoise.privacy.promise import Unit

Gradient = Callable[["Tensor", int], "Tensor"]
"""`gradient(x, t)`: the (stochastic) gradient of each client's loss at its x, at local iteration t
of the whole run."""


@runtime_checkable
class Descends(Protocol):
    """A gradient that can make plain local steps by itself, sooner than step by step."""

    def __call__(self, x: "Tensor", t: int) -> "Tensor": ...

    def descend(self, x: "Tensor", iterations: range, eta: Any, h: "Tensor | None") -> "Tensor":
        """The same numbers as `descend` without it, bit for bit."""
        ...


def descend(
    x: "Tensor", iterations: range, gradient: Gradient, eta: Any, h: "Tensor | None" = None
) -> "Tensor":
    """Where plain local steps end that begin at x; each by eta (gradient - h), if there is an h."""
    if isinstance(gradient, Descends):
        return gradient.descend(x, iterations, eta, h)
    for t in iterations:
        x = x - eta * (gradient(x, t) if h is None else gradient(x, t) - h)
    return x


@dataclass(frozen=True)
class FirstSteps:
    """A gradient for runs one after the other that begin alike: until they first communicate, plain
    local steps depend on neither budget nor clip, rule, algorithm or number of local steps. `ends`
    holds where they led, by the number of steps, so that none is made twice."""

    gradient: Gradient
    ends: "dict[int, Tensor]"

    def __call__(self, x: "Tensor", t: int) -> "Tensor":
        return self.gradient(x, t)

    def descend(self, x: "Tensor", iterations: range, eta: Any, h: "Tensor | None") -> "Tensor":
        if iterations.start > 0 or h is not None:
            return descend(x, iterations, self.gradient, eta, h)
        begun = max((steps for steps in self.ends if steps <= iterations.stop), default=0)
        x = descend(self.ends.get(begun, x), iterations[begun:], self.gradient, eta)
        self.ends[iterations.stop] = x
        return x


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
        A client's memory before the first round, given the first broadcast: a NamedTuple of tensors
        shaped like the model, so that clients whose updates overflow can start afresh.
    local_round(x, state, iterations, gradient) -> (update, state)
        The local steps t in `iterations` from the broadcast x, as one update not yet clipped, and
        the new memory. Both are private: only `fleets.client.client_round` may turn the update into
        a release.
    after_release(state, update, release) -> state
        The memory once the update was released. One that uses `release` says so in its spec's
        `hears_release`; under secure aggregation no message is released by itself, and `check` must
        refuse it.
    begin(x) -> x
        What the server knows first: the public initial model, or more, with the model in front.
    server(x, mean, gamma) -> x
        What it knows next, given the mean release: all that the server knows is public.
    told(x) -> x
        What it broadcasts of that, with the model in front: all of it, if nothing else is said.
    """

    init: Callable[["Tensor"], Any]
    local_round: Callable[["Tensor", Any, range, Gradient], "tuple[Tensor, Any]"]
    after_release: Callable[[Any, "Tensor", "Tensor"], Any] = lambda state, update, release: state
    begin: Callable[["Tensor"], "Tensor"] = lambda x: x
    server: Callable[["Tensor", "Tensor", Any], "Tensor"] = lambda x, mean, gamma: x + gamma * mean
    told: Callable[["Tensor"], "Tensor"] = lambda known: known

    def first_broadcast(self, x: "Tensor") -> "Tensor":
        return self.told(self.begin(x))

    def update_shape(self, x: "Tensor") -> "tuple[int, ...]":
        """Of one client's update, found by a round in which all gradients are zero."""
        known = self.first_broadcast(x)
        update, _ = self.local_round(
            known, self.init(known), range(1), lambda x, t: x.new_zeros(x.shape)
        )
        return tuple(update.shape)


def of_server(value: Any) -> Any:
    """A number of `Hyper` against what the server knows, which has no axis of clients."""
    return value.squeeze(-2) if getattr(value, "ndim", 0) > 1 else value


class Hyper(NamedTuple):
    """The numbers that an algorithm reads. Any may be a tensor that broadcasts, [runs, 1, 1].

    `clip` is what messages are clipped to: inf where they are not.
    """

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


def given(options: Options, known: Mapping[str, Option], whose: str) -> dict[str, float | str]:
    """The options that differ from their defaults, checked; one that is not known is refused."""
    for name, value in options.items():
        require(
            name in known, f"{name}={value} with {whose}, which has no such option: leave it out"
        )
        known[name].check(name, value)
    return {name: value for name, value in options.items() if value != known[name].default}


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
    hears_release   whether clients remember their own message as it was released, given the options
    open_memory   options under which clients remember only what was released
    proximal      the curvature that it adds to every local loss, given the options
    check         refuses settings with which the algorithm has no meaning
    units         what it can protect: nothing, if it is not private; where it protects a record, it
                  protects a person
    why           why no other unit, and what to do instead
    step_settings  which settings of its steps leave it what it is: how large those of a round are
                  (`eta_schedule`), what makes them of gradients (`local_optimiser`), and what makes
                  the server's of mean releases (`server_optimiser`)
    why_its_steps  why no others, and what to do instead
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
    hears_release: Callable[[Options], bool] = lambda options: False
    open_memory: Options = field(default_factory=dict)
    proximal: Callable[[Options], float] = lambda options: 0.0
    check: Callable[[Any], None] = lambda settings: None
    units: "tuple[Unit, ...]" = ("client", "record")
    why: str = ""
    step_settings: tuple[str, ...] = ()
    why_its_steps: str = "its steps are its own: leave it out"
    variate: bool = False
    paper: str | None = None
    stack: Stack | None = None

    @property
    def group(self) -> str:
        """What algorithms that are trained in one computation have in common."""
        return self.stack.name if self.stack else self.name

    @property
    def private(self) -> bool:
        return bool(self.units)

    def protects(self, unit: "Unit") -> bool:
        return ("record" if unit == "person" else unit) in self.units

    def check_settings(self, settings: Any) -> None:
        """Refuse settings with which the algorithm has no meaning, or no guarantee."""
        if self.private:
            unit = settings.unit
            require(self.protects(unit), f"unit={unit} with algorithm={self.name}: {self.why}")
        else:
            free = settings.epsilon == math.inf and settings.clip in (None, math.inf)
            require(
                free,
                f"epsilon={settings.epsilon}, clip={settings.clip} with algorithm={self.name}, "
                f"which is not private: {self.why}, or give epsilon=inf and no clip",
            )
        for name, value in settings.chosen_steps.items():
            require(
                name in self.step_settings,
                f"{name}={value} with algorithm={self.name}: {self.why_its_steps}",
            )
        self.check(settings)

    def given(self, options: Options) -> dict[str, float | str]:
        """The options that differ from their defaults, checked; one of another algorithm is
        refused."""
        return given(options, self.options, f"algorithm={self.name}")
