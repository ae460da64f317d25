"""Augmentation compared with a slow reference for one image; its distributions; its independence of the batch."""

import numpy as np
import pytest
import torch

from fedflat.core.random import hash_words, integer_below, purpose_key
from fedflat.data.augment import augment_images, normalise
from fedflat.data.dataset import Augment

MEAN, STD = (0.49, 0.48, 0.45), (0.25, 0.24, 0.26)
SPECS = [
    Augment(crop=4),
    Augment(flip=True),
    Augment(cutout=6),
    Augment(cutout=5, flip=True),
    Augment(crop=3, reflect=True),
    Augment(crop=4, flip=True, cutout=6),
    Augment(crop=4, flip=True, cutout=6, reflect=True),
]


def _images(shape=(12, 3, 10, 9), seed=0):
    return torch.randint(0, 256, shape, generator=torch.Generator().manual_seed(seed), dtype=torch.uint8)


def _keys(*shape):
    return hash_words(0, torch.arange(int(np.prod(shape)))).view(shape)


def _draw(key, purpose, n, half=0):
    """Return a number below n from the upper (0) or the lower half (1) of the hash."""
    return int(integer_below(hash_words(key, purpose_key(purpose)) << 32 * half, n))


def _reference(image, key, spec):
    """Return what torchvision's pad, crop, flip, normalise and the usual Cutout do to one image."""
    image, (_, height, width) = image.numpy(), image.shape
    if spec.crop:
        pad = ((0, 0), (spec.crop, spec.crop), (spec.crop, spec.crop))
        top, left = (_draw(key, "crop", 2 * spec.crop + 1, half) for half in (0, 1))
        padded = np.pad(image, pad, mode="reflect" if spec.reflect else "constant")
        image = padded[:, top : top + height, left : left + width]
    if spec.flip and _draw(key, "flip", 2):
        image = image[:, :, ::-1]
    mean, std = (np.reshape(v, (-1, 1, 1)) for v in (MEAN, STD))
    image = (image / 255 - mean) / std
    if spec.cutout:
        top = _draw(key, "cutout", height) - spec.cutout // 2
        left = _draw(key, "cutout", width, half=1) - spec.cutout // 2
        image[:, max(top, 0) : max(top + spec.cutout, 0), max(left, 0) : max(left + spec.cutout, 0)] = 0
    return image


@pytest.mark.parametrize("spec", SPECS)
def test_equals_the_reference(spec):
    x, keys = _images(), _keys(12)
    expected = np.stack([_reference(image, key, spec) for image, key in zip(x, keys, strict=True)])
    double = augment_images(x, keys, spec, MEAN, STD, torch.float64)
    assert double.dtype == torch.float64
    np.testing.assert_allclose(double.numpy(), expected, rtol=0, atol=1e-13)
    np.testing.assert_allclose(augment_images(x, keys, spec, MEAN, STD).numpy(), expected, rtol=0, atol=2e-6)


@pytest.mark.parametrize("spec", SPECS)
def test_a_sample_does_not_depend_on_its_batch(spec):
    x, keys = _images(), _keys(12)
    together = augment_images(x, keys, spec, MEAN, STD)
    for i in range(len(x)):
        assert torch.equal(augment_images(x[i], keys[i], spec, MEAN, STD), together[i])
    lanes = augment_images(x.view(2, 3, 2, 3, 10, 9), keys.view(2, 3, 2), spec, MEAN, STD)
    assert torch.equal(lanes.flatten(0, 2), together)


@pytest.mark.parametrize("spec", SPECS)
def test_all_images_of_a_batch_change_alike(spec):
    """The batch is the last axis of the keys; its first key decides, so padding at its end changes nothing."""
    x, keys = _images(), _keys(12)
    batches, keys_of_batches = x.view(3, 4, 3, 10, 9), keys.view(3, 4)
    alike = augment_images(batches, keys_of_batches, spec._replace(per_batch=True), MEAN, STD)
    first_keys = keys_of_batches[:, :1].expand(3, 4)
    assert torch.equal(alike, augment_images(batches, first_keys, spec, MEAN, STD))
    shorter = augment_images(batches[:, :2], keys_of_batches[:, :2], spec._replace(per_batch=True), MEAN, STD)
    assert torch.equal(shorter, alike[:, :2])


def test_another_key_gives_another_image():
    x = _images((1, 3, 10, 9)).expand(64, -1, -1, -1)
    spec = Augment(crop=4, flip=True, cutout=6)
    first, second = (
        augment_images(x, _keys(128)[:64], spec, MEAN, STD),
        augment_images(x, _keys(128)[64:], spec, MEAN, STD),
    )
    assert torch.equal(first, augment_images(x, _keys(128)[:64], spec, MEAN, STD))
    assert (first != second).flatten(1).any(1).float().mean() > 0.95


