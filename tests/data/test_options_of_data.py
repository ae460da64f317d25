"""Options that change which samples a client has and how they are augmented give the same run in both engines."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import fedflat as ff
from fedflat.runs.build import build_run

SMALL = {"clients": 12, "cohort": 3, "rounds": 2, "local_epochs": 2, "batch_size": 8, "lr": 0.1}
LONG_TAIL = {"partition": "lda-equal", "alpha": 0.1, "long_tail": 0.5, "augment": "crop-flip-batch"}


@pytest.mark.parametrize("option", LONG_TAIL)
def test_engines_agree(option: str, tmp_path: Path) -> None:
    options = SMALL | {option: LONG_TAIL[option]}
    for engine in ("sequential", "batched"):
        ff.run(ff.Experiment(**options, engine=engine), out=tmp_path / engine)  # type: ignore[arg-type]
    one, other = (ff.load_model(tmp_path / engine) for engine in ("sequential", "batched"))
    for a, b in zip(one.parameters(), other.parameters(), strict=True):
        assert torch.allclose(a, b, atol=1e-5)


def test_a_long_tail_comes_before_the_partition() -> None:
    built = build_run(ff.Experiment(**SMALL, long_tail=0.2, partition="iid"))  # type: ignore[arg-type]
    labels = torch.cat([built.dataset.y[rows] for rows in built.client_rows])
    counts, all_counts = labels.bincount(), built.dataset.y.bincount()
    assert counts[0] == all_counts[0]
    assert counts[9] == all_counts[9] // 5


def test_the_batches_of_a_client_are_cropped_alike() -> None:
    """Digits of one constant image: every sample of a batch is the same image after augmentation, batches differ."""
    experiment = ff.Experiment(**SMALL, augment="crop-flip-batch", partition="iid")  # type: ignore[arg-type]
    data = build_run(experiment).client_data
    data.x = data.x[:1].expand_as(data.x)
    batch = data.batch(data.plan([0], 0, [0]))
    assert (batch.x == batch.x[:, :, :1]).all()
    assert len(batch.x[0, :, 0].flatten(1).unique(dim=0)) > batch.x.shape[1] // 2
