"""The commands `equipoise predict` and `equipoise adapt`: what one does with a run."""

from json import dumps
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from equipoise.cli.console import Json, errors, one_thread, say
from equipoise.cli.train import tell
from equipoise.errors import InvalidValue


def predict(
    folder: Path,
    file: Path,
    /,
    *,
    out: Annotated[
        Path | None, Parameter(help="CSV file for the predictions (default: standard output)")
    ] = None,
    keep: Annotated[
        tuple[str, ...],
        Parameter(
            consume_multiple=True,
            negative=(),
            help="columns to carry over (default: all that the model does not know, such as "
            "identifiers; without any, the number of the row)",
        ),
    ] = (),
    json: Json = False,
) -> None:
    """Predict for new records: a line of probabilities (or the value) for each line of FILE, in its
    order. No label is needed, and none is looked at.

    Cells that are missing, out of bounds or of no declared category are filled or clipped as in
    training, and counted on standard error. Nothing is sent.

    Example: equipoise predict run-1 new.csv --keep patient --out predictions.csv
    """
    from equipoise.prediction import check_out, predictions
    from equipoise.saved import load, write_whole

    if out:
        check_out(out, file)
    made = predictions(load(folder), file, keep or None)
    if out:
        text = made.as_csv()
        try:
            write_whole(out, lambda path: path.write_text(text, encoding="utf-8", newline=""))
        except OSError as error:
            raise InvalidValue(f"out={out} cannot be written: {error.strerror}") from None
    elif not json:
        print(made.as_csv(), end="")
    if json:
        document: dict[str, Any] = {
            "rows": made.rows,
            "changed": made.changed,
            "odd": made.odd,
            "out": None if out is None else str(out),
            "predictions": None if out else made.columns(),
        }
        print(dumps(document))
    say(made.summary() + (f"; predictions in {out}" if out else ""))


def adapt(
    folder: Path,
    /,
    *,
    data: Annotated[
        Path | None, Parameter(help="file of your own records with their label (csv, libsvm)")
    ] = None,
    client: Annotated[
        int | None,
        Parameter(help="or else the records of this client of the task, from 0 (any task)"),
    ] = None,
    layers: Annotated[
        Literal["last", "all"] | None,
        Parameter(help="of a network: what is tuned (default: the last layer)"),
    ] = None,
    out: Annotated[Path | None, Parameter(help="new folder for the tuned model")] = None,
    json: Json = False,
) -> None:
    """Tune a run's model on your own records, at home: own loss + (rho/2) |x - x_federated|^2, with
    the rho that cross-validation on these records finds best, from 0 (your records alone) to
    infinity (the federated model as it is).

    There is no noise, so the tuned model is NOT TO BE RELEASED: it stays where the records are.
    `predict` and `evaluate` take its folder.

    Example: equipoise adapt run-1 --data mine.csv --out mine
    """
    from equipoise.adapting import adapt as tune

    one_thread()
    with errors.status("tuning"):
        result = tune(folder, data, client=client, layers=layers, out=out)
    if out:
        say(f"saved in {out}")
    tell(result, json)
