"""A page read from top to bottom: what it tells to type, save and run is typed, saved and run in one room."""

from pathlib import Path

import docmanifests
from docpages import Block, blocks
from docroom import Complaint, Room

from aliquot.model.errors import UserError


def play(page: Path, room: Room, not_run: dict[str, str]) -> None:
    """Read a page from top to bottom and do what it says."""
    found = blocks(page)
    try:
        for block in found:
            if block.not_run:
                not_run[block.place] = block.not_run
            elif block.kind == "manifest":
                read_manifest(block, room, found)
            elif block.kind == "program":
                room.program(block)
            elif block.kind == "commands":
                room.commands(block)
    finally:
        room.close()


def read_manifest(block: Block, room: Room, page: list[Block]) -> None:
    """A manifest is good for whoever reads it; other YAML is good when a command of its page takes it."""
    if block.file:
        room.keep(block)
    if not docmanifests.is_manifest(block.text):
        if not (block.file and any(block.file in step.command for other in page for step in other.steps)):
            raise Complaint(f"{block.place}: no manifest, and no command of the page reads it")
        return
    room.counts["manifests"] += len(docmanifests.documents(block.text))
    try:
        faults = docmanifests.faults(block.text)
    except UserError as error:
        faults = [str(error)]
    if faults:
        raise Complaint(f"{block.place}: {'; '.join(faults)}")
