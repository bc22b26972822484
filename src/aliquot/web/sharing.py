"""The key that sessions are sealed with, in a Secret that all replicas of a scheduler share.

The first replica creates it. It is checked periodically: a deleted one is created again, and all viewers have to
sign in again. Without the right to it each replica seals with its own key, and logs that.
"""

from __future__ import annotations

import asyncio
import base64
from typing import Final

from cryptography.fernet import Fernet

from aliquot.kube.api import Api
from aliquot.kube.errors import AlreadyExists, KubeError
from aliquot.kube.objects import SECRETS
from aliquot.web.log import notice
from aliquot.web.sessions import Sessions

SECRET: Final = "aliquot-dashboard"
FIELD: Final = "key"
LOOK_S: Final = 60.0
SOON_S: Final = 5.0


async def keep_shared(api: Api, namespace: str, sessions: Sessions, tried: asyncio.Event) -> None:
    """Make these sessions use the shared key, until cancelled; `tried` is set after the first attempt."""
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
            why = f'the Secret "{SECRET}" holds no key; delete it, and it is created again'
        if why and why != said:
            notice(f"sessions are valid at this replica only: {why}")
        said = why
        tried.set()
        await asyncio.sleep(SOON_S if why else LOOK_S)


async def shared_key(api: Api, namespace: str) -> bytes:
    """The key of the Secret, which is created if it does not exist.

    Raises:
        KubeError: it can be neither read nor created. ValueError: its content is not base64.
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
