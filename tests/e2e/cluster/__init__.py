"""A Kubernetes cluster for tests: real parts in namespaces of their own, and nothing left behind.

`prepare.prepare` builds and fetches the parts once into a cache; `control_plane.ControlPlane` and
`kubelet_node.KubeletNode` start them; docs/decisions/0007 says why it is made this way. What a test does with them:

- programs outside and inside use the same kubeconfig: `plane.kubeconfig`, or `plane.user("somebody")` with less rights;
- `plane.rooms.popen([...])` runs a program inside, `plane.rooms.listener()` is a socket inside that the test itself
  serves on: an extender or a webhook at 127.0.0.1 as the parts see it; `plane.schedule_with(configuration)` names it;
- `plane["kube-apiserver"]` and each other part: `stop`, `kill`, `pause`, `start`, `restart`, `tail` of its log;
- `plane.partition()`, `plane.cut_watches()`, `plane.compact()`, `plane.reboot()` for bad days;
- `plane.fake_nodes(5, "h100")`, `plane.create_pod`, `plane.wait_running`, `plane.api`, `plane.kubectl` for scenes;
- `node.path("/var/lib/kubelet/...")` is where kubelet's folders are outside, `node.ctr` speaks to containerd,
  `emulated.with_packages` gives containers this environment's Python packages;
- `whole.whole(node, "v100x4")` is all of Aliquot on it; `gpu_node.gpu_node` and `ours.OurScheduler` are its halves.
"""
