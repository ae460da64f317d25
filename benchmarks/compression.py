"""Does compression sharpen the minimum? python benchmarks/compression.py --out compression.json --plot compression.png.

FedAvg, FedSAM and FedGloSS are trained with replies of 32 (as they are), 8, 4 and 1 bits an entry, with error feedback
or (--no-error-feedback) without, in the setting of FL-SAM's table with Dirichlet 0.1. Accuracy is the mean over the
last tenth of the rounds; λ1 and LPF are those of the final models on the test set. Every finished run is added to
--out; what is there already is not trained again, and an interrupted run continues from its folder in --runs. --page
writes a page with the table and the picture.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import statistics
import sys
import textwrap
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
from machine import describe

import fedflat as ff
from fedflat.core.method import Method
from fedflat.flatness import AnalysisSettings
from fedflat.reproduce.flsam_tables import flsam_setting

METHODS: dict[str, Method] = {
    "fedavg": ff.FedAvg(),
    "fedsam": ff.FedSAM(rho=0.1),
    "fedgloss": ff.FedGloSS(rho=0.1, rho_local=0.1, beta=10.0, dual="released"),
}
BITS = (32, 8, 4, 1)
SHOWN = {"accuracy": "accuracy, %", "lambda1": "λ1", "rise": "LPF − loss"}
SMALL = {"model": "auto", "clients": 20, "cohort": 5, "augment": "dataset", "long_tail": 1.0}  # not CIFAR-10


def experiment(name: str, bits: int, given: argparse.Namespace) -> ff.Experiment:
    """One method at one number of bits."""
    feedback = given.error_feedback
    method = METHODS[name] if bits == 32 else ff.Compressed(inner=METHODS[name], bits=bits, error_feedback=feedback)
    setting = flsam_setting(("dir-0.1", "fedavg")) | {"dataset": given.dataset, "rounds": given.rounds}
    setting |= {} if given.dataset == "cifar10" else SMALL
    setting |= {"precision": "bf16"} if given.device.startswith("cuda") else {}
    return ff.Experiment(**setting | {"method": method, "seeds": tuple(given.seeds), "device": given.device})


def measure(name: str, bits: int, given: argparse.Namespace) -> dict[str, Any]:
    """Train and measure one run; lists have one number for each seed."""
    folder = given.runs / "-".join(map(str, identity(name, bits, given)))
    training = experiment(name, bits, given)
    if not (folder / "result.json").exists():
        ff.run(training, out=folder, resume=True)
    settings = AnalysisSettings(what=("hessian", "lpf"), top=1, probes=2, device=given.device)
    measured = ff.analyse(folder, settings).documents[folder.name]
    result = json.loads((folder / "result.json").read_text())
    numbers = {
        "lambda1": [measured["hessian"]["seeds"][str(seed)]["lambda1"] for seed in given.seeds],
        "lpf": [measured["lpf"]["seeds"][str(seed)]["lpf"] for seed in given.seeds],
        "rise": [measured["lpf"]["seeds"][str(seed)]["rise"] for seed in given.seeds],
    }
    accuracy = [last_tenth(folder, seed, training.rounds) for seed in given.seeds]
    bytes_up = result["bytes_up_per_client_round"]
    return {"run": identity(name, bits, given), "accuracy": accuracy, **numbers, "bytes_up": bytes_up}


def identity(name: str, bits: int, given: argparse.Namespace) -> list[Any]:
    """Method, bits and what is done with errors: "sent" as they are, "feedback" or "dropped"."""
    return [name, bits, "sent" if bits == 32 else "feedback" if given.error_feedback else "dropped"]


def last_tenth(folder: Path, seed: int, rounds: int) -> float:
    """The mean accuracy over the evaluations in the last tenth of the rounds, in percent."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    last = [row["accuracy"] for row in rows if row["seed"] == seed and row["round"] > 0.9 * rounds]
    return 100 * statistics.fmean(last)


