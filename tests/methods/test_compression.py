"""Compression: what an encoder would send, what is drawn, what error feedback keeps, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_problem as tiny
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.func import vmap

import fedflat as ff
from fedflat.core.local_training import count_traffic, local_update, reply_key
from fedflat.core.random import hash_words
from fedflat.core.state import tree_map
from fedflat.methods.compression import BLOCK

QUANTISERS = [ff.Compressed(bits=bits) for bits in (1, 4, 8)]
KEYS = hash_words(torch.arange(400), 1)


def draws(method: ff.Compressed, v: Tensor) -> Tensor:
    """What 400 clients with the same v send, [400, P]."""
    return vmap(lambda key: method.compress(v, key))(KEYS)


@st.composite
def vectors(draw: Any) -> Tensor:
    """Vectors with few large entries, with equal ones, and of every scale."""
    generator = torch.Generator().manual_seed(draw(st.integers(0, 10**6)))
    entries = draw(st.sampled_from([2, 35, BLOCK, BLOCK + 1, 700]))
    v = torch.randn(entries, generator=generator, dtype=torch.float64) ** draw(st.sampled_from([0, 1, 3, 9]))
    v[torch.rand(entries, generator=generator) < draw(st.sampled_from([0.0, 0.5, 0.99]))] = 0.0
    return v * 10.0 ** draw(st.integers(-6, 6))


@settings(max_examples=25, deadline=None)
@given(vectors(), st.sampled_from(QUANTISERS))
def test_the_error_is_shorter_than_the_vector(v: Tensor, method: ff.Compressed) -> None:
    """On average over draws, as error feedback needs: otherwise errors would grow from round to round."""
    assert float((draws(method, v) - v).square().sum(1).mean()) <= 1.02 * float(v.square().sum())


@settings(max_examples=15, deadline=None)
@given(vectors(), st.sampled_from(["randomk", 1, 4, 8]))
def test_without_error_feedback_draws_are_right_on_average(v: Tensor, kind: Any) -> None:
    options: dict[str, Any] = {"compressor": "randomk", "keep": 0.3} if kind == "randomk" else {"bits": kind}
    bias = (draws(ff.Compressed(error_feedback=False, **options), v).mean(0) - v).abs()
    step = v.abs().max() * 2 / max(2**kind - 2, 1) if kind != "randomk" else 2 * v.abs()
    assert bool((bias <= 0.25 * step).all())  # ten standard deviations of a mean of 400, for the quantisers


@pytest.mark.parametrize("entries", [2, 35, 700])
def test_topk_keeps_the_largest(entries: int) -> None:
    v = torch.randn(entries, generator=torch.Generator().manual_seed(0)).double()
    sent, k = ff.Compressed(compressor="topk", keep=0.1).compress(v, KEYS[0]), -(-entries // 10)
    assert int((sent != 0).sum()) == k
    assert torch.equal(sent[sent != 0].abs().sort().values, v.abs().sort().values[-k:])


def encode(method: ff.Compressed, v: Tensor) -> tuple[bytes, np.ndarray]:
    """Write C(v) [P] as bytes, and return them with what a reader makes of them."""
    sent = method.compress(v, KEYS[0]).numpy()
    if method.compressor == "quantise":
        return encode_levels(method.bits, sent)
    where = np.flatnonzero(sent)
    values = sent[where].tobytes()
    width = (len(sent) - 1).bit_length()
    places = pack(where, width) if method.compressor == "topk" else int(KEYS[0]).to_bytes(8, "little", signed=True)
    read = np.zeros_like(sent)
    if method.compressor == "topk":
        read[unpack(places, width, len(where))] = np.frombuffer(values, sent.dtype)
    else:
        read[where] = np.frombuffer(values, sent.dtype)  # the reader chooses again with the key
    return values + places, read


def encode_levels(bits: int, sent: np.ndarray) -> tuple[bytes, np.ndarray]:
    blocks = np.pad(sent, (0, -len(sent) % BLOCK)).reshape(-1, BLOCK)
    scales, steps = np.abs(blocks).max(1), max(2**bits - 2, 1)
    levels = np.rint((blocks / np.maximum(scales, 1e-300)[:, None] + 1) / 2 * steps).astype(int).reshape(-1)
    packed = pack(levels[: len(sent)], bits)
    read = unpack(packed, bits, len(sent)) * (2 / steps) - 1
    return scales.tobytes() + packed, read * np.repeat(scales, BLOCK)[: len(sent)]


def pack(numbers: np.ndarray, width: int) -> bytes:
    return np.packbits((numbers[:, None] >> np.arange(width) & 1).astype(np.uint8).reshape(-1)).tobytes()


def unpack(packed: bytes, width: int, count: int) -> np.ndarray:
    bits = np.unpackbits(np.frombuffer(packed, np.uint8))[: count * width].reshape(count, width)
    return (bits.astype(int) << np.arange(width)).sum(1)


@pytest.mark.parametrize("entries", [300, 1000])
@pytest.mark.parametrize(
    "method",
    [*QUANTISERS, ff.Compressed(compressor="topk", keep=0.1), ff.Compressed(compressor="randomk", keep=0.1)],
    ids=["1", "4", "8", "topk", "randomk"],
)
def test_the_bytes_are_those_of_an_encoder(method: ff.Compressed, entries: int) -> None:
    v = torch.randn(entries, generator=torch.Generator().manual_seed(0))
    message, read = encode(method, v)
    assert len(message) == method.encoded_bytes(v)
    np.testing.assert_allclose(read, method.compress(v, KEYS[0]).numpy(), rtol=1e-5, atol=1e-7)


def test_traffic_counts_encoded_replies() -> None:
    model, dense = torch.zeros(10_000), 40_000
    assert count_traffic(ff.Compressed(bits=1), model) == (dense, 1250 + 40 * 4, dense)
    assert count_traffic(ff.ServerMomentum(inner=ff.Compressed(bits=4)), model).up == 5000 + 40 * 4
    assert count_traffic(ff.Compressed(inner=ff.FedNova(), bits=8), model).up == 10_000 + 40 * 4 + 4
    assert count_traffic(ff.FedExP(inner=ff.Compressed(bits=8)), model).up == 10_000 + 40 * 4 + 4
    assert count_traffic(ff.Compressed(compressor="topk", keep=0.01), model).up == 100 * 4 + 175
    assert count_traffic(ff.Compressed(compressor="topk", keep=1.0), model).up == dense


def test_what_is_left_out_is_sent_later() -> None:
    """Over any number of rounds, the sum of what was sent and the error kept are the sum of all replies."""
    method, task, source = ff.Compressed(inner=ff.FedNova(), bits=1), tiny.task(), tiny.client_data()
    message, client = method.broadcast(method.init_server(tiny.params())), method.init_client(tiny.params())
    plan = source.plan([0], 0, [2])
    batch = source.batch(type(plan)(*(t[0, 0] for t in plan)))
    sent, wanted = [], []
    for r in range(3):
        batches = [batch._replace(x=batch.x + r, step=batch.x.new_tensor(0), steps=batch.x.new_tensor(1))]
        _, reply, client = local_update(method, task, tiny.sgd(), message, client, batches)
        sent.append(reply)
        wanted.append(local_update(method.inner, task, tiny.sgd(), message, (), batches)[1])
    total = tree_map(lambda *parts: sum(parts), *sent, client.error)
    for ours, theirs in zip(total, tree_map(lambda *parts: sum(parts), *wanted), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)


def test_every_client_and_exchange_draws_its_own_numbers() -> None:
    source = tiny.client_data()
    plans = [source.plan([0, 0, 1], r, [0, 1, 0], exchange) for r in range(3) for exchange in range(2)]
    keys = torch.cat([reply_key(plan.key[:, 0]) for plan in plans])
    assert len(keys.unique()) == len(keys) == 18


def test_the_example_of_the_docs(capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).parents[2] / "docs" / "methods" / "compress.md").read_text(encoding="utf-8")
    code = page.split("```python\n")[1].split("```")[0]
    exec(code, {})
    assert capsys.readouterr().out.strip() == code.rsplit("# ", 1)[1].strip()


def test_refusals() -> None:
    with pytest.raises(ff.UserError, match="method compress: the errors of two exchanges"):
        ff.Experiment(method=ff.Compressed(inner=ff.NaiveFedGloSS())).check()
    ff.Experiment(method=ff.Compressed(inner=ff.NaiveFedGloSS(), error_feedback=False)).check()
    with pytest.raises(ff.UserError, match="bits=3: must be one of 1, 4, 8"):
        ff.Experiment(method=ff.Compressed(bits=3)).check()  # type: ignore[arg-type]
    with pytest.raises(ff.UserError, match="method compress: changes replies after dpfedavg"):
        ff.Experiment(method=ff.Compressed(inner=ff.Private())).check()
