"""Models of text: causal, equal to torch's own LSTM and attention, and the same for many clients at once."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import vmap

from fedflat.core.task import Batch
from fedflat.core.tasks import IGNORED, NextToken
from fedflat.models import TEXT_MODELS, build_model
from fedflat.models.text import CausalAttention, LSTMBody

LENGTH, TOKENS = 6, 11


def model(name: str) -> nn.Module:
    torch.manual_seed(0)
    return build_model(name, (LENGTH, 1, 1), TOKENS).double()


def tokens(*shape: int) -> Tensor:
    return torch.randint(TOKENS, shape, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("name", TEXT_MODELS)
def test_no_position_sees_a_later_one(name: str) -> None:
    x = tokens(2, LENGTH)
    changed = x.clone()
    changed[:, 3] = (x[:, 3] + 1) % TOKENS
    with torch.no_grad():
        before, after = model(name)(x), model(name)(changed)
    assert before.shape == (2, LENGTH, TOKENS)
    assert torch.equal(before[:, :3], after[:, :3])
    assert not torch.isclose(before[:, 3:], after[:, 3:]).all(-1).any()


@pytest.mark.parametrize("name", TEXT_MODELS)
def test_many_clients_at_once_have_the_gradients_of_each(name: str) -> None:
    task = NextToken(model(name))
    start = task.flatten(dict(task.model.named_parameters())).detach()
    w = torch.stack([start, 1.1 * start])
    y = tokens(2, 3, LENGTH).roll(-1, -1)
    y[1, 0, 4:] = IGNORED
    mask = torch.tensor([[True, True, False], [True, True, True]])
    batch = Batch(tokens(2, 3, LENGTH), y, mask, torch.zeros(2, 3, dtype=torch.int64), torch.zeros(2), torch.ones(2))
    together = vmap(task.grad)(w, batch)
    for k in range(2):
        alone = task.grad(w[k], Batch(*(t[k] for t in batch)))
        torch.testing.assert_close(together[k], alone, rtol=0, atol=1e-12)


def test_the_lstm_is_torchs() -> None:
    body, theirs = LSTMBody(TOKENS, 5).double(), nn.LSTM(5, 5, batch_first=True).double()
    state = {"weight_ih_l0": body.input.weight, "weight_hh_l0": body.recurrent.weight, "bias_ih_l0": body.input.bias}
    theirs.load_state_dict(state | {"bias_hh_l0": torch.zeros(20)})
    x = tokens(3, LENGTH)
    torch.testing.assert_close(body(x), theirs(body.embed(x))[0], rtol=0, atol=1e-12)


def test_the_attention_is_torchs() -> None:
    layer, x = CausalAttention(8, 2).double(), torch.randn(3, LENGTH, 8, dtype=torch.float64)
    query, key, value = (layer._split(f(x)) for f in (layer.q_proj, layer.k_proj, layer.v_proj))
    theirs = F.scaled_dot_product_attention(query, key, value, is_causal=True)
    torch.testing.assert_close(layer(x), layer.o_proj(theirs.transpose(1, 2).flatten(2)), rtol=0, atol=1e-12)


def test_parameter_counts() -> None:
    counts = {name: sum(p.numel() for p in build_model(name, (64, 1, 1), 256).parameters()) for name in TEXT_MODELS}
    assert counts == {"char-transformer": 84_544, "char-lstm": 66_048}