def table(records: list[dict[str, Any]]) -> str:
    """Markdown: means over seeds with standard deviations, and each number beside that of 32 bits."""
    lines = ["| method | bits | errors | accuracy, % | λ1 | ratio | LPF | LPF − loss | ratio | bytes up | fewer |"]
    lines.append("|---|---|---|---|---|---|---|---|---|---|---|")
    for r in records:
        full = next((f for f in records if f["run"][:2] == [r["run"][0], 32]), r)
        ratio = {name: f"{mean(r[name]) / mean(full[name]):.2f}" for name in ("lambda1", "rise")}
        cells = [*r["run"], spread(r["accuracy"], ".2f"), spread(r["lambda1"], ".3g"), ratio["lambda1"]]
        cells += [spread(r["lpf"], ".3g"), spread(r["rise"], ".3g"), ratio["rise"], f"{r['bytes_up']:,}"]
        lines.append(f"| {' | '.join(map(str, cells))} | {full['bytes_up'] / r['bytes_up']:.1f}× |")
    return "\n".join(lines)


mean = statistics.fmean


def spread(values: list[float], form: str) -> str:
    """Mean ± standard deviation; the number alone where there is one seed."""
    deviation = f" ± {statistics.stdev(values):{form}}" if len(values) > 1 else ""
    return f"{mean(values):{form}}{deviation}"


def draw(records: list[dict[str, Any]], path: Path) -> None:
    """One panel for each number, one line for each method with error feedback, a dashed one without."""
    figure, axes = plt.subplots(1, len(SHOWN), figsize=(10, 3.2), layout="constrained")
    for axis, (number, label) in zip(axes, SHOWN.items(), strict=True):
        for name, errors in dict.fromkeys((r["run"][0], r["run"][2]) for r in records if r["run"][1] < 32):
            own = [r for r in records if r["run"][0] == name and r["run"][2] in ("sent", errors)]
            places, values = [BITS.index(r["run"][1]) for r in own], [mean(r[number]) for r in own]
            bars = [statistics.stdev(r[number]) if len(r[number]) > 1 else 0 for r in own]
            color, style = f"C{list(METHODS).index(name)}", "o-" if errors == "feedback" else "s--"
            axis.errorbar(places, values, bars, fmt=style, color=color, capsize=3, label=f"{name}, {errors}")
        axis.set_xticks(range(len(BITS)), [str(bits) for bits in BITS])
        axis.set_xlabel("bits an entry")
        axis.set_title(label, fontsize=10)
        axis.grid(alpha=0.3)
    axes[0].legend(fontsize=8)
    figure.savefig(path, dpi=110)


INTRODUCTION = """# Compression: fewer bytes per reply

`compress` around any method makes clients send their replies with fewer bits, or only some entries of them:

```
fedflat compare fedavg compress:bits=4+fedavg compress:bits=1+fedavg --alpha 1 --model mlp --rounds 20 --seeds 0 1
```

```text
│ method               │          accuracy │        last 10 % │ rounds to 80% │ bytes down │ bytes up │ seconds │
│ FedAvg               │  ≈ 90.14% ± 0.98% │ ≈ 88.96% ± 0.49% │          ≈ 11 │     19,240 │   19,240 │     2.5 │
│ Compressed, bits = 1 │ ≈ 73.61% ± 11.00% │ ≈ 73.68% ± 9.72% │             – │     19,240 │      678 │     2.9 │
│ Compressed, bits = 4 │  ≈ 90.00% ± 1.57% │ ≈ 88.82% ± 0.69% │          ≈ 11 │     19,240 │    2,481 │     3.5 │
```

With 4 bits an entry FedAvg learns as much for an eighth of the bytes up. With 1 bit it sends 28 times less and learns
more slowly. `bytes up` are those of one client in one round, counted on encoded replies. Options, formulas and error
feedback: [methods/compress.md](methods/compress.md).
"""


