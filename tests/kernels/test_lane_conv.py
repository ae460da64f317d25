"""The convolution over lanes against F.conv2d and its gradients: on a CPU, traced, and with the Triton kernels."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.grad import conv2d_weight

from fedflat.engine.kernels import LaneConv2d, LaneConvPool, lanes, use_lane_ops
from fedflat.engine.kernels.conv import conv2d, conv_pool2d
from fedflat.engine.tracing import trace_operations
from fedflat.models import MODELS

HOW = {
    "plain": ((1, 1), (0, 0), (1, 1), 1),
    "padded": ((1, 1), (2, 1), (1, 1), 1),
    "strided": ((2, 1), (1, 1), (1, 1), 1),
    "dilated": ((1, 1), (2, 2), (2, 2), 1),
    "grouped": ((1, 1), (1, 1), (1, 1), 2),
}


@pytest.fixture(params=["patches", "loop"])
def _cpu_algorithm(request, monkeypatch):
    """Both algorithms of the CPU: the matrix of patches, and the loop over lanes if that would be too large."""
    if request.param == "loop":
        monkeypatch.setattr(lanes, "MAX_PATCH_ENTRIES", 0)


def problem(groups: int, count: int = 3, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    """Return images, filters and biases; filters and biases are views of one flat matrix, as in training."""
    generator = torch.Generator().manual_seed(count + groups)
    x = torch.randn(count, 2, 4, 7, 6, generator=generator, dtype=dtype)
    size = 6 * (4 // groups) * 9
    flat = torch.randn(count, size + 11, generator=generator, dtype=dtype)
    return x, flat[:, :size].view(count, 6, 4 // groups, 3, 3), flat[:, size : size + 6]


def gradients(conv, x: Tensor, w: Tensor, b: Tensor | None, how, dims=0) -> tuple[Tensor, ...]:
    """Return the gradient of Σ sin(conv(x, w, b)) with respect to every tensor, for each lane."""
    given = (x, w) if b is None else (x, w, b)

    def loss(*given: Tensor) -> Tensor:
        return conv(*given, *(() if len(given) == 3 else (None,)), *how).sin().sum()

    return vmap(grad(loss, tuple(range(len(given)))), in_dims=dims)(*given)


@pytest.mark.usefixtures("_cpu_algorithm")
@pytest.mark.parametrize("how", HOW.values(), ids=HOW)
@pytest.mark.parametrize("bias", [True, False])
def test_gradients_under_vmap_are_those_of_conv2d(how, bias):
    x, w, b = problem(how[3])
    got = gradients(conv2d, x, w, b if bias else None, how)
    expected = gradients(F.conv2d, x, w, b if bias else None, how)
    torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("dims", [(0, None, None), (None, 0, 0), (0, None, 0), (0, 0, None)])
def test_tensors_may_be_shared_by_all_lanes(dims):
    given = [t if d == 0 else t[0] for t, d in zip(problem(1), dims, strict=True)]
    got, expected = (gradients(conv, *given, HOW["padded"], dims=dims) for conv in (conv2d, F.conv2d))
    torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-10)


def test_float32_agrees_within_rounding():
    x, w, b = problem(1, dtype=torch.float32)
    got = gradients(conv2d, x, w, b, HOW["padded"])
    expected = gradients(F.conv2d, x.double(), w.double(), b.double(), HOW["padded"])
    torch.testing.assert_close(got, tuple(t.float() for t in expected), rtol=1e-4, atol=1e-4)


def test_more_padding_than_the_filters_reach():
    x, w, b = problem(1)
    how = ((1, 1), (3, 4), (1, 1), 1)
    got, expected = (gradients(conv, x, w, b, how) for conv in (conv2d, F.conv2d))
    torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("first", [0, 1], ids=["of the input gradient", "of the weight gradient"])
def test_second_derivatives_exist(first):
    x, w, _ = problem(1, count=1)
    how = HOW["padded"]

    def curved(conv):
        slope = grad(lambda x, w: conv(x, w, None, *how).sin().sum(), first)
        return grad(lambda x, w: slope(x, w).square().sum(), (0, 1))

    torch.testing.assert_close(curved(conv2d)(x[0], w[0]), curved(F.conv2d)(x[0], w[0]), rtol=1e-9, atol=1e-9)


def test_without_vmap_the_backward_pass_matches_too():
    x, w, b = (t[0].clone().requires_grad_() for t in problem(1))
    assert torch.autograd.gradcheck(lambda *t: conv2d(*t, *HOW["strided"]), (x, w, b))


@pytest.mark.parametrize("mode", ["real", "fake"])
def test_a_traced_step_has_one_operator_for_each_pass(mode):
    x, w, b = problem(1)
    step = make_fx(lambda *given: gradients(conv2d, *given, HOW["strided"]), tracing_mode=mode)(x, w, b)
    names = [str(n.target) for n in step.graph.nodes if "fedflat" in str(n.target)]
    assert names == ["fedflat.lane_conv.default", "fedflat.lane_conv_input_grad.default",
                     "fedflat.lane_conv_weight_grad.default"]  # fmt: skip
    torch.testing.assert_close(step(x, w, b), gradients(F.conv2d, x, w, b, HOW["strided"]), rtol=1e-10, atol=1e-10)


def test_a_convolution_and_its_weight_gradient_share_their_patches():
    x, w, b = problem(1)
    step = trace_operations(lambda *given: gradients(conv2d, *given, HOW["padded"]), x, w, b)
    names = [str(n.target) for n in step.graph.nodes]
    assert not any("fedflat" in name for name in names)
    assert names.count("aten.unfold.default") == 2 * 2  # the patches of x, which serve twice, and those of g
    torch.testing.assert_close(step(x, w, b), gradients(F.conv2d, x, w, b, HOW["padded"]), rtol=1e-10, atol=1e-10)


def test_operations_that_write_are_not_merged():
    def count_twice(x):
        first, second = torch.zeros(3), torch.zeros(3)
        return first.add_(x), second.add_(2 * x)

    x = torch.arange(3.0)
    once, twice = trace_operations(count_twice, x)(x)
    assert torch.equal(twice, 2 * once)


def test_operations_before_a_write_into_an_input_are_merged():
    def double(x, y):
        x.copy_((x + y) * (x + y))
        return x + y

    x, y = torch.arange(3.0), torch.ones(3)
    traced = trace_operations(double, x.clone(), y)
    assert [str(n.target) for n in traced.graph.nodes].count("aten.add.Tensor") == 2  # before and after the write
    assert torch.equal(traced(x.clone(), y), (x + y).square() + y)


@pytest.mark.usefixtures("_cpu_algorithm")
@pytest.mark.parametrize("how", HOW.values(), ids=HOW)
def test_grouped_convolutions_equal_those_lane_by_lane(how):
    x, w, b = problem(how[3])
    y = lanes.lane_conv(x, w, b, *how)
    torch.testing.assert_close(lanes.grouped_conv(x, w, b, *how), y)
    torch.testing.assert_close(lanes.grouped_input_grad(y, w, [7, 6], *how), lanes.lane_input_grad(y, w, [7, 6], *how))
    torch.testing.assert_close(
        lanes.grouped_weight_grad(y, x, [3, 3], *how), lanes.lane_weight_grad(y, x, [3, 3], *how)
    )


@pytest.mark.usefixtures("_cpu_algorithm")
@pytest.mark.parametrize("how", HOW.values(), ids=HOW)
def test_fake_tensors_have_the_shapes_and_strides_of_real_ones(how):
    x, w, b = problem(how[3])
    y = lanes.lane_conv(x, w, b, *how)
    pairs = [
        (y, lanes.empty_conv(x, w, b, *how)),
        (lanes.lane_input_grad(y, w, [7, 6], *how), lanes.empty_input_grad(y, w, [7, 6], *how)),
        (lanes.lane_weight_grad(y, x, [3, 3], *how), lanes.empty_weight_grad(y, x, [3, 3], *how)),
    ]
    assert [(a.shape, a.stride()) for a, _ in pairs] == [(a.shape, a.stride()) for _, a in pairs]


def test_a_model_keeps_its_parameters_and_function():
    model = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 2, 3, padding="same"), nn.Flatten())
    fast = use_lane_ops(model)
    kinds = [type(m) for m in fast]
    assert kinds == [LaneConv2d, nn.ReLU, nn.Conv2d, nn.Flatten]
    assert type(model[0]) is nn.Conv2d
    x = torch.randn(2, 3, 5, 5)
    torch.testing.assert_close(functional_call(fast, dict(model.named_parameters()), x), model(x))


@pytest.mark.parametrize("pool", [nn.MaxPool2d(2), nn.MaxPool2d((2, 2), stride=2)], ids=["2", "pair"])
def test_convolution_relu_and_pooling_become_one_layer(pool):
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), pool, nn.Conv2d(4, 2, 1), nn.ReLU(), nn.MaxPool2d(3))
    fast = use_lane_ops(model)
    assert [type(m) for m in fast][:4] == [LaneConvPool, nn.Identity, nn.Identity, LaneConv2d]
    assert type(fast[5]) is nn.MaxPool2d
    x = torch.randn(2, 3, 11, 10, dtype=torch.float64)
    params = {name: p.detach().double() for name, p in model.named_parameters()}
    got, expected = (grad(lambda p, m: functional_call(m, p, x).sin().sum())(params, m) for m in (fast, model))
    torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-10)


def separate_layers(x: Tensor, w: Tensor, b: Tensor | None, padding: tuple[int, ...]) -> Tensor:
    return F.max_pool2d(F.conv2d(x, w, b, padding=padding).relu(), 2)


@pytest.mark.parametrize("padding", [(0, 0), (2, 1)], ids=["odd", "even"])
@pytest.mark.parametrize("wanted", [(1,), (1, 2), (0, 1), (0, 1, 2)], ids=str)
def test_pooled_convolutions_have_the_gradients_of_their_layers(padding, wanted):
    """`wanted` are the differentiated inputs: not x for a first layer; there is a bias only if it is one of them."""

    def slopes(op):
        def loss(x, w, b):
            return op(x, w, b if 2 in wanted else None, padding).sin().sum()

        return vmap(grad(loss, wanted))(*problem(1))

    torch.testing.assert_close(slopes(conv_pool2d), slopes(separate_layers), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("first", [True, False], ids=["first layer", "later layer"])
def test_pooled_convolutions_have_second_derivatives(first):
    x, w, b = (t[0] for t in problem(1, count=1))

    def curved(op):
        inner = (1,) if first else (0, 1)

        def length(x, w):
            slope = grad(lambda x, w: op(x, w, b, (2, 1)).sin().sum(), inner)(x, w)
            return sum(part.square().sum() for part in slope)

        return grad(length, (0, 1))(x, w)

    torch.testing.assert_close(curved(conv_pool2d), curved(separate_layers), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("dims", [(0, None, None), (None, 0, 0), (0, 0, None)])
def test_pooled_convolutions_share_tensors(dims):
    given = [t if d == 0 else t[0] for t, d in zip(problem(1), dims, strict=True)]
    got, expected = (
        vmap(grad(lambda x, w, b: op(x, w, b, (2, 1)).sin().sum(), (1, 2)), in_dims=dims)(*given)
        for op in (conv_pool2d, separate_layers)
    )
    torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-10)


def _run_script(name: str, *words: str, **environment: str) -> None:
    """Run a script in its own process, because Triton chooses interpreter or compiler when it is imported."""
    if find_spec("triton") is None:
        pytest.skip("Triton is not installed")
    command = [sys.executable, str(Path(__file__).with_name(name)), *words]
    done = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_triton_kernels_in_the_interpreter():
    _run_script("interpret_conv.py", TRITON_INTERPRET="1")


@pytest.mark.parametrize("capability", ["89", "90"])
def test_triton_kernels_compile_for_other_gpus(tmp_path, capability):
    _run_script("compile_conv.py", capability, TRITON_CACHE_DIR=str(tmp_path))


def test_triton_kernels_are_compiled_while_a_step_is_traced(tmp_path):
    _run_script("compile_ahead.py", TRITON_CACHE_DIR=str(tmp_path))


TOLERANCE = {torch.bfloat16: 0.1, torch.float16: 1e-2, torch.float32: 1e-2, torch.float64: 1e-12}


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("how", HOW.values(), ids=HOW)
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_on_a_gpu_shapes_and_strides_are_those_of_fake_tensors(how, dtype):
    x, w, b = (t.to("cuda", dtype) for t in problem(how[3]))
    y = lanes.lane_conv(x, w, b, *how)
    pairs = [
        (y, lanes.empty_conv(x, w, b, *how)),
        (lanes.lane_input_grad(y, w, [7, 6], *how), lanes.empty_input_grad(y, w, [7, 6], *how)),
        (lanes.lane_weight_grad(y, x, [3, 3], *how), lanes.empty_weight_grad(y, x, [3, 3], *how)),
    ]
    assert [(a.shape, a.stride()) for a, _ in pairs] == [(a.shape, a.stride()) for _, a in pairs]
    got = gradients(conv2d, x, w, b, how)
    for a, e in zip(got, gradients(F.conv2d, x.double(), w.double(), b.double(), how), strict=True):
        assert (a - e).norm() / e.norm() < TOLERANCE[dtype]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("padding", [(0, 0), (2, 1)], ids=["odd", "even"])
@pytest.mark.parametrize("wanted", [(1, 2), (0, 1, 2)], ids=["first layer", "later layer"])
@pytest.mark.parametrize("channels", [3, 24, 32, 64])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_on_a_gpu_pooled_convolutions_agree(padding, wanted, channels, dtype):
    """With small integers sums are exact, so that equal values choose the same corner."""
    generator = torch.Generator("cuda").manual_seed(channels)
    kind = {"generator": generator, "device": "cuda", "dtype": torch.float64}
    x = torch.randint(-4, 5, (3, 4, channels, 11, 10), **kind)
    w = torch.randint(-2, 3, (3, 40, channels, 3, 3), **kind)
    b = torch.randint(-9, 10, (3, 40), **kind)

    def slopes(op, *given):
        return vmap(grad(lambda x, w, b: op(x, w, b, padding).square().sum() / 4096, wanted))(*given)

    got = slopes(conv_pool2d, *(t.to(dtype) for t in (x, w, b)))
    for a, e in zip(got, slopes(separate_layers, x, w, b), strict=True):
        assert (a - e).norm() / e.norm() < TOLERANCE[dtype] / 5


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("channels", [3, 24, 32, 64])
def test_on_a_gpu_weight_gradients_lose_little_where_float32_is_multiplied_fast(channels, monkeypatch):
    monkeypatch.setattr(torch.backends.cuda.matmul, "allow_tf32", True)
    generator = torch.Generator("cuda").manual_seed(channels)
    kind = {"generator": generator, "device": "cuda"}
    x, g = torch.randn(3, 4, channels, 12, 10, **kind), torch.randn(3, 4, 40, 12, 10, **kind)
    pooled, corner = torch.randn(3, 4, 40, 6, 5, **kind), torch.randint(0, 4, (3, 4, 40, 6, 5), **kind).to(torch.uint8)
    spread = lanes.lane_spread(pooled.flatten(0, 1), corner.flatten(0, 1), [12, 10]).unflatten(0, (3, 4))
    calls = {"plain": lambda: lanes.lane_weight_grad(g, x, [3, 3], (1, 1), (1, 1), (1, 1), 1)}
    calls["pooled"] = lambda: lanes.lane_pool_weight_grad(pooled, corner, x, [3, 3], [1, 1])
    for name, upstream in (("plain", g), ("pooled", spread)):
        for run in (calls[name], torch.compile(calls[name], dynamic=False)):
            got = run().double()
            pairs = zip(x.double(), upstream.double(), strict=True)
            exact = torch.stack([conv2d_weight(a, (40, channels, 3, 3), b, padding=1) for a, b in pairs])
            assert (got - exact).norm() / exact.norm() < 5e-5, (name, run)


class CallsLayersSingly(nn.Module):
    """Uses the output of every layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(2, 3, 3), nn.ReLU(), nn.MaxPool2d(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        outputs = [x := layer(x) for layer in self.layers]
        return torch.cat([y.mean((2, 3)) for y in outputs], 1)


def test_layers_that_are_called_singly_are_not_fused() -> None:
    torch.manual_seed(0)
    model, x = CallsLayersSingly(), torch.randn(4, 2, 10, 10)
    for outer in (model, nn.Sequential(model)):
        torch.testing.assert_close(use_lane_ops(outer)(x), outer(x))


@pytest.mark.parametrize("name", ["fedavg-cnn", "lenet-cnn", "digits-cnn", "pfl-cnn"])
def test_pooling_is_fused_in_our_models(name: str) -> None:
    model = use_lane_ops(MODELS[name]((3, 32, 32), 10))
    assert any(type(module) is LaneConvPool for module in model.modules())
    assert not any(type(module) is nn.MaxPool2d for module in model.modules())


def test_layers_that_are_used_several_times() -> None:
    """One ReLU for all, and a convolution that is followed by pooling once but not the second time."""
    torch.manual_seed(0)
    relu, conv = nn.ReLU(), nn.Conv2d(3, 3, 3, padding=1)
    model = nn.Sequential(
        nn.Conv2d(2, 3, 3), relu, nn.MaxPool2d(2), conv, relu, nn.MaxPool2d(2), conv, relu, nn.Flatten()
    )
    x = torch.randn(4, 2, 10, 10)
    torch.testing.assert_close(use_lane_ops(model)(x), model(x))
