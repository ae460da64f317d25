"""The step that a GPU takes, traced without one: which kernels it runs, and that they begin to compile."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
import torch

import fedflat as ff
from fedflat.core.state import tree_map
from fedflat.engine.kernels import lanes
from fedflat.engine.lane_training import Lanes, StepPlan
from fedflat.engine.tracing import trace_operations
from fedflat.runs.build import build_run
from fedflat.runs.training import Training

pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")


@pytest.fixture
def kernels_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Let tensors on the CPU take the way of a GPU's, and return the names of the kernels that begin to compile."""
    from fedflat.engine.kernels import launch, run

    compiling: list[str] = []

    class Compilers:
        def submit(self, function: object, kernel: object, *args: object) -> None:
            compiling.append(kernel.__name__)

    ways = {
        "has_triton_kernel": lambda t, other, how: lanes._is_dense(how),
        "suits_patches": lambda *args: False,
        "lane_conv": lambda x, w, b, *how: launch.launch_conv(x, w, b, how[1]),
        "lane_input_grad": lambda g, w, size, *how: launch.launch_input_grad(g, w, how[1]),
        "lane_weight_grad": lambda g, x, size, *how: launch.launch_weight_grad(g, x, size, how[1]),
        "lane_conv_pool": launch.launch_conv_pool,
        "lane_spread": launch.launch_spread,
    }
    for name, way in ways.items():
        monkeypatch.setattr(lanes, name, way)
    monkeypatch.setattr(run, "_compilers", Compilers())
    monkeypatch.setattr(run, "_compiled", {})
    return compiling


@pytest.mark.parametrize(
    ("model", "operators"),
    [("fedavg-cnn", {"conv", "conv_pool", "spread", "weight_grad"}), ("resnet10", {"conv", "weight_grad"})],
)
def test_every_kernel_of_the_step_begins_to_compile_while_it_is_traced(
    model: str, operators: set[str], kernels_on_a_cpu: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    graphs = []

    def traced(self: Lanes, plan: StepPlan) -> None:
        plans, time = tree_map(lambda t: t.new_zeros(2, *t.shape), plan), torch.zeros(1, dtype=torch.int64)
        graphs.append(trace_operations(self._step_in_place, self.carry, self.message, self.numbers, plans, time))
        raise KeyboardInterrupt

    monkeypatch.setattr(Lanes, "_trace_step", traced)
    images = torch.zeros(24, 3, 32, 32, dtype=torch.uint8)
    labels = torch.arange(24) % 10
    data = ff.Dataset("zeros", images, labels, images, labels, classes=10)
    setting = {"clients": 4, "cohort": 2, "batch_size": 2, "local_epochs": None, "local_steps": 1, "partition": "iid"}
    job = ff.Experiment(dataset=data, model=model, precision="bf16", engine="batched", device="cpu", **setting)
    with pytest.raises(KeyboardInterrupt):
        Training(job, build_run(job), None).play_round()
    found = {str(node.target).split(".")[1] for node in graphs[0].graph.nodes if "fedflat" in str(node.target)}
    assert found == {f"tile_{name}" for name in operators}
    kernels = operators - {"conv_pool"} | {"add_parts"}  # pooling is in the kernel of the convolution
    assert set(kernels_on_a_cpu) == {f"{name}_kernel" for name in kernels}
