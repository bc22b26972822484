"""GPUs of the stock plugin as vGPUs, with the real control plane: holder pods, demand, and that none is lost."""

from cluster.control_plane import ControlPlane
from operating import ALIQUOT, Agent, create, install_crds, look, operating, remove, sharepod, vgpus, wait_for


def test_a_node_of_the_stock_plugin_lends_its_gpus(control_plane: ControlPlane, namespace: str):
    """Coexist: a holder takes a GPU, SharePods share it, then it idles for its time and goes back; none is lost."""
    install_crds(control_plane)
    (node,) = control_plane.fake_nodes(1, "v100", gpus=2, prefix="stock")
    agent = Agent(control_plane, node, 2)
    with operating(control_plane, 8782, "--gpus", "coexist", "--pool", "hybrid:4"):
        create(control_plane, namespace, sharepod("a", "0.5"), sharepod("b", "0.4"), sharepod("c", "0.9"))

        def phases() -> list[str]:
            agent.look()
            found = [look(control_plane, namespace, name).get("status", {}).get("phase", "") for name in "abc"]
            assert len(agent.holders()) <= 2
            return found

        wait_for(phases, lambda seen: seen == ["Running"] * 3, "not all run", 40)
        uuids = [look(control_plane, namespace, name)["status"]["gpuUUID"] for name in "abc"]
        assert uuids[0] == uuids[1] != uuids[2]
        wait_for(lambda: phase_set(control_plane), lambda seen: seen == {"Active"}, "not Active")
        remove(control_plane, namespace, "c")
        wait_for(lambda: phase_set(control_plane), lambda seen: seen == {"Active", "Idle"}, "not Idle")

        name = look(control_plane, namespace, "a")["status"]["gpuID"]
        control_plane.api.delete(f"{ALIQUOT}/vgpus/{name}")
        wait_for(lambda: vgpus(control_plane), lambda seen: name in seen, "a vGPU with somebody on it stays gone")
        assert "Running" == control_plane.pod(namespace, "a")["status"]["phase"]

        remove(control_plane, namespace, "a", "b")

        def left() -> int:
            agent.look()
            return len(agent.holders()) + len(vgpus(control_plane))

        wait_for(left, lambda count: count == 0, "the GPUs are not given back", 30)
    control_plane.remove_nodes([node])


def phase_set(plane: ControlPlane) -> set[str]:
    """The phases of all vGPUs."""
    return {vgpu.get("status", {}).get("phase", "") for vgpu in vgpus(plane).values()}
