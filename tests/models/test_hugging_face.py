"""Models and data sets of Hugging Face: as they are, from folders, with peft; nothing is downloaded."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedflat as ff
from fedflat.cli import main
from fedflat.core.task import Batch, Task
from fedflat.data.hugging_face import load_hugging_face_data
from fedflat.models.adapt import adapt_layers
from fedflat.models.hugging_face import adapt_hugging_face

transformers = pytest.importorskip("transformers", reason="the extra hf is not installed")
datasets = pytest.importorskip("datasets", reason="the extra hf is not installed")

WORDS = ["[PAD]", "[UNK]", "good", "bad", "film", "book", "was", "very", "not", "the"]
SIZES: dict[str, Any] = {"vocab_size": len(WORDS), "num_hidden_layers": 1, "max_position_embeddings": 8}
WIDTHS: dict[str, Any] = {"hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 8}
BUILD: dict[str, Callable[[], torch.nn.Module]] = {
    "bert": lambda: transformers.BertForSequenceClassification(transformers.BertConfig(**SIZES, **WIDTHS)),
    "gpt2": lambda: transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            vocab_size=len(WORDS), n_embd=8, n_layer=1, n_head=2, n_positions=8, bos_token_id=0, eos_token_id=0
        )
    ),
    "llama": lambda: transformers.LlamaForCausalLM(
        transformers.LlamaConfig(**SIZES, **WIDTHS, num_key_value_heads=1, bos_token_id=0, eos_token_id=0)
    ),
}
LIGHT: dict[str, Any] = {"rounds": 2, "clients": 3, "cohort": 2, "local_epochs": 1, "batch_size": 4, "partition": "iid"}


def model(name: str) -> Any:
    torch.manual_seed(0)
    return BUILD[name]()


def reviews() -> Any:
    """Twelve reviews of three users; a review is good or bad."""
    texts = [
        f"the {thing} was {how} {word}"
        for thing in ("film", "book")
        for how in ("very", "not", "")
        for word in WORDS[2:4]
    ]
    columns = {"review": texts, "stars": [int("bad" in text) for text in texts], "user": ["u", "v", "w"] * 4}
    return datasets.Dataset.from_dict(columns)


@pytest.fixture
def tokenizer() -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = Tokenizer(models.WordLevel({word: n for n, word in enumerate(WORDS)}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=words, pad_token="[PAD]", unk_token="[UNK]")


def data(tokenizer: Any, label: bool) -> ff.Dataset:
    given = reviews() if label else reviews().remove_columns("stars")
    return load_hugging_face_data(given, tokenizer, "review", "stars" if label else None, length=8)


@pytest.mark.parametrize("name", BUILD)
def test_adapted_models_give_the_scores_of_the_original(name: str, tokenizer: Any) -> None:
    ours, theirs = adapt_layers(model(name))[0].double(), model(name).double().eval()
    adapt_hugging_face(ours)
    task, samples = Task(ours), data(tokenizer, label=True)
    x = samples.x
    batch = Batch(x, samples.y, torch.ones(len(samples.y), dtype=torch.bool), None)
    found = task.outputs(task.flatten(dict(ours.named_parameters())).detach(), batch)
    real = slice(None) if name == "bert" else x["attention_mask"] > 0
    torch.testing.assert_close(found[real], theirs(**x).logits[real], rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_engines_agree(name: str, tokenizer: Any) -> None:
    given, before = model(name), copy.deepcopy(model(name).state_dict())
    experiment = {"dataset": data(tokenizer, label=name == "bert"), "model": given, **LIGHT}
    results = [ff.run(ff.Experiment(engine=engine, **experiment)) for engine in ("batched", "sequential")]
    losses = [[row["loss"] for row in result.history] for result in results]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    assert losses[0][0] != losses[0][1]
    assert results[0].parameters == sum(p.numel() for p in given.parameters()), "tied weights count once"
    assert all(torch.equal(value, before[key]) for key, value in given.state_dict().items())
    assert given.config._attn_implementation != "fedflat"


def test_peft_trains_adapters_only(tokenizer: Any) -> None:
    peft = pytest.importorskip("peft", reason="the extra hf is not installed")
    config = peft.LoraConfig(task_type="SEQ_CLS", r=2, target_modules=["query", "value"], lora_dropout=0.1)
    adapted = peft.get_peft_model(model("bert"), config)
    labelled = data(tokenizer, label=True)
    result = ff.run(ff.Experiment(dataset=labelled, model=adapted, lr=0.5, **LIGHT | {"rounds": 3}))
    assert result.parameters == 2 * 2 * 2 * 8 + 2 * 9, "A and B of two layers, and the classifier"
    assert result.history[-1]["loss"] != result.history[0]["loss"]


@pytest.mark.parametrize(
    ("column", "values", "task", "targets"),
    [
        ("stars", [1, 2, 5] * 4, "auto", [0, 1, 2]),
        ("stars", [1, 2, 5] * 4, "regression", [1, 2, 5]),
        ("stars", [0.5, 1.5, 4.0] * 4, "auto", [0.5, 1.5, 4.0]),
    ],
)
def test_labels_are_classes_or_numbers(column: str, values: list, task: str, targets: list) -> None:
    given = reviews().remove_columns(column).add_column(column, values)
    found = load_hugging_face_data(given, None, "review", column, length=8, task=task)
    assert set(found.y.tolist()) == set(targets)


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("review", None, "column 'review' has no value in row 12"),
        ("stars", None, "column 'stars' has no value in row 12"),
        ("stars", -1, "column 'stars' has labels of -1, which stand for unknown ones"),
    ],
)
def test_unknown_texts_and_labels_are_refused(column: str, value: Any, message: str) -> None:
    columns = reviews().to_dict()
    columns[column][-1] = value
    splits = {"train": reviews(), "test": datasets.Dataset.from_dict(columns)}
    with pytest.raises(ff.UserError, match=message):
        load_hugging_face_data(splits, None, "review", "stars", length=8)


@pytest.mark.usefixtures("folders")
def test_a_head_for_another_number_of_classes_starts_anew(capsys: pytest.CaptureFixture[str]) -> None:
    three = reviews().remove_columns("stars").add_column("stars", [1, 2, 5] * 4)
    three.save_to_disk("three")
    columns = {"feature_columns": ("review",), "target_column": ("stars",)}
    experiment = ff.Experiment(dataset="hf:three", model="hf:bert", sequence_length=8, **columns, **LIGHT)
    result = ff.run(experiment, out="run")
    assert "classifier.bias, classifier.weight start anew: the data need 3 outputs" in capsys.readouterr().err
    assert result.parameters == sum(p.numel() for p in model("bert").parameters()) + 9
    start, given = ff.load_model("run"), model("bert")
    assert start.classifier.weight.shape[0] == 3
    body = "bert.embeddings.word_embeddings.weight"
    assert torch.allclose(start.state_dict()[body], given.state_dict()[body], atol=0.1), (
        "other weights are the folder's"
    )


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("hf:nothing", "there is no folder nothing"),
        ("hf:bare", "has no tokenizer .*tokenizer.save_pretrained"),
    ],
)
@pytest.mark.usefixtures("folders")
def test_a_folder_without_model_or_tokenizer_is_named(name: str, message: str) -> None:
    BUILD["bert"]().save_pretrained("bare")
    columns = {"feature_columns": ("review",), "target_column": ("stars",)}
    with pytest.raises(ff.UserError, match=message):
        ff.run(ff.Experiment(dataset="hf:reviews", model=name, sequence_length=8, **columns, **LIGHT))


@pytest.fixture
def folders(tokenizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    reviews().save_to_disk("reviews")
    for name in ("bert", "gpt2"):
        model(name).save_pretrained(name)
        tokenizer.save_pretrained(name)
    return tmp_path


RUN = "run fedavg --dataset hf:reviews --sequence-length 6 --rounds 1 --local-steps 1 --cohort 2 --engine sequential"
COLUMNS = "--feature-columns review --target-column stars --client-column user"


@pytest.mark.usefixtures("folders")
def test_folders_on_the_command_line() -> None:
    assert main(f"{RUN} {COLUMNS} --model hf:bert --out classes".split()) == 0
    assert main(f"{RUN} --feature-columns review --model hf:gpt2 --clients 3 --out tokens".split()) == 0
    trained = ff.load_model("classes")
    assert set(trained.state_dict()) == set(model("bert").state_dict())
    for part in Path("bert").glob("*.safetensors"):
        part.unlink()
    assert main(f"{RUN} {COLUMNS} --model hf:bert --seeds 0 1".split()) == 0, "new weights from config.json alone"


@pytest.mark.usefixtures("folders")
@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ("--model hf:nowhere --feature-columns review", "--model hf:nowhere: there is no folder nowhere"),
        ("--model hf:reviews --feature-columns review", "--model hf:reviews: has no tokenizer"),
        ("--model hf:bert --feature-columns reviews", "has no column 'reviews' (did you mean review?)"),
        ("--model hf:bert", "has no column 'text'; it has review, stars, user"),
        ("--dataset hf:nowhere", "--dataset hf:nowhere: is not a folder, and cannot be downloaded"),
        ("--dataset digits --model hf:reviews", "there is no config.json in reviews"),
        ("--model hf:pickled --feature-columns review --target-column stars --clients 2", "its weights are pickles"),
    ],
)
def test_mistakes(words: str, problem: str, capsys: pytest.CaptureFixture[str]) -> None:
    if "pickled" in words:
        Path("bert").rename("pickled")
        Path("pickled/model.safetensors").rename("pickled/pytorch_model.bin")
    assert main(f"{RUN} {words}".split()) == 2
    assert problem in capsys.readouterr().err


@pytest.mark.usefixtures("folders")
def test_the_examples_of_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).parents[2] / "docs" / "text.md").read_text(encoding="utf-8").partition("## Hugging Face")[2]
    (command,) = re.findall(r"^fedflat (.*)$", page, re.M)
    assert main(f"{command} --local-steps 1 --cohort 2 --rounds 1 --sequence-length 8".split()) == 0
    (source,) = re.findall(r"```python\n(.*?)```", page, re.S)
    exec(compile(source, "text.md", "exec"), {})
    assert capsys.readouterr().out.splitlines()[-1].startswith("64 trained parameters")


@pytest.mark.usefixtures("folders")
def test_the_recipe_of_the_how_to_page(tokenizer: Any) -> None:
    """From a model's folder to a tuned one that transformers loads; the name on the page would be downloaded."""
    page = (Path(__file__).parents[2] / "docs" / "how-to.md").read_text(encoding="utf-8")
    recipe = page.partition("## Fine-tune a model of Hugging Face")[2].partition("\n## ")[0]
    save_model, save_texts, load = re.findall(r"```python\n(.*?)```", recipe, re.S)
    (command,) = re.findall(r"^fedflat (.*)$", recipe, re.M)
    Path("bert").rename("downloaded")
    Path("reviews").rename("others")
    exec(re.sub('name = ".*"', 'name = "downloaded"', save_model), {})
    exec(save_texts, {})
    assert main(f"{command} --sequence-length 8 --local-epochs 1 --rounds 2".split()) == 0
    scope: dict[str, Any] = {}
    exec(load, scope)
    tuned = transformers.AutoModelForSequenceClassification.from_pretrained("tuned")
    words = tokenizer(["the film was good", "not very bad"], padding=True, return_tensors="pt")
    words = {name: words[name] for name in ("input_ids", "attention_mask")}
    torch.testing.assert_close(tuned(**words).logits, scope["model"](**words).logits)
    before = transformers.AutoModelForSequenceClassification.from_pretrained("downloaded")
    assert not torch.equal(tuned(**words).logits, before(**words).logits)


def test_bytes_without_a_tokenizer_and_splits() -> None:
    halves = reviews().train_test_split(0.25, shuffle=False)
    found = load_hugging_face_data(halves, None, "review", "stars", "user", length=12)
    assert found.x.shape == (9, 12)
    assert found.x_test.shape == (3, 12)
    assert bytes(found.x[0].tolist()) == b"the film was"
    assert found.owner.tolist() == [0, 1, 2] * 3
    halves["test"] = halves["test"].filter(lambda row: row["stars"] == 1)
    assert load_hugging_face_data(halves, None, "review", "stars", length=12).y_test.tolist() == [1, 1]
    whole = load_hugging_face_data(reviews(), None, "review", length=40)
    assert (len(whole.y), len(whole.y_test), whole.task, whole.classes) == (10, 2, "next-token", 256)
    assert np.isin(whole.y[0].numpy(), [-100, *b"the film was very good bad not book"]).all()
