"""Two Ray actors on one GPU, one with 0.3 and one with 0.7 of it: python two_actors.py [SECONDS]."""

import json
import sys
from pathlib import Path

import ray
from aliquot_share import share

EXAMPLES = str(Path(__file__).resolve().parents[1])


class Trainer:
    """What `train.py` does, in the worker process of an actor."""

    def __init__(self):
        sys.path.insert(0, EXAMPLES)
        import train

        self.train = train
        train.call("cuInit", 0)
        self.total_mib = train.see(0)["total_mib"]

    def memory(self):
        """How large the GPU seems to be, and the largest piece that can be allocated, in MiB."""
        return {"total_mib": self.total_mib, "largest_mib": self.train.largest_mib(self.total_mib)}

    def compute(self, seconds):
        """Keep the GPU busy for so long; the last line that `train.py` prints."""
        said = []
        self.train.compute(seconds, self.train.KERNEL_NS, lambda line, **_: said.append(line))
        return said[-1]


def main():
    """Start both, let them compute side by side, print what each got."""
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 10
    # Ray finds GPUs by NVML before Aliquot is there; on an emulated one it has to be told.
    ray.init(num_cpus=2, num_gpus=1, include_dashboard=False, logging_level="warning")
    actors = {
        name: ray.remote(Trainer).options(**share(part, memory)).remote()
        for name, part, memory in (("small", 0.3, "4Gi"), ("large", 0.7, "8Gi"))
    }
    memory = ray.get([actor.memory.remote() for actor in actors.values()])
    computed = ray.get([actor.compute.remote(seconds) for actor in actors.values()])
    for name, seen, said in zip(actors, memory, computed, strict=True):
        print(json.dumps({"actor": name, **seen, "said": said}), flush=True)


main()
