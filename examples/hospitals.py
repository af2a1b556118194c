"""Make the admissions of five unlike hospitals, one CSV file each: who comes back within a month?

    python examples/hospitals.py FOLDER [--seed 0]

Patients, hospitals and numbers are invented. As in life, a patient may come several times, one
hospital is large and one small, each has wards that others lack, cells are missing, some are
mistyped, and where a hospital sends its patients home early, more of them come back. FOLDER gets
hospital-1.csv to hospital-5.csv (private), test.csv (public: other patients, 400 stays at each
hospital), proxy.csv (public: 100 stays, to plan on) and bounds.toml, the public knowledge about the
columns.
"""

import argparse
import csv
from pathlib import Path
from typing import NamedTuple

import numpy as np

BOUNDS = """\
# Public knowledge: from the code book and from common sense, never from the records.
[age]
low = 18
high = 100

[sex]
categories = ["f", "m"]

[bmi]
low = 16
high = 40
fill = 26

[emergency]
categories = ["no", "yes"]

[diagnosis]
categories = ["heart failure", "arrhythmia", "COPD", "asthma", "dementia", "concussion",
    "hip fracture", "wrist fracture", "cirrhosis", "appendicitis", "lung cancer", "breast cancer"]

[days]            # in hospital
low = 0
high = 16

[previous]        # stays in the year before
low = 0
high = 8

[creatinine]      # micromol/l
low = 40
high = 200
fill = 90

[haemoglobin]     # g/l
low = 80
high = 180
fill = 130

[diabetes]
categories = ["no", "yes"]

[smoker]
categories = ["never", "former", "current"]

[discharge]       # to where
categories = ["home", "home with care", "nursing home"]

[readmitted]
categories = ["no", "yes"]
"""
DEPARTMENTS = (  # what is treated there, and how much more often patients with it come back
    {"heart failure": 1.4, "arrhythmia": -0.9},
    {"COPD": 1.2, "asthma": -1.1},
    {"dementia": 0.9, "concussion": -1.5},
    {"hip fracture": 0.8, "wrist fracture": -1.6},
    {"cirrhosis": 1.5, "appendicitis": -1.4},
    {"lung cancer": 1.6, "breast cancer": -0.6},
)
DIAGNOSES = [diagnosis for department in DEPARTMENTS for diagnosis in department]
SMOKERS = ("never", "former", "current")
PLACES = ("home", "home with care", "nursing home")


class Hospital(NamedTuple):
    """How many admissions it has in all, how many stays a patient has in the mean, their mean age,
    the percentage of each department, how much more often than elsewhere they come back (in log
    odds), and the share of measurements that are missing."""

    admissions: int
    stays: float
    age: float
    departments: tuple[int, ...]
    early: float
    missing: float


HOSPITALS = (
    Hospital(9000, 1.4, 56, (0, 0, 10, 20, 30, 40), -0.2, 0.02),  # the university's
    Hospital(2600, 2.5, 79, (20, 0, 50, 30, 0, 0), 0.1, 0.1),  # for old people
    Hospital(1400, 3.0, 66, (70, 30, 0, 0, 0, 0), 0.0, 0.01),  # for hearts and lungs
    Hospital(3800, 1.8, 64, (0, 40, 0, 30, 30, 0), 0.2, 0.05),  # a town's
    Hospital(420, 4.0, 70, (20, 20, 15, 20, 20, 5), 0.3, 0.25),  # in the country
)