def page(kept: dict[str, Any], plot: Path, path: Path) -> str:
    """A page of documentation: what was measured, with which command, the table and the picture."""
    picture = os.path.relpath(plot, path.parent)
    return f"""{INTRODUCTION}
## Does compression sharpen the minimum?

{textwrap.fill(kept.get("finding", ""), 120)}

## Appendix: measured

```
{kept["command"]}
```

{textwrap.fill(description(kept), 120)}

{table(kept["records"])}

![accuracy, λ1 and LPF against bits]({picture})
"""


def description(kept: dict[str, Any]) -> str:
    """What was measured, in one paragraph."""
    machine, setting = kept["machine"], kept["setting"]
    seeds = ", ".join(map(str, setting["seeds"]))
    shown = f"Means over seeds {seeds} ± standard deviations" if len(setting["seeds"]) > 1 else f"Seed {seeds}"
    errors = sorted({r["run"][2] for r in kept["records"]} - {"sent"})
    return (
        "FedAvg, FedSAM (ρ = 0.1) and FedGloSS (ρ = ρ_l = 0.1, β = 10, dual released), with replies as they are "
        "(32 bits) and through [compress](methods/compress.md) with fewer bits an entry, errors: "
        f"{' and '.join(errors)}. "
        f"The setting is that of FL-SAM's table: {setting['dataset']}, {setting['model']}, {setting['rounds']} rounds, "
        f"{setting['cohort']} of {setting['clients']} clients, partition {setting['partition']} with "
        f"α = {setting['alpha']:g}. Accuracy is the mean over the last tenth of the rounds. λ1, LPF (σ = 0.01) and the "
        f"rise of LPF over the loss are those of the final models on the test set. {shown}; ratios are to the same "
        "method with 32 bits; bytes are those of one client in one round. Measured on "
        f"{machine['gpu'] or machine['cpu']}, torch {machine['torch']}, {machine['date']}."
    )


def main() -> None:
    """Train and measure what is missing, print the table, draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", default="cifar10")
    parser.add_argument("--rounds", type=int, default=500)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--bits", type=int, nargs="+", choices=BITS, default=list(BITS))
    parser.add_argument("--error-feedback", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--runs", type=Path, default=Path("runs/compression"))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--page", type=Path)
    given = parser.parse_args()
    kept = json.loads(given.out.read_text()) if given.out.exists() else first_document(given)
    for name, bits in [(name, bits) for name in given.methods for bits in given.bits]:
        if any(r["run"] == identity(name, bits, given) for r in kept["records"]):
            continue
        try:
            kept["records"].append(measure(name, bits, given))
        except ff.UserError as error:  # it diverged
            print(f"{name} with {bits} bits: {error}", file=sys.stderr)
            continue
        kept["records"].sort(key=lambda r: (list(METHODS).index(r["run"][0]), r["run"][2] == "dropped", -r["run"][1]))
        given.out.write_text(json.dumps(kept, indent=1) + "\n")
    print(json.dumps(kept["machine"]), table(kept["records"]), sep="\n")
    if given.plot:
        draw(kept["records"], given.plot)
    if given.page:
        given.page.write_text(page(kept, given.plot, given.page), encoding="utf-8")


def first_document(given: argparse.Namespace) -> dict[str, Any]:
    """What --out says besides the records: machine, command and setting."""
    setting = experiment("fedavg", 32, given)
    names = ("dataset", "model", "rounds", "clients", "cohort", "partition", "alpha", "seeds", "precision")
    chosen = ["--dataset", given.dataset, "--rounds", given.rounds, "--seeds", *given.seeds, "--device", given.device]
    command = shlex.join(["python", "benchmarks/compression.py", *map(str, chosen), "--out", "compression.json"])
    shown = {name: getattr(setting, name) for name in names}
    return {"machine": describe(), "command": command, "setting": shown, "records": []}


if __name__ == "__main__":
    main()
