#!/bin/sh
# A command three times in a run that takes turns in a GPU's memory with others:
#   aliquot run --gpu-request .3 --gpu-mem 30Gi -- sh examples/phases.sh python3 step.py
# Between the steps no GPU is needed, and another may have the memory.
set -e
for step in 1 2 3; do
    aliquot acquire
    "$@"
    aliquot yield
    sleep 1 # fetch the data of the next step
done
