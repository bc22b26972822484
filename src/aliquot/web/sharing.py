"""The key that sessions are sealed with, in a Secret that all replicas of a scheduler share.

Whoever is first makes it. It is looked at now and then: where it was deleted a new one is made, and everybody has to
sign in again. Without the right to it each replica seals with a key of its own, and says so.
"""

from __future__ import annotations

import asyncio
import base64
from typing import Final

from cryptography.fernet import Fernet

from aliquot.kube.api import Api
from aliquot.kube.errors import AlreadyExists, KubeError
from aliquot.scheduler.webhook.keeper import SECRETS
from aliquot.web.log import notice
from aliquot.web.sessions import Sessions

SECRET: Final = "aliquot-dashboard"
FIELD: Final = "key"
LOOK_S: Final = 60.0
SOON_S: Final = 5.0


async def keep_shared(api: Api, namespace: str, sessions: Sessions, tried: asyncio.Event) -> None:
    """Let these sessions be sealed as all replicas seal them, for ever; `tried` is set after the first attempt."""
    shared, said = b"", ""
    while True:
        why = ""
        try:
            key = await shared_key(api, namespace)
            if key != shared:
                sessions.share(key)
                shared = key
        except KubeError as error:
            why = str(error)
        except ValueError:
            why = f'the Secret "{SECRET}" holds no key; delete it, and it is made anew'
        if why and why != said:
            notice(f"who signs in here is signed in at this replica only: {why}")
        said = why
        tried.set()
        await asyncio.sleep(SOON_S if why else LOOK_S)


async def shared_key(api: Api, namespace: str) -> bytes:
    """The key of the Secret, which is made where there is none.

    Raises:
        KubeError: it can be neither read nor made. ValueError: what it holds is no base64.
    """
    held = await api.find(SECRETS, SECRET, namespace=namespace)
    if held is None:
        key = base64.b64encode(Fernet.generate_key()).decode()
        body = {"metadata": {"name": SECRET, "namespace": namespace}, "type": "Opaque", "data": {FIELD: key}}
        try:
            held = await api.create(SECRETS, body, namespace=namespace)
        except AlreadyExists:  # another replica was faster
            held = await api.get(SECRETS, SECRET, namespace=namespace)
    return base64.b64decode(held.data.get(FIELD, ""), validate=True)
