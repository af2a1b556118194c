"""What the outputs of a network mean, by the loss that it is trained with: probabilities, values,
or nothing that is known here."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from equipoise.tasks.task import Predictions

Meaning = Callable[[Tensor, Tensor], Predictions | None]
"""Outputs and targets of all records as predictions; None where their shapes are of another use."""


def meaning_of(loss: Any) -> Meaning | None:
    """None for any other loss than those of torch that say what outputs are."""
    for losses, meaning in MEANINGS.items():
        if any(loss is known or type(loss) is known for known in losses):
            return meaning
    return None


def shares(outputs: Tensor, targets: Tensor) -> Predictions | None:
    """Of the classes, by a softmax."""
    if outputs.dim() != 2 or targets.dim() != 1 or targets.is_floating_point():
        return None
    classes = outputs.shape[1]
    if classes < 2 or not 0 <= int(targets.min()) <= int(targets.max()) < classes:
        return None
    each = torch.softmax(outputs, 1)
    if classes == 2:
        each = each[:, 1]
    return Predictions(each.numpy(), targets.long().numpy(), classes)


def _share(outputs: Tensor, targets: Tensor) -> Predictions | None:
    """Of the second of two classes."""
    values = _value(outputs, targets)
    if values is None or not np.isin(values.truth, (0, 1)).all():
        return None
    return values._replace(truth=values.truth.astype(np.int64), classes=2)


def _share_of_logit(outputs: Tensor, targets: Tensor) -> Predictions | None:
    return _share(torch.sigmoid(outputs), targets)


def _value(outputs: Tensor, targets: Tensor) -> Predictions | None:
    """One number for each record."""
    if outputs.shape != targets.shape or outputs[0].numel() != 1:
        return None
    return Predictions(outputs.flatten().numpy(), targets.double().flatten().numpy(), 0)


MEANINGS: dict[tuple[Any, ...], Meaning] = {
    (functional.cross_entropy, nn.CrossEntropyLoss): shares,
    (functional.nll_loss, nn.NLLLoss): shares,
    (functional.binary_cross_entropy_with_logits, nn.BCEWithLogitsLoss): _share_of_logit,
    (functional.binary_cross_entropy, nn.BCELoss): _share,
    (functional.mse_loss, nn.MSELoss, functional.l1_loss, nn.L1Loss): _value,
}
"""By losses, as functions and as modules."""
