"""What public records alone can teach: the model that private training has to beat, or to begin
from."""

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from equipoise.errors import InvalidValue
from equipoise.tasks.linear import LinearClients, linear_clients
from equipoise.tasks.task import Convex, Table, Task

FEW_DIMENSIONS = 150
ROUGH = 1e-4


def minimiser(clients: Convex, x0: Tensor, tolerance: float = 1e-10) -> Tensor:
    """x* of the mean loss, up to a gradient of this length, by Newton's method with step
    halving.
    """
    x, N = x0, len(clients.sizes)
    for _ in range(50):
        gradient = clients.gradient(x.expand(N, -1), 0).mean(0)
        if gradient.norm() < tolerance:
            break
        step = torch.linalg.solve(clients.hessians(x).mean(0), gradient)
        scale = 1.0
        while scale > 1e-6 and clients.loss(x - scale * step) > clients.loss(x):
            scale /= 2
        x = x - scale * step
    return x


def rough_minimiser(clients: Convex, x0: Tensor, tolerance: float = ROUGH) -> Tensor:
    """x* of the mean loss up to a gradient of this length, ROUGH being enough to compare plans: in
    many dimensions without Hessians, by L-BFGS."""
    if len(x0) <= FEW_DIMENSIONS:
        return minimiser(clients, x0, tolerance)
    from scipy.optimize import minimize

    N = len(clients.sizes)

    def loss_and_gradient(numbers: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        x = torch.from_numpy(numbers)
        return float(clients.loss(x)), clients.gradient(x.expand(N, -1), 0).mean(0).numpy()

    ends: dict[str, float] = {"gtol": tolerance}
    if tolerance < ROUGH:
        ends |= {"ftol": 0.0}  # else it stops at a relative change of 2e-9
    solved = minimize(loss_and_gradient, x0.numpy(), jac=True, method="L-BFGS-B", options=ends)
    return torch.from_numpy(solved.x)


def public_model(task: Task) -> Tensor:
    """The model trained on the task's public pool alone, without noise: it depends on no private
    record. Kept with the task."""
    if "public_model" not in vars(task):
        vars(task)["public_model"] = _trained(task)
    model: Tensor = vars(task)["public_model"]
    return model


def _trained(task: Task) -> Tensor:
    if task.pool is None:
        raise InvalidValue(
            f"task={task.name} has no public records to begin from: give --proxy FILE or "
            f"--public-records n"
        )
    if isinstance(task.pool, Table):
        assert isinstance(task.clients, LinearClients)
        l2 = task.public_l2 or task.clients.l2
        pool = linear_clients([task.pool], task.clients.link, l2, None, 0)
        if task.encoder:  # heads of many classes have too many parameters for Newton's method
            return rough_minimiser(pool, task.x0, 1e-6)
        return minimiser(pool, task.x0)
    x = task.x0.to(task.device).unsqueeze(0)
    for t in range(task.iterations):
        x = x - task.learning_rate * task.pool.gradient(x, t)
    return x[0].cpu()


class PublicOnly(NamedTuple):
    """What a model trained on public records alone reaches on the public test records."""

    records: int
    test_error: float
    test_loss: float


def public_only(task: Task) -> PublicOnly | None:
    """What the public pool alone can teach; None without a pool or without test records."""
    if task.pool is None or task.measure is None:
        return None
    measured = task.measure(public_model(task))
    pool = task.pool
    records = len(pool.features) if isinstance(pool, Table) else pool.sizes[0]
    return PublicOnly(records, float(measured.error), float(measured.loss))
