"""Aliquot shares GPUs by the fraction and keeps the promise."""


def yield_gpu() -> None:
    """Say that this program needs no GPU until it acquires it or uses it; its memory may go to others meanwhile.

    Raises:
        aliquot.model.errors.AliquotError: it has no share here, or memory that stays on its GPU; nothing has changed.
    """
    from aliquot.standalone.phases import say

    say(needs=False)


def acquire_gpu(timeout_s: float | None = None) -> None:
    """Say that this program needs its GPU, and wait until its memory is there.

    Raises:
        aliquot.model.errors.AliquotError: it has no share here, or not its memory after `timeout_s` seconds, if given.
    """
    from aliquot.standalone.phases import say

    say(needs=True, timeout_s=timeout_s)
