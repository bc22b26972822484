"""A resize ends in one of its two sizes, whoever is killed and whatever gets no answer, and nothing is given twice."""

from __future__ import annotations

from hypothesis import HealthCheck, settings
from resize_faults import ResizeFaults


class TestResizes(ResizeFaults.TestCase):
    """What is in force is always reserved, and in the end every pod has its size or says why not."""

    settings = settings(
        max_examples=200,
        stateful_step_count=40,
        deadline=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