def stays_of(rng: np.random.Generator, hospital: Hospital, patient: str, stays: int) -> list[dict]:
    """The rows of one patient: what a person is, what a stay brings, and whether the patient came
    back within a month. What is not in any column, how frail somebody is, counts as much as what
    is: all stays of one patient teach little more than one."""
    age = np.clip(rng.normal(hospital.age, 13), 18, 101)
    sex, bmi = rng.choice(["f", "m"]), rng.normal(26.5, 5)
    diabetes = rng.random() < 0.1 + 0.15 * (bmi > 30)
    smoker = rng.choice(3, p=(0.5, 0.3, 0.2))
    kidney, frail = rng.gamma(8, 11) + 0.4 * (age - 60), rng.normal(0, 1)
    rows, previous, diagnosis = [], rng.poisson(0.5), ""
    for _ in range(stays):
        if not diagnosis or rng.random() < 0.2:  # most come back with what they had
            department = DEPARTMENTS[rng.choice(6, p=np.array(hospital.departments) / 100)]
            diagnosis = rng.choice([*department])
        emergency = rng.random() < 0.4
        days = rng.gamma(2, 2.8)
        creatinine = kidney * rng.lognormal(0, 0.15)
        haemoglobin = rng.normal(134 - 0.2 * (age - 60), 16)
        care = rng.random() + 0.012 * (age - 60)
        place = 0 if care < 0.7 else 1 if care < 0.95 else 2
        known = (
            0.02 * (age - 65)
            + 0.012 * (creatinine - 90)
            - 0.02 * (haemoglobin - 130)
            + 0.06 * (days - 5)
            + 0.5 * previous
            + 0.6 * emergency
            + 0.4 * diabetes
            + (0, 0.1, 0.5)[smoker]
            + department[diagnosis]
            + (0, 0.7, -0.5)[place]
        )
        score = -1.5 + hospital.early + frail + 0.7 * known
        back = rng.random() < 1 / (1 + np.exp(-score))

        def measured(text: str) -> str:
            return "" if rng.random() < hospital.missing else text

        rows.append(
            {
                "patient": patient,
                "age": f"{age:.0f}",
                "sex": sex,
                "bmi": measured(f"{bmi:.1f}"),
                "emergency": "yes" if emergency else "no",
                "diagnosis": diagnosis,
                "days": f"{days:.0f}",
                "previous": str(previous),
                "creatinine": measured(f"{creatinine:.0f}"),
                "haemoglobin": measured(f"{haemoglobin:.0f}"),
                "diabetes": "yes" if diabetes else "no",
                "smoker": measured(SMOKERS[smoker]),
                "discharge": PLACES[place],
                "readmitted": "yes" if back else "no",
            }
        )
        if rng.random() < 0.04:
            mistype(rng, rows[-1])
        previous += 1
    return rows


def mistype(rng: np.random.Generator, row: dict) -> None:
    """One cell as somebody in a hurry writes it."""
    name = rng.choice(["haemoglobin", "days", "discharge"])
    if name == "haemoglobin" and row[name]:
        row[name] = f"{int(row[name]) / 10:.1f}"  # g/dl
    elif name == "days":
        row[name] += " d"
    elif name == "discharge":
        row[name] = "other"


def admissions(
    rng: np.random.Generator, hospital: Hospital, number: int, letters: str
) -> list[dict]:
    """So many rows in random order, of patients whose names begin with these letters, and who have
    up to twelve stays."""
    rows: list[dict] = []
    patients = 0
    while len(rows) < number:
        patients += 1
        own = min(int(rng.geometric(1 / hospital.stays)), 12, number - len(rows))
        rows += stays_of(rng, hospital, f"{letters}{patients:05}", own)
    return [rows[i] for i in rng.permutation(number)]


def write(path: Path, rows: list[dict]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)


def make(folder: Path, seed: int = 0) -> None:
    """All files."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    for i, hospital in enumerate(HOSPITALS, 1):
        rows = admissions(rng, hospital, hospital.admissions, "abcde"[i - 1])
        write(folder / f"hospital-{i}.csv", rows)
    for name, number in (("proxy.csv", 20), ("test.csv", 400)):
        rows = []
        for i, hospital in enumerate(HOSPITALS, 1):
            # a fifth of the stays, so that few are of one patient
            some = admissions(rng, hospital, 5 * number, f"{name[0]}{'abcde'[i - 1]}")[:number]
            rows += [{**row, "hospital": str(i)} for row in some]
        write(folder / name, rows)
    (folder / "bounds.toml").write_text(BOUNDS)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    make(arguments.folder, arguments.seed)


if __name__ == "__main__":
    main()
