"""A lead that keeps the model and dismisses nobody: lead_process.py AGREEMENT HUB OUT.npy [TASK]"""

import sys
from pathlib import Path

import numpy as np
import torch

from equipoise.federation.agreement import read_agreement
from equipoise.federation.lead import lead
from equipoise.federation.part import lead_part
from equipoise.fleets.flower.lead import FlowerLink

path, hub, out, *task_file = sys.argv[1:]
agreement = read_agreement(path)
torch.set_num_threads(1)
nodes = {member.name: member.node for member in agreement.silos}


def watch(rounds, total):
    for round in rounds:
        print(f"round {round.number} of {total}", flush=True)
        yield round


with FlowerLink(Path(hub), nodes, print, 300.0) as link:
    part = lead_part(agreement, task_file=task_file[0] if task_file else None)
    result = lead(agreement, part, link, watch)
np.save(out, result.x)
