"""A model as a pure function of one flat parameter vector.

Where the model computes in float16, gradients inside it are scaled up by GRADIENT_SCALE, because small ones would be
rounded to 0 there, and scaled down again where they leave it.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedflat.core.aligned import Alignment, find_alignment, split_aligned
from fedflat.core.batch import Batch, as_current_batch
from fedflat.core.layout import AnyLayout, depends_on_layout, put_channels_last
from fedflat.core.model_check import check_model
from fedflat.core.norm_statistics import (
    LayerStatistics,
    NormStatistics,
    StatisticsUse,
    join_statistics,
    named_buffers,
    split_statistics,
    tracking_layers,
    using_statistics,
)
from fedflat.errors import NOT_SHOWN, UserError

GRADIENT_SCALE = 256.0  # float16 then holds gradients between 2⁻²⁴/256 and 65504/256


class _ScaleGrad(torch.autograd.Function):
    """The identity; its backward pass multiplies the gradient by a factor."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, factor: float) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        ctx.factor = inputs[1]

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        return g * ctx.factor, None


Parameters = Tensor | Mapping[str, Tensor]  # a model: one vector [P], or tensors by name as `Task.unflatten` gives


class _Parts(nn.Module):
    """A module through which functional_call can call one part of a model: "all", "features" or "head"."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, part: str, *inputs: Any, **named: Any) -> Any:
        target = self.model if part == "all" else getattr(self.model, part)
        return target(*inputs, **named)


def tied_parameters(model: nn.Module) -> dict[str, str]:
    """Return the further names of parameters that several modules share, and the first name of each.

    A module that is used in several places has its parameters once. torch ties both kinds by name, and then leaves
    a module that is used twice without its parameters (functional_call with tie_weights).

    Args:
        model: any model.
    """
    first: dict[nn.Parameter, str] = {}
    tied = {}
    for prefix, module in model.named_modules():
        for own, parameter in module.named_parameters(prefix, recurse=False):
            if first.setdefault(parameter, own) != own:
                tied[own] = first[parameter]
    return tied


class FunctionalModel:
    """A model as a function of one flat vector w, [P], of its trained parameters.

    `shapes` has their shapes by name, in the order in which w holds them; `size` is P. Parameters with
    requires_grad=False are not part of w: all clients share one copy, `frozen`, which is never sent. `has_head` tells
    whether the model has the parts `features` and `head`, which `features` and `head` below need. `norm_layers` are the
    layers that keep running averages; without `with_statistics` they normalise by each batch's own moments.

    All functions are pure and run under torch.func.vmap, so that the same code trains one client or many at once.

    Args:
        model: gives outputs [B, ...] for inputs. A model with the attribute `takes_batch = True` is called as
            model(x, batch), any other as model(x). The values of its trained parameters are not used.
        compute: the dtype in which the model computes (float16, bfloat16); that of w unless given. Outputs are float32
            and gradients have w's dtype in any case.

    Raises:
        UserError: the model cannot be trained as a function of w, see `check_model`.
    """

    def __init__(self, model: nn.Module, compute: torch.dtype | None = None) -> None:
        check_model(model)
        self.model, self.compute = model, compute
        self._parts = _Parts(model)
        self._takes_batch = getattr(model, "takes_batch", False)
        self.has_head = hasattr(model, "features") and hasattr(model, "head")
        self.shapes = {name: p.shape for name, p in model.named_parameters() if p.requires_grad}
        self.sizes = [shape.numel() for shape in self.shapes.values()]
        self.size = sum(self.sizes)
        self.frozen = {name: p.detach() for name, p in model.named_parameters() if not p.requires_grad}
        self._frozen = {f"model.{name}": self._to_compute(p) for name, p in self.frozen.items()}
        self._tied = tied_parameters(self._parts)
        self.norm_layers = tracking_layers(model)
        self._channels = [len(layer.averages()[0]) for layer in self.norm_layers.values()]
        self._alignment: Alignment | None = None
        self.channels_last, self._any_layout = False, AnyLayout if depends_on_layout(model) else nullcontext
        self.statistics: NormStatistics | None = None
        self._updated: dict[nn.Module, LayerStatistics] | None = None

    def with_model(self, model: nn.Module, compute: torch.dtype | None = None) -> Self:
        """Return the same task with another form of the model.

        Args:
            model: a model with the same parameters.
            compute: as in the constructor.
        """
        other = type(self)(model, compute)
        return other.with_channels_last() if self.channels_last else other

    def with_channels_last(self) -> Self:
        """Return the same task, which gives images to its model with the channels last in memory.

        Shapes stay as they are. On a CPU convolutions are then a little faster and max-pooling is many times as fast.
        """
        other = copy.copy(self)
        other.channels_last, other._any_layout = True, AnyLayout
        return other

    def with_aligned_matrices(self) -> Self:
        """Return the same task, which on a GPU gives its model matrices that begin at multiples of 16 bytes."""
        other = copy.copy(self)
        other._alignment = find_alignment(self.shapes.values())
        return other

    def flatten(self, named: Mapping[str, Tensor]) -> Tensor:
        """Return named tensors as one vector, in the model's order.

        Args:
            named: all parameters, or some of them.
        """
        return torch.cat([named[name].reshape(-1) for name in self.shapes if name in named])

    def unflatten(self, w: Tensor, prefix: str = "") -> dict[str, Tensor]:
        """Return the parameters by name, as views of w in their own shapes.

        Args:
            w: the parameters whose names begin with `prefix` as one vector, [P] for all of them.
            prefix: "head." for the head alone, "" for all.
        """
        shapes = {name: shape for name, shape in self.shapes.items() if name.startswith(prefix)}
        parts = torch.split(w, [shape.numel() for shape in shapes.values()])
        return {name: part.view(shape) for part, (name, shape) in zip(parts, shapes.items(), strict=True)}

    def module(self, w: Tensor) -> nn.Module:
        """Return a copy of the model with the parameters `w`, on the CPU and in evaluation mode.

        Its layers have the running averages of `with_statistics`; without these they normalise by each batch's moments.

        Args:
            w: a model, [P].
        """
        model = copy.deepcopy(self.model)
        model.load_state_dict(self.unflatten(w.detach()) | self._buffers(), strict=False)
        for layer in tracking_layers(model).values() if self.statistics is None else ():
            layer.running_mean = layer.running_var = None
        return model.cpu().eval()

    def mask(self, prefix: str, device: torch.device | None = None) -> Tensor:
        """Return bool [P], True at the entries of w that belong to parameters whose names begin with `prefix`.

        Args:
            prefix: such as "head.".
            device: where the result is wanted.

        Raises:
            UserError: no parameter's name begins so.
        """
        if not any(name.startswith(prefix) for name in self.shapes):
            raise UserError("model", NOT_SHOWN, f"has no parameters named '{prefix}…', which the method needs")
        parts = zip(self.shapes, self.sizes, strict=True)
        return torch.cat([torch.full((n,), name.startswith(prefix), device=device) for name, n in parts])

    def outputs(self, w: Parameters, batch: Batch) -> Tensor:
        """Return the outputs [B, ...] of the model w.

        Args:
            w: the model, [P] or by name.
            batch: the samples.
        """
        return self._call_with_samples("all", w, batch)

    def features(self, w: Parameters, batch: Batch) -> Tensor:
        """Return the features [B, F] before the last layer. The model must have the parts `features` and `head`.

        Args:
            w: the model, [P] or by name.
            batch: the samples.
        """
        return self._call_with_samples("features", w, batch)

    def head(self, w: Parameters, features: Tensor) -> Tensor:
        """Return the outputs [B, ...] from features: outputs(w, b) = head(w, features(w, b)).

        Args:
            w: the model, [P] or by name.
            features: what `features` returned, [B, F].
        """
        return self._call("head", w, None, features)

    def _call_with_samples(self, part: str, w: Parameters, batch: Batch) -> Tensor:
        more = (batch,) if self._takes_batch else ()
        if isinstance(batch.x, dict):
            return self._call(part, w, batch, *more, **batch.x)
        inputs = batch.x if isinstance(batch.x, tuple) else (batch.x,)
        inputs = tuple(put_channels_last(x) if self.channels_last and x.dim() == 4 else x for x in inputs)
        return self._call(part, w, batch, *inputs, *more)

    def _call(self, part: str, w: Parameters, batch: Batch | None, *inputs: Any, **named_inputs: Any) -> Tensor:
        """Call a part of the model with the parameters w, while `batch` is the current one."""
        named = w if isinstance(w, Mapping) else self._parameters(self._to_compute(w))
        parameters = {f"model.{name}": self._to_compute(p) for name, p in named.items()}
        dtype = next(iter(parameters.values())).dtype
        parameters |= {name: p.to(dtype) if p.is_floating_point() else p for name, p in self._frozen.items()}
        inputs = tuple(self._to_compute(x, dtype) for x in inputs)
        named_inputs = {name: self._to_compute(x, dtype) for name, x in named_inputs.items()}
        parameters |= {f"model.{name}": average for name, average in self._buffers().items()}
        parameters |= {name: parameters[first] for name, first in self._tied.items() if first in parameters}
        evaluated = batch is None or batch.key is None
        running = self.statistics is not None and self._updated is None and evaluated
        use = StatisticsUse(running, self._updated)
        with as_current_batch(batch), using_statistics(use), self._any_layout():
            outputs = functional_call(self._parts, parameters, (part, *inputs), named_inputs, tie_weights=False)
        outputs = getattr(outputs, "logits", outputs)  # Hugging Face models return a structure
        return self._to_float32(outputs) if isinstance(outputs, Tensor) else outputs

    def _parameters(self, w: Tensor) -> dict[str, Tensor]:
        """Return what `unflatten` returns, aligned on a GPU if the task was made so."""
        if self._alignment is None or not w.is_cuda:
            return self.unflatten(w)
        parts = zip(split_aligned(w, self._alignment), self.shapes.items(), strict=True)
        return {name: part.view(shape) for part, (name, shape) in parts}

    def _to_compute(self, t: Any, dtype: torch.dtype | None = None) -> Any:
        """Return an input of the model in the dtype in which it computes. Its gradient is scaled down (float16).

        Whole numbers, such as tokens, and what is no tensor stay as they are. `dtype` is used if `compute` is None.
        """
        if not isinstance(t, Tensor) or not t.is_floating_point():
            return t
        if self.compute is None or t.dtype == self.compute:
            return t if dtype is None else t.to(dtype)
        return (_ScaleGrad.apply(t, 1 / GRADIENT_SCALE) if self.compute == torch.float16 else t).to(self.compute)

    def _to_float32(self, t: Tensor) -> Tensor:
        """Return an output of the model as float32 if it computes in 16 bits. Its gradient is scaled up (float16)."""
        if self.compute is None:
            return t
        return _ScaleGrad.apply(t.float(), GRADIENT_SCALE) if self.compute == torch.float16 else t.float()

    def initial_statistics(self, like: Tensor) -> NormStatistics:
        """Return the running averages with which the model was built.

        Args:
            like: a tensor with the dtype and the device that are wanted.
        """
        mean, variance = join_statistics(layer.averages() for layer in self.norm_layers.values())
        return NormStatistics(mean.to(like), variance.to(like))

    def with_statistics(self, statistics: NormStatistics | None) -> Self:
        """Return the same task, whose layers normalise by these running averages where a batch has no keys.

        Args:
            statistics: the averages of all layers; None for the moments of each batch.
        """
        other = copy.copy(self)
        other.statistics = statistics
        return other

    def next_statistics(self, w: Tensor, batch: Batch, statistics: NormStatistics) -> NormStatistics:
        """Return the running averages after a batch, from a forward pass; arguments as in `grad_and_statistics`."""
        recorder = self._recorder(statistics)
        recorder.outputs(w, batch)
        return recorder._next_statistics()

    def _recorder(self, statistics: NormStatistics) -> Self:
        """Return the same task, whose layers write down their next averages."""
        recorder = self.with_statistics(statistics)
        recorder._updated = {}
        return recorder

    def _next_statistics(self) -> NormStatistics:
        """Return what the layers wrote down; the averages of layers that were not called stay."""
        updated = self._updated or {}
        before = zip(self.norm_layers.values(), self._layer_statistics(), strict=True)
        return join_statistics(updated.get(layer, averages) for layer, averages in before)

    def _layer_statistics(self) -> list[LayerStatistics]:
        """Return the running averages of each layer; none without `with_statistics`."""
        return [] if self.statistics is None else split_statistics(self.statistics, self._channels)

    def _buffers(self) -> dict[str, Tensor]:
        """Return the running averages as the model's buffers, by name; none without `with_statistics`."""
        return {} if self.statistics is None else named_buffers(self.norm_layers, self._layer_statistics())
