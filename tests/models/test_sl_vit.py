"""SL-ViT's own parts: shifted patches, no attention of a token to itself, a learnable temperature."""

from __future__ import annotations

import pytest
import torch

from fedflat.models.vit import Attention, add_shifted_copies, cut_patches, sl_vit


def test_shifts_are_by_one_pixel_and_zero_filled():
    x = torch.arange(1.0, 10).reshape(1, 1, 3, 3)
    image, right, left, down, up = add_shifted_copies(x)[0]
    assert torch.equal(image, x[0, 0])
    assert right.tolist() == [[0, 1, 2], [0, 4, 5], [0, 7, 8]]
    assert left.tolist() == [[2, 3, 0], [5, 6, 0], [8, 9, 0]]
    assert down.tolist() == [[0, 0, 0], [1, 2, 3], [4, 5, 6]]
    assert up.tolist() == [[4, 5, 6], [7, 8, 9], [0, 0, 0]]


def test_patches_are_the_tiles_of_the_image_row_by_row():
    x = torch.randn(2, 5, 8, 12)
    tiles = cut_patches(x)
    assert tiles.shape == (2, 16, 5 * 2 * 3)
    assert torch.equal(tiles[1, 6], x[1, :, 2:4, 6:9].flatten())  # second row, third column


def test_no_token_attends_to_itself():
    query, key = torch.randn(2, 12, 17, 64), torch.randn(2, 12, 17, 64)
    weights = Attention().weights(query, key)
    assert not weights.diagonal(dim1=-2, dim2=-1).any()
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 12, 17))
    assert (weights > 0).sum() == 2 * 12 * 17 * 16


def test_temperature_is_learnt_and_starts_at_the_usual_scale():
    attention = Attention()
    assert attention.temperature.exp().item() == pytest.approx(64**-0.5)
    attention(torch.randn(2, 17, 192)).square().sum().backward()
    assert attention.temperature.grad != 0


def test_a_hot_temperature_makes_attention_uniform():
    attention = Attention()
    with torch.no_grad():
        attention.temperature.fill_(-50)
        weights = attention.weights(torch.randn(1, 1, 5, 64), torch.randn(1, 1, 5, 64))
    torch.testing.assert_close(weights[0, 0], (1 - torch.eye(5)) / 4)


def test_features_are_the_class_token_and_the_head_normalises_them():
    model = sl_vit((3, 8, 8), 10)
    features = model.features(torch.randn(2, 3, 8, 8))
    assert features.shape == (2, 192)
    torch.testing.assert_close(model.head(features), model.head(3 * features + 1), rtol=1e-3, atol=1e-3)
