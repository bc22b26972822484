"""How soon a tenant wakes: the words for it, and what they allow neighbours."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aliquot.model.quantities import BadQuantity
from aliquot.model.requests import BadRequest, GpuRequest, checked
from aliquot.model.sharepod import BadSharePod, parse_sharepod
from aliquot.model.wake import HANDOVER_US, LEAST_US, MAX_US, format_wake, in_flight_us, longest_kernel_us, parse_wake


@pytest.mark.parametrize(
    ("text", "wake_us"),
    [("5ms", 5000), ("1500us", 1500), ("1500µs", 1500), ("1.5ms", 1500), ("1s", 1_000_000), ("1s500ms", 1_500_000)],
)
def test_durations_are_read_as_go_writes_them(text: str, wake_us: int):
    """A number with a unit, or several of them in a row."""
    assert wake_us == parse_wake(text)


@pytest.mark.parametrize("text", ["", "5", "ms", "5 ms", "-5ms", "5ms ", "5 years", "1e3ms", "٥ms", 5, None, True])
def test_what_is_no_duration_is_refused_with_examples(text: object):
    """The sentence shows the value and how to write one."""
    with pytest.raises(BadQuantity, match=r"is not a duration; write 5ms, 1s or 1500us"):
        parse_wake(text)


@pytest.mark.parametrize("text", ["999us", "0s", "10s1us", "24h", "1ms1ns"])
def test_what_cannot_be_promised_is_refused_with_the_range(text: str):
    """Shorter than a hand-over, longer than a person waits, or finer than a microsecond."""
    with pytest.raises(BadQuantity, match=f'"{text}" .* 1ms to 10s, in whole microseconds'):
        parse_wake(text)


@given(st.integers(LEAST_US, MAX_US))
def test_text_of_a_duration_is_read_as_the_same(wake_us: int):
    """Whatever can be promised can be written."""
    assert wake_us == parse_wake(format_wake(wake_us))


@given(st.text(max_size=40))
def test_any_text_is_a_duration_in_range_or_refused(text: str):
    """No text brings anything else about."""
    try:
        found = parse_wake(text)
    except BadQuantity:
        return
    assert LEAST_US <= found <= MAX_US


@given(st.integers(LEAST_US, MAX_US), st.integers(0, 8))
def test_what_is_waited_for_is_never_more_than_the_promise(wake_us: int, rivals: int):
    """What neighbours may queue, their longest kernel and the hand-over add up to the promise at most."""
    kernel_us = longest_kernel_us(wake_us, rivals)

    assert kernel_us + in_flight_us(wake_us) + HANDOVER_US <= wake_us
    assert kernel_us <= longest_kernel_us(wake_us)


def test_a_sharepod_says_which_field_is_wrong():
    """A bad duration is told with the path of the field, the value and what is allowed."""
    gpu = {"request": 0.3, "wake": "5min"}
    spec = {"gpu": gpu, "template": {"spec": {"containers": [{"name": "main", "command": ["a"]}]}}}
    pod = {"apiVersion": "aliquot.dev/v1alpha1", "kind": "SharePod", "metadata": {"name": "a"}, "spec": spec}

    with pytest.raises(BadSharePod, match=r'sharepod "a": spec\.gpu\.wake: "5min" is not a duration; write 5ms'):
        parse_sharepod(pod)
    gpu["wake"] = "5ms"
    assert 5000 == parse_sharepod(pod).request.wake_us


def test_whole_gpus_wait_for_nobody():
    """A promise of waking is for a part of one GPU."""
    with pytest.raises(BadRequest, match=r"--wake 5ms is for a part of one GPU, --gpu-request is 1\.00"):
        checked(GpuRequest(1000, wake_us=5000), request_name="--gpu-request", limit_name="x", wake_name="--wake")
