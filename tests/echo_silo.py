"""A silo that doubles the floats that it is sent: python echo_silo.py KEY LINK CA [WORD=SECONDS]

`work=2` works two seconds on each question, `hold=1` evens out the answering time, `patience=3` is
that with a link that refuses the key.
"""

import signal
import sys
import time
from pathlib import Path

import numpy as np

from equipoise.errors import EquipoiseError
from equipoise.fleets.flower.silo import serve
from equipoise.fleets.keys import read_private

key, link, ca, *words = sys.argv[1:]
numbers = {word.partition("=")[0]: float(word.partition("=")[2]) for word in words}
work = numbers.pop("work", 0.0)


def answer(question):
    if question == b"over":
        return None
    if question == b"fail":
        raise RuntimeError("the record of Mrs Miller")
    print("working", flush=True)
    time.sleep(work)
    return (2 * np.frombuffer(question, "<f4")).tobytes()


def say(sentence):
    print(sentence, flush=True)


signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
try:
    serve(answer, link, Path(ca), read_private(Path(key)).node, say=say, **numbers)
except EquipoiseError as error:
    sys.exit(f"error: {error}")
