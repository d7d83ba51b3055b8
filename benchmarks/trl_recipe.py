"""The recipe for TRL of docs/weights.md, run as it stands there with TRL's GRPOTrainer, and the mixin with any loss.

    python benchmarks/trl_recipe.py

trl must be installed. The model is a small random one, and a stand-in takes the place of vLLM: random tokens, with
log-probabilities that are off by noise, and one that is missing. What is checked: rejecting tokens does not move log π, since the
attention mask stays as it is; the loss is the mean of weight times advantage over what is kept.
"""

from __future__ import annotations

import re
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset  # pyright: ignore[reportMissingImports]
from tokenizers import Tokenizer, models, pre_tokenizers  # pyright: ignore[reportMissingImports]
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast  # pyright: ignore[reportMissingImports]
from trl import GRPOConfig  # pyright: ignore[reportMissingImports]

PAGE = Path(__file__).parents[1] / "docs" / "weights.md"
WORDS = ["<pad>", "<eos>", *"abcdefghijklmnop"]
OLD = ('output["tool_mask"] = keep.long()', 'output["completion_mask"] = output["completion_mask"] * keep')
"""What the recipe did once: it is run too, to see that the check sees it."""


def recipe() -> str:
    """The code of the page."""
    found = re.search(r"^## In TRL$.*?^```\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    if found is None:
        raise ValueError(f"{PAGE} has no code under 'In TRL'")
    return found[1]


class Engine:
    """In the place of vLLM: random tokens, and the model's own log-probabilities with noise."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.draw = torch.Generator().manual_seed(0)

    def sync_weights(self) -> None:
        """Nothing to do: the model is the trainer's own."""

    def generate(self, prompts: list[list[int]], **_: Any) -> tuple[Any, Any, Any, Any]:
        """Completions of one to six tokens for each prompt, and their log-probabilities."""
        completions, logs = [], []
        for prompt in prompts:
            n = int(torch.randint(1, 7, (1,), generator=self.draw))
            tokens = torch.randint(2, len(WORDS), (n,), generator=self.draw).tolist()
            with torch.no_grad():
                logits = self.model(torch.tensor([prompt + tokens])).logits[0, len(prompt) - 1 : -1]
            log = logits.log_softmax(-1)[range(n), tokens] + 0.6 * torch.randn(n, generator=self.draw)
            completions.append(tokens)
            logs.append([[x] for x in log.tolist()])
        logs[0][0] = [None]  # vLLM gives None in place of NaN
        return prompts, completions, logs, None


def tried(code: str, folder: str) -> tuple[float, float, int]:
    """By how much log π moves between scoring and loss, how far the loss is off, and how many tokens are rejected."""
    names: dict[str, Any] = {}
    exec(code, names)
    moved: list[float] = []
    off: list[float] = []
    rejected: list[int] = []

    class Checked(names["Trainer"]):
        batch: Any = None

        def _get_per_token_logps_and_entropies(self, *given: Any, **named: Any) -> Any:
            found = super()._get_per_token_logps_and_entropies(*given, **named)
            if self.batch is not None:  # for the loss, by the same parameters as before: this is the first step
                there = self.batch["completion_ids"] != 0
                moved.append(float((found[0].detach() - self.batch["old_per_token_logps"])[there].abs().max()))
            return found

        def compute_loss(self, model: Any, inputs: Any, **named: Any) -> Any:
            x = self.batch = inputs
            loss = super().compute_loss(model, inputs, **named)
            self.batch = None
            kept = x["completion_mask"] * x.get("tool_mask", 1)
            each = x["importance_sampling_ratio"] * x["advantages"][:, None] * kept
            off.append(abs(float(loss.detach()) + float(each.sum() / kept.sum())))
            rejected.append(int((x["completion_ids"] != 0).sum() - kept.sum()))
            return loss

    trainer = trainer_of(Checked, folder, max_steps=1)
    trainer.use_vllm, trainer.vllm_generation, trainer._last_loaded_step = True, Engine(trainer.model), 0
    trainer.train()
    return max(moved), max(off), sum(rejected)


def trainer_of(kind: Any, folder: str, **settings: Any) -> Any:
    """A trainer of this class for a small random model."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=len(WORDS), **sizes, initializer_range=0.5))
    of_words = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<eos>"))
    of_words.pre_tokenizer = pre_tokenizers.Whitespace()
    return kind(
        model=model,
        reward_funcs=lambda completions, **_: [float(len(text)) for text in completions],
        args=GRPOConfig(
            output_dir=folder, per_device_train_batch_size=8, num_generations=4, report_to=[], use_cpu=True,
            bf16=False, max_completion_length=6, logging_steps=1, disable_tqdm=True, save_strategy="no", **settings,
        ),
        train_dataset=Dataset.from_list([{"prompt": "a b c"}, {"prompt": "d e"}] * 4),
        processing_class=PreTrainedTokenizerFast(tokenizer_object=of_words, pad_token="<pad>", eos_token="<eos>"),
    )  # fmt: skip


def with_mixin(folder: str) -> float:
    """By how much the mixin's losses, and their gradients, differ from those that TRL computes of the same batches."""
    from trl import GRPOTrainer  # pyright: ignore[reportMissingImports]

    from offtrace.adapters.trl import PolicyLossMixin

    off: list[float] = []

    class Both(PolicyLossMixin, GRPOTrainer):  # pyright: ignore[reportUntypedBaseClass]
        policy_loss = "grpo"

        def _compute_loss(self, model: Any, inputs: Any) -> Any:
            ours, theirs = super()._compute_loss(model, inputs), GRPOTrainer._compute_loss(self, model, inputs)
            gradients = [torch.autograd.grad(loss, list(model.parameters())) for loss in (ours, theirs)]
            off.extend(float((a - b).abs().max()) for a, b in zip(*gradients, strict=True))
            off.append(abs(float(ours.detach()) - float(theirs.detach())))
            return GRPOTrainer._compute_loss(self, model, inputs)

    trainer = trainer_of(Both, folder, loss_type="grpo", num_iterations=2, max_steps=4, learning_rate=0.05)
    trainer.train()
    return max(off)


def main() -> int:
    code = recipe()
    if OLD[0] not in code:
        raise ValueError(f"the recipe has no line {OLD[0]}")
    with tempfile.TemporaryDirectory() as folder:
        moved, off, rejected = tried(code, folder)
        before, _, _ = tried(code.replace(*OLD), folder)
        mixed = with_mixin(folder)
    print(f"trl {version('trl')}: {rejected} tokens rejected; log π moves by {moved:.1e}, the loss is off by {off:.1e}")
    print(f"with what is kept in completion_mask log π would move by {before:.3f}")
    print(f"losses and gradients of the mixin are off by {mixed:.1e}")
    return 0 if rejected and max(moved, off, mixed) < 1e-5 and before > 1e-3 else 1


if __name__ == "__main__":
    sys.exit(main())
