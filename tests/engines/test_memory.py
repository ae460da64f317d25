"""The memory of a run is estimated, states are stored where they fit, and a full GPU gives a readable error."""

import pytest
import torch

import fedflat
from fedflat.core.state import ClientStore
from fedflat.engine.memory import MemoryEstimate, activation_bytes, choose_state_device, estimate_memory
from fedflat.engine.sequential import Sequential
from fedflat.errors import UserError
from fedflat.models.layers import BatchNorm
from fedflat.runs.build import build_run

GB = 10**9


def run_parts(method, **options):
    """Return method, task, client data and initial model of an experiment."""
    experiment = fedflat.Experiment(method=method, **options)
    return experiment.method, (built := build_run(experiment)).task, built.client_data, built.initial_params[0]


def test_states_are_counted_client_by_client():
    method, task, client_data, w = run_parts(fedflat.SCAFFOLD(), clients=7)
    estimate = estimate_memory(method, task, client_data, w, 3, [(7, 2), (7, 2), (5, 2)])
    assert estimate.states == 2 * 19 * 4 * task.size, "the table is copied when it grows"
    assert (
        estimate_memory(method, task, client_data, w, 3, [(7, 2), (7, 2), (5, 2)], ranks=2).states
        == estimate.states // 2
    )
    assert estimate_memory(*run_parts(fedflat.FedAvg()), 3, [(20, 5)]).states == 0


def test_lanes_cost_their_vectors_and_activations():
    method, task, client_data, w = run_parts(fedflat.FedAvg())
    one, two = (estimate_memory(method, task, client_data, w, lanes, [(20, 5)]).lanes for lanes in (1, 2))
    assert two == 2 * one > client_data.batch_size * activation_bytes(task, client_data, w) + 6 * 4 * task.size


def test_activations_of_a_linear_model():
    """A linear layer keeps its input of 64 numbers; cross entropy keeps the 10 logits and little more."""
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
    _, task, client_data, w = run_parts(fedflat.FedAvg(), model=model)
    assert 2 * 4 * 64 <= activation_bytes(task, client_data, w) <= 2 * 4 * (64 + 10 * 10)


def test_activations_of_samples_that_are_no_images():
    x, y = torch.randn(40, 20), torch.arange(40) % 2
    data = fedflat.Dataset.from_arrays(x, y, x, y)
    _, task, client_data, w = run_parts(
        fedflat.FedAvg(), dataset=data, model=torch.nn.Linear(20, 2), clients=5, alpha=100.0
    )
    assert activation_bytes(task, client_data, w) >= 2 * 4 * 20


class Normalised(torch.nn.Module):
    takes_batch = True

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.last = BatchNorm(1), torch.nn.Linear(64, 10)

    def forward(self, x, batch):
        return self.last(self.norm(x, batch.mask).flatten(1))


def test_models_that_normalise_over_the_batch_are_measured_too():
    _, task, client_data, w = run_parts(fedflat.FedAvg(), model=Normalised())
    assert activation_bytes(task, client_data, w) >= 2 * 4 * 2 * 64


def test_states_stay_on_the_device_where_they_fit():
    assert choose_state_device(MemoryEstimate(GB, GB, GB, 5 * GB), 10 * GB) is None


def test_states_go_to_the_host_where_they_do_not_fit():
    lines = []
    assert choose_state_device(MemoryEstimate(GB, GB, GB, 50 * GB), 10 * GB, lines.append) == torch.device("cpu")
    assert lines == [
        "memory: clients' states may grow to 50.0 GB and are kept on the host, since the GPU has 10.0 GB free"
    ]


def test_what_cannot_fit_is_refused():
    with pytest.raises(
        UserError, match=r"about 12.0 GB of the GPU, of which 10.0 GB are free; use fewer seeds, a smaller batch_size"
    ):
        choose_state_device(MemoryEstimate(10 * GB, GB, GB, 0), 10 * GB)


def test_out_of_memory_on_a_gpu_is_a_user_error(monkeypatch):
    def raise_out_of_memory(*_):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(Sequential, "train", raise_out_of_memory)
    with pytest.raises(UserError, match="memory: the GPU has too little for this run; use fewer seeds"):
        fedflat.run(fedflat.Experiment(engine="sequential", rounds=1))


def test_the_table_never_has_more_rows_than_there_are_clients():
    store = ClientStore((torch.zeros(3),), max_clients=5)
    for client in (4, 0, 3, 1, 2):
        store.scatter([client], (torch.full((1, 3), client + 1.0),))
    assert store._table[0].shape == (6, 3)
    assert store.gather(range(5))[0][:, 0].tolist() == [1, 2, 3, 4, 5]


on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@on_gpu
def test_a_store_on_the_host_serves_the_gpu():
    initial = (torch.zeros(3, device="cuda"),)
    on_device, on_host = ClientStore(initial), ClientStore(initial, torch.device("cpu"))
    for store in (on_device, on_host):
        store.scatter([4, 2, 9], (torch.arange(9.0, device="cuda").view(3, 3),))
    got, expected = (store.gather([9, 1, 4])[0] for store in (on_host, on_device))
    assert got.is_cuda
    assert torch.equal(got, expected)
    assert all(not t.is_cuda for t in on_host.pack().values())


@on_gpu
@pytest.mark.parametrize("method", [fedflat.SCAFFOLD(), fedflat.FedGloSS()], ids=lambda method: type(method).__name__)
def test_states_on_the_host_change_nothing(method, monkeypatch, capsys):
    """SCAFFOLD keeps one vector of each client, FedGloSS more."""
    experiment = fedflat.Experiment(method=method, device="cuda", precision="fp32", rounds=4, eval_every=1, cohort=8)
    on_device = fedflat.run(experiment).history
    estimate = MemoryEstimate(GB, 0, 0, 20 * GB)
    monkeypatch.setattr("fedflat.runs.build_engine.estimate_memory", lambda *_: estimate)
    monkeypatch.setattr("fedflat.runs.build_engine.free_gpu_memory", lambda _: 10 * GB)
    on_host = fedflat.run(experiment).history
    assert "kept on the host" in capsys.readouterr().err
    assert [row["loss"] for row in on_host] == pytest.approx([row["loss"] for row in on_device], rel=1e-6)


class Shifted(torch.nn.Module):
    """A linear model with a constant that is no parameter."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(64, 10)
        self.register_buffer("shift", torch.ones(64))

    def forward(self, x):
        return self.linear(x.flatten(1) + self.shift)


@on_gpu
def test_buffers_of_a_model_go_to_the_gpu():
    result = fedflat.run(fedflat.Experiment(model=Shifted, device="cuda", rounds=2))
    assert 0 <= result.final <= 1