def test_offsets_are_uniform_and_independent():
    """The one bright pixel shows where it was moved to: each of the 9 x 9 x 2 outcomes 1 time in 162."""
    n, x = 40_000, torch.zeros(1, 9, 19, dtype=torch.uint8)
    x[0, 4, 6] = 255
    out = augment_images(x.expand(n, -1, -1, -1), _keys(n), Augment(crop=4, flip=True), (0.0,), (1.0,))
    place = out.flatten(1).argmax(1)
    row, column = place // 19, place % 19
    flipped = column > 10  # column 2..10 as it is, 8..16 mirrored: 8..10 are ambiguous
    sure = (column < 8) | (column > 10)
    assert out.flatten(1).sum(1).unique().tolist() == [1.0]
    assert flipped[sure].float().mean().item() == pytest.approx(0.5, abs=0.02)
    seen = torch.bincount(row * 19 + column, minlength=171).view(9, 19).double() / n
    weight = torch.tensor([0] * 2 + [1] * 6 + [2] * 3 + [1] * 6 + [0] * 2) / 162  # P(column) / 9
    assert (seen - weight).abs().max() < 5 * (2 / 162 / n) ** 0.5


def test_cutout_centres_are_uniform():
    """A square of one pixel is its centre."""
    n, x = 20_000, torch.full((1, 6, 5), 255, dtype=torch.uint8)
    out = augment_images(x.expand(n, -1, -1, -1), _keys(n), Augment(cutout=1), (0.0,), (1.0,))
    holes = (out == 0).flatten(1)
    assert (holes.sum(1) == 1).all()
    assert (holes.double().mean(0) - 1 / 30).abs().max() < 5 * (1 / 30 / n) ** 0.5


def test_black_padding_is_black_before_normalisation_and_the_hole_is_zero_after():
    x = torch.full((200, 3, 8, 8), 255, dtype=torch.uint8)
    padded = augment_images(x, _keys(200), Augment(crop=2), MEAN, STD)
    values = [{round(v, 4) for v in padded[:, c].unique().tolist()} for c in range(3)]
    assert values == [{round(-m / s, 4), round((1 - m) / s, 4)} for m, s in zip(MEAN, STD, strict=True)]
    assert 0.0 in augment_images(x, _keys(200), Augment(cutout=4), MEAN, STD).unique().tolist()


def test_no_augmentation_is_normalisation():
    x = _images()
    assert torch.equal(augment_images(x, _keys(12), Augment(), MEAN, STD), normalise(x, MEAN, STD))


def test_normalise_of_floats_and_of_one_value_for_all_channels():
    x = torch.randn(4, 3, 5, 5, dtype=torch.float64)
    torch.testing.assert_close(normalise(x, (0.5,), (2.0,), torch.float64), (x - 0.5) / 2, rtol=0, atol=1e-15)
    features = torch.randn(7, 11)
    assert torch.equal(augment_images(features, _keys(7), Augment(), (0.0,), (1.0,)), features)
    grey = normalise(_images((2, 1, 4, 4)), (0.5,), (0.25,))
    torch.testing.assert_close(grey, (_images((2, 1, 4, 4)).float() / 255 - 0.5) / 0.25)


def test_reflection_further_than_the_image_is_wide():
    x, keys, spec = _images((8, 3, 4, 3)), _keys(8), Augment(crop=7, reflect=True)
    expected = np.stack([_reference(image, key, spec) for image, key in zip(x, keys, strict=True)])
    np.testing.assert_allclose(
        augment_images(x, keys, spec, MEAN, STD, torch.float64).numpy(), expected, rtol=0, atol=1e-13
    )


def test_the_input_is_not_changed_and_the_function_compiles_to_one_graph():
    x, keys, spec = _images(), _keys(12), Augment(crop=4, flip=True, cutout=6)
    before = x.clone()
    eager = augment_images(x, keys, spec, MEAN, STD)
    assert torch.equal(x, before)
    traced = torch.compile(augment_images, backend="eager", fullgraph=True)(x, keys, spec, MEAN, STD)
    assert torch.equal(traced, eager)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("spec", SPECS)
def test_gpu_and_cuda_graph_give_the_same_bits(spec):
    x, keys = _images(), _keys(12)
    on_gpu, keys_on_gpu = x.cuda(), keys.cuda()
    expected = augment_images(x, keys, spec, MEAN, STD)
    assert torch.equal(augment_images(on_gpu, keys_on_gpu, spec, MEAN, STD).cpu(), expected)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = augment_images(on_gpu, keys_on_gpu, spec, MEAN, STD)
    graph.replay()
    assert torch.equal(out.cpu(), expected)
    compiled = torch.compile(augment_images, fullgraph=True)(on_gpu, keys_on_gpu, spec, MEAN, STD)
    torch.testing.assert_close(compiled.cpu(), expected, rtol=0, atol=1e-6)
