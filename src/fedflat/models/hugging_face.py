"""Models of Hugging Face's transformers: `hf:FOLDER`, and models that users build themselves, with peft or without it.

Their attention, and the mask of it, look at the content of the padding mask, which torch.func.vmap does not allow. So
both are replaced by plain ones. Dropout of attention weights is off; dropout layers are replaced as in other models.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from fedflat.errors import NOT_SHOWN, UserError, import_extra

ATTENTION = "fedflat"  # the name under which transformers knows our attention
_NOT_SUPPORTED = ("softcap", "s_aux", "position_bias")  # terms that some models add to their attention


def is_hugging_face(name: Any) -> bool:
    """Return whether `name` has the form hf:FOLDER."""
    return isinstance(name, str) and name.startswith("hf:")


def load_hugging_face_model(name: str, task: str, classes: int) -> nn.Module:
    """Return the model of hf:FOLDER: a causal language model for next-token, else one that classifies sequences.

    A folder with config.json alone gives new weights, drawn from torch's global random generator.

    Args:
        name: hf:FOLDER, a folder as save_pretrained writes it. Weights are read from safetensors files only.
        task: the name of the task.
        classes: the number of classes, or of tokens that occur in the data.

    Raises:
        UserError: transformers is not installed, or there is no such model in the folder.
    """
    library, folder = import_extra("transformers", "hf", "model", name), Path(name.removeprefix("hf:")).expanduser()
    if not (folder / "config.json").is_file():
        raise UserError("model", name, f"there is no config.json in {folder}; give a folder that save_pretrained wrote")
    kind = library.AutoModelForCausalLM if task == "next-token" else library.AutoModelForSequenceClassification
    labels = {} if task == "next-token" else {"num_labels": classes}
    try:
        config = library.AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False, **labels)
        if any(folder.glob("*.safetensors")):
            model = _load_weights(kind, folder, config, classes)
        elif any(folder.glob("*.bin")):
            raise UserError("model", name, "its weights are pickles, which can run code; save them as safetensors")
        else:
            model = kind.from_config(config)
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        if isinstance(error, UserError):
            raise
        reason = " ".join(str(error).split())[:200]
        raise UserError("model", name, f"cannot be loaded by transformers ({reason})") from error
    if task == "next-token" and config.vocab_size < classes:
        problem = f"knows {config.vocab_size} tokens, the data have {classes}; use its own tokenizer"
        raise UserError("model", name, problem)
    return model.float()


def _load_weights(kind: Any, folder: Path, config: Any, classes: int) -> nn.Module:
    """Return the model with the weights of a folder; a head for another number of classes starts anew, and is named."""
    options = {"ignore_mismatched_sizes": True, "output_loading_info": True}
    model, info = kind.from_pretrained(folder, config=config, local_files_only=True, use_safetensors=True, **options)
    if new := sorted(entry[0] for entry in info["mismatched_keys"]):
        print(f"model: {', '.join(new)} start anew: the data need {classes} outputs", file=sys.stderr)
    return model


def adapt_hugging_face(model: nn.Module) -> None:
    """Make the models of transformers inside a model work under torch.func.vmap; others stay as they are.

    Args:
        model: any model; it is changed.

    Raises:
        UserError: a model has an attention of its own kind.
    """
    library = sys.modules.get("transformers")
    parts = [module for module in model.modules() if library and isinstance(module, library.PreTrainedModel)]
    if not library or not parts:
        return
    library.AttentionInterface.register(ATTENTION, _attention)
    library.AttentionMaskInterface.register(ATTENTION, _attention_mask)
    for part in parts:
        try:
            part.set_attn_implementation(ATTENTION)
        except (ValueError, NotImplementedError) as error:
            problem = f"{type(part).__name__} has an attention that cannot be replaced ({error})"
            raise UserError("model", NOT_SHOWN, problem) from error
        part.config.use_cache = False
    model.eval()  # or attention weights would be dropped out of the global random state


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Return softmax(Q Kᵀ s + mask) V as [B, T, heads, d]; several heads may share one key and value."""
    for name in _NOT_SUPPORTED:
        if options.get(name) is not None:
            raise UserError("model", NOT_SHOWN, f"{type(module).__name__} uses {name}, which fedflat's attention lacks")
    shared = query.shape[1] // key.shape[1]
    key, value = (t.repeat_interleave(shared, 1) if shared > 1 else t for t in (key, value))
    scores = query @ key.transpose(-1, -2) * (query.shape[-1] ** -0.5 if scaling is None else scaling)
    scores = scores if attention_mask is None else scores + attention_mask
    return (scores.softmax(-1) @ value).transpose(1, 2).contiguous(), None


def _attention_mask(*arguments: Any, **options: Any) -> Tensor | None:
    """Return the mask of eager attention, [B, 1, T, T]; it is never left out, because that depends on its content."""
    from transformers.masking_utils import eager_mask

    return eager_mask(*arguments, **options | {"allow_is_bidirectional_skip": False})
