"""One example for each command, shown at the end of its --help."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import click

# name -> (what it does, how it is written); the tests parse every one with the command itself
EXAMPLES: Final[dict[str, tuple[str, str]]] = {
    "run": (
        "a third of a GPU, up to two thirds while others are idle, with 4 GiB of its memory",
        "aliquot run --gpu-request .3 --gpu-limit .6 --gpu-mem 4Gi -- python train.py",
    ),
    "up": (
        "two emulated GPUs in the background, the dashboard on port 9000",
        "aliquot up -d --emulate h100x2 --port 9000",
    ),
    "apply": ("the SharePods of a file", "aliquot apply -f examples/neighbours.yaml"),
    "down": ("give programs five minutes to end", "aliquot down --timeout 5m"),
    "get": ("the SharePods with a label, and what changes", "aliquot get pods -l team=a -w"),
    "describe": ("one SharePod with its events", "aliquot describe research/notebook"),
    "delete": ("everything that a file started", "aliquot delete -f examples/neighbours.yaml"),
    "logs": ("the last lines of a SharePod, then what comes", "aliquot logs --tail 20 -f notebook"),
    "exec": ("a shell in the place of a SharePod", "aliquot exec notebook -- bash"),
    "top": ("print one table and exit", "aliquot top --once"),
    "explain": ("why a SharePod waits", "aliquot explain research/notebook"),
    "topo": ("which four GPUs of an emulated machine talk fastest", "aliquot topo --emulate v100x8 --best 4"),
    "doctor": ("the problems of this machine, as JSON", "aliquot doctor -o json"),
    "convert": ("a manifest of another project, in Aliquot's words", "aliquot convert -f pod.yaml --to aliquot"),
    "node": ("this node's settings as a file", "aliquot node --print-config"),
    "scheduler": ("the configuration for kube-scheduler", "aliquot scheduler --print-kube-scheduler-config"),
    "completion": ("for this shell only", 'eval "$(aliquot completion bash)"'),
    "arbiter": ("a separate arbiter", "aliquot arbiter --runtime-dir /tmp/arbiter --fresh"),
}


KUBECTL_EXAMPLES: Final[Mapping[str, tuple[str, str]]] = {
    "get": ("every GPU with its UUID", "kubectl aliquot get gpus -o wide"),
    "top": ("the GPUs that one namespace uses, once", "kubectl aliquot top -n research --once"),
    "explain": ("why a pod waits", "kubectl aliquot explain pod train-7 -n research"),
    "inspect": ("the comparison, for a program", "kubectl aliquot inspect -o json"),
    "topo": ("which two free GPUs of a node to take together", "kubectl aliquot topo node-a --best 2"),
    "doctor": ("the problems of the cluster, as JSON", "kubectl aliquot doctor -o json"),
}


def with_example(name: str, command: click.Command, examples: Mapping[str, tuple[str, str]]) -> click.Command:
    """The command, its help ending with its example, if there is one, unless it already has an epilogue."""
    if name in examples and not command.epilog:
        text, line = examples[name]
        command.epilog = f"\b\nExample, {text}:\n  {line}"
    return command
