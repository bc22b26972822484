"""The dashboard of the machine's engine: what each account sees of its own, by requests and in Chromium."""

import json
import os
import shlex
import signal
import subprocess
import sys
import urllib.request

import pytest
from waiting import eventually

from .stage import SOURCES, sharepod
from .test_machine_engine import ANN, BOB, PYTHON, Machine, become, machine, pytestmark

__all__ = ["machine", "pytestmark"]

BROWSER = """
import sys, urllib.error, urllib.request as web
link, *asked = sys.argv[1:]
pages = web.build_opener(web.HTTPCookieProcessor())
pages.open(link).read()
for word in asked:
    method, path = word.split(":")
    try:
        answer = pages.open(web.Request(link.partition("signin")[0] + path, method=method))
    except urllib.error.HTTPError as error:
        answer = error
    print(answer.status, answer.read().decode().replace(chr(10), " "))
"""


def everyone_sees(dashboard: str) -> str:
    """The workloads as one sees them who has not signed in."""
    with urllib.request.urlopen(f"{dashboard}api/v1/workloads") as shown:
        return shown.read().decode()


def test_the_dashboard_knows_who_asks(machine: Machine):
    """With the link of `aliquot dashboard` an account sees events and logs of its own and ends it, and no other's."""
    machine.end(signal.SIGINT)
    machine.words[machine.words.index("--no-web")] = "--port=0"
    machine.up()
    for person in (machine.ann, machine.bob):
        (person.home / "train.yaml").write_text(sharepod("train", "echo said-it; exec sleep 300"))
        assert 0 == person("apply", "-f", "train.yaml").returncode
    eventually(lambda: "said-it" in machine.ann("logs", "train").stdout, "it has printed")
    private = machine.root("dashboard").stdout.partition("signin")[0]
    # While nobody looks, the engine is read every five seconds only.
    eventually(lambda: '"total":2' in everyone_sees(private), "both are shown")
    link = machine.ann("dashboard").stdout.strip()
    stolen = machine.bob.outcome(PYTHON, "-c", BROWSER, link)
    asked = [f"{verb}:{path}/{uid}/train" for uid in (BOB, ANN) for verb, path in (("GET", "logs"), ("POST", "end"))]
    browser = machine.ann.program(PYTHON, "-c", BROWSER, link, "GET:api/v1/workloads", *asked)
    said = browser.communicate(timeout=60)
    pods, *answers = said[0].splitlines()
    left = machine.root("get", "pods", "-o", "name").stdout
    anyone = everyone_sees(private)

    assert 1 == stolen
    assert [403, 403, 200] == [int(answer.split()[0]) for answer in answers[:3]], said
    assert [1, 0] == [pods.count("placed on GPU"), anyone.count("placed on GPU")], said
    assert ("is not yours" in answers[0], "said-it" in answers[2]) == (True, True), said
    assert (True, False) == (f"{BOB}/train" in left, f"{ANN}/train" in left), (said, left)


CHROMIUM = """#!/bin/sh
[ -d {shown} ] || exec unshare --mount sh -c 'mkdir {shown}; mount --bind {folder} {shown}; exec "$0" "$@"' "$0" "$@"
exec {become} --inh-caps=+dac_read_search --ambient-caps=+dac_read_search {shown}/{name} "$@"
"""
"""An account's browser, which lies, with its libraries, where the account may not look."""


def test_each_account_sees_its_own_in_a_browser(machine: Machine):
    """In Chromium it signs in by its link, reads its log and ends its SharePod; of another's it has neither."""
    driver = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: no test in a browser")
    tool = SOURCES.parent / "tools" / "chromium.py"
    found = subprocess.run([sys.executable, tool, "--no-fetch"], capture_output=True, text=True)
    if found.returncode:
        pytest.skip(f"no test in a browser: {found.stderr.strip()}")
    chromium = json.loads(found.stdout)
    machine.end(signal.SIGINT)
    machine.words[machine.words.index("--no-web")] = "--port=0"
    machine.up()
    people, seen = {ANN: machine.ann, BOB: machine.bob}, {}
    for uid, person in people.items():
        (person.home / "train.yaml").write_text(sharepod("train", f"echo said by {uid}; exec sleep 300"))
        person("apply", "-f", "train.yaml")
        eventually(lambda person=person: "said" in person("logs", "train").stdout, "it has printed")
    public = machine.root("dashboard").stdout.partition("signin")[0]
    eventually(lambda: '"total":2' in everyone_sees(public), "both are shown")
    with driver.sync_playwright() as playwright:
        for uid, other in ((ANN, BOB), (BOB, ANN)):
            home, link = people[uid].home, people[uid]("dashboard").stdout.strip()
            start = home.parent / f"chromium-{uid}"
            folder, _, name = chromium["executable"].rpartition("/")
            begin = CHROMIUM.format(shown=home / "shown", folder=folder, become=shlex.join(become(uid)), name=name)
            start.write_text(begin)
            start.chmod(0o755)
            (home / "profile").mkdir()
            os.chown(home / "profile", uid, uid)
            browser = playwright.chromium.launch_persistent_context(
                home / "profile", executable_path=start, args=["--no-sandbox"], env=people[uid].env | chromium["env"]
            )
            page, base = browser.pages[0], link.partition("signin")[0]
            page.goto(link)
            page.wait_for_url(base)
            page.goto(f"{base}workloads/{other}/train")
            closed = page.get_by_role("link", name="Logs").count(), page.goto(f"{base}logs/{other}/train").status
            page.goto(f"{base}workloads/{uid}/train")
            page.get_by_role("link", name="Logs").click()
            said = page.inner_text("body")
            page.go_back()
            page.get_by_role("button", name="End").click()
            page.wait_for_url(f"{base}workloads")
            browser.close()
            seen[uid] = closed, said.strip(), machine.root("get", "pods", "-o", "name").stdout.split()

    assert ((0, 403), f"said by {ANN}", [f"sharepod/{BOB}/train"]) == seen[ANN]
    assert ((0, 403), f"said by {BOB}", []) == seen[BOB]
