"""JupyterHub on one machine: the server of each person is a tenant, of which all notebooks are processes."""

import shlex

c = get_config()  # noqa: F821 - JupyterHub gives it

c.Spawner.cmd = shlex.split("aliquot run --gpu-request 0.3 --gpu-limit 0.6 --gpu-mem 4Gi -- jupyterhub-singleuser")
# A server waits for room on the GPU at most this long.
c.Spawner.start_timeout = 120
