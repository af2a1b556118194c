"""Small data sets in their official layouts, for tests of their readers."""

import io
import json
import tarfile

import numpy as np


def tar_of(path, members, mode="w:gz"):
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, mode) as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))


def binary(labels, seed=0):
    """Records of CIFAR-10's binary form."""
    pixels = np.random.default_rng(seed).integers(0, 256, (len(labels), 3072), dtype=np.uint8)
    return np.hstack([np.array(labels, dtype=np.uint8)[:, None], pixels]).tobytes()


BATCHES = {
    **{f"data_batch_{i}": binary([i % 10, 1, 2, 9], seed=i) for i in range(1, 6)},
    "test_batch": binary([0, 1, 9], seed=9),
}


def cifar_archive(place, **changes):
    """A small CIFAR-10 in its official archive; `changes` replace whole files."""
    members = {
        f"cifar-10-batches-bin/{name}.bin": content
        for name, content in {**BATCHES, **changes}.items()
        if content
    }
    tar_of(place / "cifar10" / "cifar-10-binary.tar.gz", members)


def leaf(users):
    return json.dumps(
        {
            "users": list(users),
            "num_samples": [len(r["y"]) for r in users.values()],
            "user_data": users,
        }
    ).encode()


def writer(labels, seed=0):
    pictures = np.random.default_rng(seed).integers(0, 256, (len(labels), 784)) / 255
    return {"x": pictures.tolist(), "y": list(labels)}


def put(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def femnist_files(place, train, test=None):
    put(place / "femnist" / "data" / "train" / "a.json", train)
    put(
        place / "femnist" / "data" / "test" / "a.json",
        leaf({"f1": writer([1])}) if test is None else test,
    )
