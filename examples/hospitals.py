"""Make the tables of a few hospitals, one CSV file each: who comes back within a month?

    python examples/hospitals.py FOLDER [--hospitals 30]

The people are invented. Some cells are missing and some values lie outside the bounds, as in life.
FOLDER gets hospital-01.csv, ..., test.csv (public) and bounds.toml, the public knowledge about the
columns.
"""

import argparse
import csv
from pathlib import Path

import numpy as np

BOUNDS = """\
# Public knowledge: from the code book and from common sense, never from the records.
[age]
low = 18
high = 100

[days]            # in hospital
low = 0
high = 30
fill = 5

[admissions]      # in the year before
low = 0
high = 10

[ward]
categories = ["surgery", "medicine", "geriatrics"]

[smoker]
categories = ["no", "yes"]
fill = "no"

[readmitted]
categories = ["no", "yes"]
"""


def people(rng: np.random.Generator, number: int) -> list[dict[str, str]]:
    age = np.clip(rng.normal(66, 18, number), 18, 110)
    days = rng.gamma(2, 3.5, number)
    admissions = rng.poisson(1.2, number)
    ward = rng.choice(["surgery", "medicine", "geriatrics"], number)
    smoker = rng.random(number) < 0.2
    score = (
        0.05 * (age - 66)
        + 0.25 * (days - 6)
        + 1.1 * (admissions - 1.2)
        + (ward == "geriatrics")
        + 0.8 * smoker
        - 0.7
    )
    readmitted = rng.random(number) < 1 / (1 + np.exp(-score))
    return [
        {
            "age": f"{age[i]:.0f}",
            "days": "" if rng.random() < 0.02 else f"{days[i]:.1f}",
            "admissions": str(admissions[i]),
            "ward": ward[i],
            "smoker": "yes" if smoker[i] else "no",
            "readmitted": "yes" if readmitted[i] else "no",
        }
        for i in range(number)
    ]


def write(path: Path, rows: list[dict[str, str]]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--hospitals", type=int, default=30)
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    for number in range(1, arguments.hospitals + 1):
        write(
            arguments.folder / f"hospital-{number:02}.csv", people(rng, int(rng.integers(80, 200)))
        )
    write(arguments.folder / "test.csv", people(rng, 2000))
    (arguments.folder / "bounds.toml").write_text(BOUNDS)


if __name__ == "__main__":
    main()
